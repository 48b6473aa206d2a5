"""Mazes with one way from start to goal: spanning trees of a grid of rooms."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from equilibria.run.data.dataset import Split
from equilibria.zoo.reasoning.data.drawing import part_of

Room = tuple[int, int]
Tree = dict[Room, list[Room]]

CHANNELS = ("wall", "start", "goal")


def draw_mazes(
    count: int,
    size: int,
    *,
    seed: int | str,
    algorithm: str = "mixed",
    part: str | None = None,
) -> Split:
    """Draw mazes; the target marks the cells of the way from start to goal, both included.

    Rooms stand at odd rows and columns, walls or doors between them. The doors are a spanning tree
    of the rooms, so there is exactly one way. Start and goal are two rooms.

    Args:
        count: mazes.
        size: rows and columns of cells, an odd number of at least 5.
        seed: fixes them, on every machine.
        algorithm: "depth_first" (long corridors), "wilson" (every spanning tree is as likely), or
            "mixed", one and the other in turn.
        part: draw from the mazes of "train", "valid" or "test" alone, see `drawing.part_of`; None
            for all mazes.

    Returns:
        Inputs `(count, 3, size, size)` float32, channels `CHANNELS`; targets
        `(count, size, size)` int64, 1 on the way and 0 elsewhere.
    """
    generator = random.Random(f"maze {size} {seed}")
    kinds = tuple(_GROWERS) if algorithm == "mixed" else (algorithm,)
    inputs = torch.zeros(count, len(CHANNELS), size, size)
    targets = torch.zeros(count, size, size, dtype=torch.int64)
    rooms = [(row, column) for row in range(size // 2) for column in range(size // 2)]
    number = 0
    while number < count:
        tree = _GROWERS[kinds[number % len(kinds)]](rooms, generator)
        start, goal = generator.sample(rooms, 2)
        way = find_way(tree, start, goal)
        opened = [_cell(room) for room in rooms]
        opened += [_door(room, other) for room, others in tree.items() for other in others]
        rows, columns = zip(*opened, strict=True)
        inputs[number] = 0.0
        inputs[number, 0] = 1.0
        inputs[number, 0, list(rows), list(columns)] = 0.0
        inputs[number, 1][_cell(start)] = 1.0
        inputs[number, 2][_cell(goal)] = 1.0
        cells = inputs[number].byte().numpy()
        if part is not None and part_of(cells.tobytes()) != part:
            continue
        path = [_cell(room) for room in way] + [_door(*pair) for pair in itertools.pairwise(way)]
        rows, columns = zip(*path, strict=True)
        targets[number, list(rows), list(columns)] = 1
        number += 1
    return Split(inputs, targets)


def count_rounds(inputs: torch.Tensor) -> torch.Tensor:
    """Return the rounds in which the dead ends of each maze are filled, `(count,)`.

    In a round, every cell that has at most one open neighbor is filled, all at once, but start and
    goal are not. What is left in the end is the way.

    Args:
        inputs: as `draw_mazes` has them.
    """
    open_, ends = inputs[:, 0] == 0, inputs[:, 1:].any(1)
    rounds = torch.zeros(len(inputs))
    while True:
        beside = functional.pad(open_.float(), (1, 1, 1, 1))
        neighbors = beside[:, :-2, 1:-1] + beside[:, 2:, 1:-1]
        neighbors += beside[:, 1:-1, :-2] + beside[:, 1:-1, 2:]
        dead = open_ & ~ends & (neighbors <= 1)
        changed = dead.flatten(1).any(1)
        if not changed.any():
            return rounds
        rounds += changed
        open_ = open_ & ~dead


def find_way(tree: Tree, start: Room, goal: Room) -> list[Room]:
    """Return the rooms from `start` to `goal`, both included."""
    before = {start: start}
    waiting = deque([start])
    while goal not in before:
        room = waiting.popleft()
        for other in tree[room]:
            if other not in before:
                before[other] = room
                waiting.append(other)
    way = [goal]
    while way[-1] != start:
        way.append(before[way[-1]])
    return way[::-1]


def _cell(room: Room) -> tuple[int, int]:
    return 2 * room[0] + 1, 2 * room[1] + 1


def _door(room: Room, other: Room) -> tuple[int, int]:
    return room[0] + other[0] + 1, room[1] + other[1] + 1


def _neighbors(room: Room, rooms: set[Room]) -> Iterator[Room]:
    row, column = room
    around = ((row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column))
    return (each for each in around if each in rooms)


def _join(tree: Tree, room: Room, other: Room) -> None:
    tree[room].append(other)
    tree[other].append(room)


def _grow_depth_first(rooms: list[Room], generator: random.Random) -> Tree:
    """A spanning tree by a random depth-first search: few and long dead ends."""
    tree: Tree = {room: [] for room in rooms}
    known = set(rooms)
    way = [generator.choice(rooms)]
    seen = set(way)
    while way:
        others = [each for each in _neighbors(way[-1], known) if each not in seen]
        if not others:
            way.pop()
            continue
        other = generator.choice(others)
        _join(tree, way[-1], other)
        seen.add(other)
        way.append(other)
    return tree


def _grow_wilson(rooms: list[Room], generator: random.Random) -> Tree:
    """A spanning tree, each as likely as any other, by loop-erased random walks (Wilson 1996)."""
    tree: Tree = {room: [] for room in rooms}
    known = set(rooms)
    joined = {generator.choice(rooms)}
    for first in rooms:
        after: dict[Room, Room] = {}
        room = first
        while room not in joined:  # a later visit overwrites an earlier one: loops are erased
            after[room] = generator.choice(list(_neighbors(room, known)))
            room = after[room]
        room = first
        while room not in joined:
            _join(tree, room, after[room])
            joined.add(room)
            room = after[room]
    return tree


_GROWERS: dict[str, Callable[[list[Room], random.Random], Tree]] = {
    "depth_first": _grow_depth_first,
    "wilson": _grow_wilson,
}
