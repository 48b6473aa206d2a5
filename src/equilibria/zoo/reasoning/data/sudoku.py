"""Sudoku of any box shape: grids and puzzles with one solution, generated or read from a file.

A grid has n rows and n columns of n digits in boxes of `rows` by `columns`, n = rows x columns.
Grids that differ by a symmetry (relabeled digits, rows exchanged within a band, bands, columns
within a stack, stacks; rows with columns where boxes are square) are one grid in disguise, so that
whole classes of them are held out for the test. Of 4 digits there are two classes, of which one is
held out: what is tested there is new puzzles more than new grids. Of 6 digits there are 49 classes,
of which 16 are held out, with 22 % of the grids.
"""

from __future__ import annotations

import csv
import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from equilibria.run.data.dataset import Split
from equilibria.run.data.storage import DataError, read_errors

Grid = tuple[int, ...]
"""Digits 1 to n row by row; 0 in a puzzle is a cell to be filled."""


@dataclass(frozen=True)
class Boxes:
    """The shape of the boxes of a sudoku: 2 x 2 of the one with 4 digits, 2 x 3 of that with 6."""

    rows: int
    columns: int

    @property
    def digits(self) -> int:
        """Digits, rows and columns."""
        return self.rows * self.columns

    @functools.cached_property
    def units(self) -> tuple[tuple[int, int, int], ...]:
        """Row, column and box of each cell."""
        n = self.digits
        return tuple(
            (r, c, r // self.rows * self.rows + c // self.columns)
            for r, c in itertools.product(range(n), range(n))
        )


HELD_OUT = 0.2
"""Share of the classes of grids that are held out, about."""

SIZES = {4: Boxes(2, 2), 6: Boxes(2, 3), 9: Boxes(3, 3)}
"""The boxes of a sudoku of so many digits."""


class Search:
    """Depth-first search for the solutions of a puzzle, at the cell with the fewest candidates.

    Args:
        puzzle: its cells.
        boxes: their shape.
        generator: shuffles the digits tried at a cell; None for increasing order.
    """

    def __init__(
        self, puzzle: Sequence[int], boxes: Boxes, generator: random.Random | None = None
    ) -> None:
        self.boxes, self.generator = boxes, generator
        n = boxes.digits
        full = (1 << n) - 1
        self.grid = list(puzzle)
        self.free = [[full] * n for _ in range(3)]  # rows, columns, boxes: digits not used yet
        self.consistent = True
        for cell, digit in enumerate(puzzle):
            if digit:
                bit = 1 << (digit - 1)
                self.consistent &= bool(self._candidates(cell) & bit)
                self._flip(cell, bit)
        self.open = {cell for cell, digit in enumerate(puzzle) if not digit}

    def solutions(self) -> Iterator[Grid]:
        """Go through the solutions."""
        if not self.consistent:
            return
        if not self.open:
            yield tuple(self.grid)
            return
        cell, options, fewest = -1, 0, self.boxes.digits + 1
        for each in self.open:
            candidates = self._candidates(each)
            if (count := candidates.bit_count()) < fewest:
                cell, options, fewest = each, candidates, count
                if count <= 1:
                    break
        bits = [1 << k for k in range(self.boxes.digits) if options >> k & 1]
        if self.generator is not None:
            self.generator.shuffle(bits)
        self.open.remove(cell)
        for bit in bits:
            self.grid[cell] = bit.bit_length()
            self._flip(cell, bit)
            yield from self.solutions()
            self._flip(cell, bit)
        self.grid[cell] = 0
        self.open.add(cell)

    def _candidates(self, cell: int) -> int:
        row, column, box = self.boxes.units[cell]
        return self.free[0][row] & self.free[1][column] & self.free[2][box]

    def _flip(self, cell: int, bit: int) -> None:
        for used, unit in zip(self.free, self.boxes.units[cell], strict=True):
            used[unit] ^= bit


def is_unique(puzzle: Sequence[int], boxes: Boxes) -> bool:
    """Return whether a puzzle has exactly one solution."""
    return len(list(itertools.islice(Search(puzzle, boxes).solutions(), 2))) == 1


def draw_grid(boxes: Boxes, generator: random.Random) -> Grid:
    """Draw a full grid."""
    return next(Search([0] * boxes.digits**2, boxes, generator).solutions())


def remove_clues(grid: Grid, boxes: Boxes, clues: int, generator: random.Random) -> Grid:
    """Return a puzzle whose only solution is `grid`: clues go in random order while it stays one.

    Args:
        grid: the solution.
        boxes: their shape.
        clues: no clue goes once there are so few; a puzzle may keep more.
        generator: of the order.
    """
    puzzle = list(grid)
    cells = list(range(len(grid)))
    generator.shuffle(cells)
    left = len(cells)
    for cell in cells:
        if left <= clues:
            break
        puzzle[cell] = 0
        if is_unique(puzzle, boxes):
            left -= 1
        else:
            puzzle[cell] = grid[cell]
    return tuple(puzzle)


@functools.cache
def line_orders(boxes: Boxes) -> tuple[np.ndarray, np.ndarray]:
    """Return all orders of rows and all of columns that keep bands and stacks together.

    Returns:
        `(orders, n)` int64 each: which line each line is read from.
    """
    return _line_orders(boxes.rows, boxes.digits), _line_orders(boxes.columns, boxes.digits)


def _line_orders(size: int, lines: int) -> np.ndarray:
    """All orders of `lines` lines that keep groups of `size` together."""
    groups = range(lines // size)
    within = list(itertools.permutations(range(size)))
    orders = (
        [(group, line) for group, each in zip(order, chosen, strict=True) for line in each]
        for order in itertools.permutations(groups)
        for chosen in itertools.product(within, repeat=len(groups))
    )
    return np.array([[group * size + line for group, line in order] for order in orders])


@functools.cache
def symmetries(boxes: Boxes) -> np.ndarray:
    """Return the cell that each cell is read from, `(symmetries, cells)`, of all symmetries but
    the relabeling of digits: 128 for 4 digits, 3,456 for 6."""
    n = boxes.digits
    rows, columns = line_orders(boxes)
    cells = (rows[:, None, :, None] * n + columns[None, :, None, :]).reshape(-1, n, n)
    if boxes.rows == boxes.columns:
        cells = np.concatenate([cells, cells.transpose(0, 2, 1)])
    return cells.reshape(len(cells), n * n)


def normal_form(grid: Grid, boxes: Boxes) -> Grid:
    """Return the first grid, in the order of their digits, that a symmetry makes of `grid`."""
    seen = np.asarray(grid)[symmetries(boxes)]  # (symmetries, cells)
    labels = np.zeros((len(seen), boxes.digits + 1), dtype=seen.dtype)
    first = seen[:, : boxes.digits]  # a row has each digit once
    np.put_along_axis(labels, first, np.arange(1, boxes.digits + 1)[None], axis=1)
    seen = np.take_along_axis(labels, seen, axis=1)
    return tuple(int(x) for x in seen[np.lexsort(seen.T[::-1])[0]])


def is_held_out(grid: Grid, boxes: Boxes) -> bool:
    """Return whether a grid is for the test: it and all its symmetric copies, or none of them."""
    name = "".join(map(str, normal_form(grid, boxes)))
    return random.Random(f"held out {name}").random() < HELD_OUT


def draw_puzzles(digits: int, count: int, *, seed: int | str, clues: int, held_out: bool) -> Split:
    """Draw puzzles with one solution each, of grids for training or of those held out.

    Args:
        digits: 4 or 6.
        count: puzzles.
        seed: fixes them, on every machine.
        clues: see `remove_clues`.
        held_out: whether they are of the grids held out for the test; see `is_held_out`.

    Returns:
        The puzzles as `encode` has them.
    """
    boxes = SIZES[digits]
    generator = random.Random(f"sudoku {digits} {seed}")
    puzzles, grids = list[Grid](), list[Grid]()
    while len(puzzles) < count:
        grid = draw_grid(boxes, generator)
        if is_held_out(grid, boxes) == held_out:
            puzzles.append(remove_clues(grid, boxes, clues, generator))
            grids.append(grid)
    return encode(puzzles, grids, digits)


def permute(puzzles: Split, generator: np.random.Generator) -> Split:
    """Return a random symmetric copy of each puzzle, with its digits relabeled."""
    count, n = puzzles.targets.shape[:2]
    rows, columns = (
        each[generator.integers(len(each), size=count)] for each in line_orders(SIZES[n])
    )
    cells = (rows[:, :, None] * n + columns[:, None, :]).reshape(count, n * n)
    if SIZES[n].rows == SIZES[n].columns:
        turned = cells.reshape(count, n, n).transpose(0, 2, 1).reshape(count, n * n)
        cells = np.where(generator.random((count, 1)) < 0.5, turned, cells)
    chosen = torch.from_numpy(cells)
    labels = torch.from_numpy(generator.permuted(np.tile(np.arange(n), (count, 1)), axis=1))
    inputs = puzzles.inputs.flatten(2).gather(2, chosen[:, None].expand(-1, n, -1))
    targets = puzzles.targets.flatten(1).gather(1, chosen)
    inputs = torch.zeros_like(inputs).scatter_(1, labels[..., None].expand_as(inputs), inputs)
    targets = labels.gather(1, targets)
    return Split(inputs.view_as(puzzles.inputs), targets.view_as(puzzles.targets))


def count_rounds(inputs: torch.Tensor) -> torch.Tensor:
    """Return the rounds of deduction that each puzzle takes, `(count,)`, and one for each cell that
    they leave open.

    In a round, every cell loses the digits that are settled in its units, and takes the digit that
    has no other place in one of them: naked and hidden singles, all at once.

    Args:
        inputs: as `encode` has them.
    """
    digits = inputs.shape[1]
    member = torch.zeros(3 * digits, digits**2)  # of units: rows, columns, boxes
    for cell, numbers in enumerate(SIZES[digits].units):
        for kind, unit in enumerate(numbers):
            member[kind * digits + unit, cell] = 1
    given = inputs.flatten(2) > 0
    possible = torch.where(given.any(1, keepdim=True), given, True)  # (count, digits, cells)
    rounds = torch.zeros(len(inputs))
    while True:
        settled = possible & (possible.sum(1, keepdim=True) == 1)
        taken = (settled.float() @ member.T @ member > 0) & ~settled
        places = possible.float() @ member.T
        only = possible & ((places == 1).float() @ member > 0)
        left = torch.where(only.any(1, keepdim=True), only, possible & ~taken)
        changed = (left != possible).flatten(1).any(1)
        if not changed.any():
            return rounds + (possible.sum(1) > 1).sum(1)
        rounds += changed
        possible = left


def encode(puzzles: Sequence[Grid], grids: Sequence[Grid], digits: int) -> Split:
    """Return puzzles and their solutions as tensors.

    Returns:
        Inputs `(count, digits, digits, digits)` float32: channel d of a cell is 1 where d + 1 is
        given; targets `(count, digits, digits)` int64, digits from 0.
    """
    shape = (len(puzzles), digits, digits)
    given = torch.tensor(puzzles).view(shape)
    one_hot = torch.nn.functional.one_hot(given, digits + 1)[..., 1:].movedim(-1, 1)
    return Split(one_hot.float(), torch.tensor(grids).view(shape) - 1)


def read_puzzles(path: Path, count: int | None = None) -> Split:
    """Read puzzles of 9 digits from a CSV file with columns `question` and `answer`.

    Cells stand row by row, a dot or 0 for one to be filled, as in the files of sudoku-extreme.

    Args:
        path: the file.
        count: the first so many; None for all.

    Raises:
        DataError: there is no such file, a column is missing, a line holds no puzzle, or its answer
            is no full grid or has other digits than its question; the message names it.
    """
    puzzles, grids = list[Grid](), list[Grid]()
    damaged = (UnicodeDecodeError, csv.Error)
    with read_errors(path, *damaged), path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if missing := {"question", "answer"} - {*(rows.fieldnames or ())}:
            raise DataError(f"{path} has no column {', '.join(sorted(missing))}")
        for row in itertools.islice(rows, count):
            question, answer = (_parse(row[name]) for name in ("question", "answer"))
            if question is None or answer is None or 0 in answer:
                raise DataError(f"{path}, line {rows.line_num}: expected 81 digits, a dot if open")
            if not _fit(question, answer):
                raise DataError(
                    f"{path}, line {rows.line_num}: the answer does not solve the question"
                )
            puzzles.append(question)
            grids.append(answer)
    if not puzzles:
        raise DataError(f"{path} holds no puzzle")
    return encode(puzzles, grids, 9)


def _fit(question: Grid, answer: Grid) -> bool:
    """Whether an answer has each digit once in every row, column and box, and those given."""
    boxes = SIZES[9]
    seen = {
        (unit, place, digit)
        for places, digit in zip(boxes.units, answer, strict=True)
        for unit, place in enumerate(places)
    }
    given = zip(question, answer, strict=True)
    return len(seen) == 3 * len(answer) and all(digit in (0, found) for digit, found in given)


def _parse(text: str | None) -> Grid | None:
    digits = (text or "").strip().replace(".", "0")
    return tuple(map(int, digits)) if len(digits) == 81 and digits.isdecimal() else None
