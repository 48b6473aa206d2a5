"""Instances of reasoning tasks: right answers, and test grids that training has never seen."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from equilibria.run.data.dataset import Split
from equilibria.run.data.storage import DataError
from equilibria.zoo.reasoning.data import mazes, sudoku, words
from equilibria.zoo.reasoning.data.drawing import part_of
from equilibria.zoo.reasoning.model.reasoner import ReasonerConfig
from equilibria.zoo.reasoning.task.reasoning import (
    GroupWords,
    Mazes,
    PrefixParity,
    ReasoningConfig,
    Sudoku,
)

# --- words ----------------------------------------------------------------------------------------


def test_a_parity_is_that_of_all_bits_up_to_its_place() -> None:
    drawn = words.draw_parities(50, 33, seed=3)
    bits = (drawn.inputs[:, 0] > 0).long()
    assert set(drawn.inputs.unique().tolist()) == {-1.0, 1.0}
    for place in (0, 1, 7, 32):
        assert torch.equal(drawn.targets[:, place], bits[:, : place + 1].sum(1) % 2)


def share_right(cell, head, drawn: Split, evals: int) -> float:
    """Of the places, after some evaluations of a cell that begin at 0."""
    with torch.no_grad():
        z = torch.zeros(len(drawn), 32, drawn.targets.shape[1])
        for _ in range(evals):
            z = cell(z, drawn.inputs)
        return float((head(z).argmax(1) == drawn.targets).double().mean())


def multiply_what_is_near(z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The product of all signs that have come to a place, one place farther an evaluation."""
    before = functional.pad(z[:, :1], (1, -1), value=1.0)
    first = functional.pad(u, (1, -1), value=-1.0)  # at z = 0 there is none: that of the input
    return torch.where(before == 0, first * u, -before * u).expand_as(z)


def read_sign(z: torch.Tensor) -> torch.Tensor:
    return torch.stack((z[:, 0], -z[:, 0]), 1)


@pytest.mark.parametrize("evals", [1, 2, 3, 5, 8, 13, 21, 39, 60])
@pytest.mark.parametrize("cell", ["untrained", "constructed"])
def test_k_evaluations_answer_k_plus_1_places_and_the_rest_by_chance(cell: str, evals: int) -> None:
    count, bits = 2000, 40
    drawn = words.draw_parities(count, bits, seed="bound")
    bound = words.bound_parities(evals, bits)
    error = (1 - bound) / count**0.5  # of strings, whose places beyond k + 1 may err together
    if cell == "constructed":
        found = share_right(multiply_what_is_near, read_sign, drawn, evals)
        assert abs(found - bound) <= 3 * error
        return
    torch.manual_seed(evals)
    model = ReasonerConfig(shape=(1, bits), classes=2).build()
    assert share_right(model.deq.cell, model.readout, drawn, evals) <= bound + 3 * error


@pytest.mark.parametrize(("group", "order"), [("S3", 6), ("S5", 120), ("A5", 60), ("Z60", 60)])
def test_a_multiplication_table_is_that_of_a_group(group: str, order: int) -> None:
    table = words.multiplication(group)
    everything = torch.arange(order)
    assert table.shape == (order, order)
    (unit,) = [a for a in range(order) if torch.equal(table[a], everything)]
    assert ((table == unit).sum(0) == 1).all() and ((table == unit).sum(1) == 1).all()
    a, b, c = torch.randint(order, (3, 1000), generator=torch.Generator().manual_seed(0))
    assert torch.equal(table[table[a, b], c], table[a, table[b, c]])


def test_words_are_multiplied_letter_by_letter() -> None:
    drawn = words.draw_words("S3", 20, 9, seed=1)
    table, letters = words.multiplication("S3"), drawn.inputs.argmax(1)
    assert torch.equal(drawn.targets[:, 0], letters[:, 0])
    for place in range(1, 9):
        expected = table[drawn.targets[:, place - 1], letters[:, place]]
        assert torch.equal(drawn.targets[:, place], expected)


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: words.draw_parities(4, 40, seed=seed),
        lambda seed: words.draw_words("A5", 4, 12, seed=seed),
        lambda seed: mazes.draw_mazes(4, 9, seed=seed),
        lambda seed: sudoku.draw_puzzles(4, 4, seed=seed, clues=4, held_out=False),
    ],
    ids=["parity", "words", "mazes", "sudoku"],
)
def test_a_seed_fixes_the_instances(draw) -> None:
    one, again, other = draw(5), draw(5), draw(6)
    assert torch.equal(one.inputs, again.inputs) and torch.equal(one.targets, again.targets)
    assert not torch.equal(one.inputs, other.inputs)


# --- mazes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["depth_first", "wilson", "mixed"])
@pytest.mark.parametrize("size", [5, 9, 17])
def test_the_marked_way_is_the_only_one(algorithm: str, size: int) -> None:
    drawn = mazes.draw_mazes(6, size, seed=2, algorithm=algorithm)
    rooms = (size // 2) ** 2
    for (wall, start, goal), way in zip(drawn.inputs, drawn.targets, strict=True):
        free = wall == 0
        # A spanning tree of the rooms: all rooms, and one door fewer.
        assert int(free.sum()) == 2 * rooms - 1
        assert start.sum() == goal.sum() == 1 and not (start * goal).any()
        assert not (way.bool() & ~free).any()
        steps = {tuple(cell) for cell in way.nonzero().tolist()}
        ends = {tuple(x.nonzero()[0].tolist()) for x in (start, goal)}
        beside = {
            (r, c): len({(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)} & steps) for r, c in steps
        }
        assert all(beside[cell] == (1 if cell in ends else 2) for cell in steps) and ends <= steps


def test_the_rounds_of_a_maze_are_the_depth_of_its_dead_ends() -> None:
    drawn = mazes.draw_mazes(12, 13, seed=4)
    for wall, way, rounds in zip(
        drawn.inputs[:, 0], drawn.targets, mazes.count_rounds(drawn.inputs), strict=True
    ):
        free = {tuple(cell) for cell in (wall == 0).nonzero().tolist()}
        reached, depth = {tuple(cell) for cell in way.nonzero().tolist()}, 0
        while reached != free:
            beside = {
                (r + i, c + j) for r, c in reached for i, j in ((0, 1), (1, 0), (0, -1), (-1, 0))
            }
            reached, depth = reached | (beside & free), depth + 1
        assert depth == rounds


# --- sudoku ---------------------------------------------------------------------------------------


def is_valid(grid: torch.Tensor, boxes: sudoku.Boxes) -> bool:
    every = set(range(boxes.digits))
    parts = (
        *grid,
        *grid.T,
        *(
            block.flatten()
            for band in grid.split(boxes.rows)
            for block in band.split(boxes.columns, 1)
        ),
    )
    return all(set(part.tolist()) == every for part in parts)


@pytest.mark.parametrize("digits", [4, 6])
def test_a_puzzle_has_one_solution_which_is_its_target(digits: int) -> None:
    boxes = sudoku.SIZES[digits]
    drawn = sudoku.draw_puzzles(digits, 12, seed=0, clues=0, held_out=False)
    for given, grid in zip(drawn.inputs, drawn.targets, strict=True):
        puzzle = ((given.argmax(0) + 1) * given.amax(0).long()).flatten().tolist()
        solutions = list(itertools.islice(sudoku.Search(puzzle, boxes).solutions(), 2))
        assert is_valid(grid, boxes)
        assert solutions == [tuple((grid + 1).flatten().tolist())]


def test_there_are_288_grids_of_four_digits_in_two_classes() -> None:
    boxes = sudoku.SIZES[4]
    grids = list(sudoku.Search([0] * 16, boxes).solutions())
    assert len(set(grids)) == 288
    classes = {sudoku.normal_form(grid, boxes) for grid in grids}
    assert len(classes) == 2 and classes <= set(grids)


@pytest.mark.parametrize("digits", [4, 6, 9])
def test_symmetric_copies_have_one_normal_form(digits: int) -> None:
    boxes, generator = sudoku.SIZES[digits], np.random.default_rng(0)
    grid = sudoku.draw_grid(boxes, random.Random(digits))
    split = sudoku.encode([grid] * 6, [grid] * 6, digits)
    copies = sudoku.permute(split, generator)
    assert len({tuple(copy.flatten().tolist()) for copy in copies.targets}) > 1
    for given, copy in zip(copies.inputs, copies.targets, strict=True):
        assert is_valid(copy, boxes) and torch.equal(given.argmax(0), copy)
        if digits < 9:  # a few million symmetries of 9 digits are not gone through
            copied = tuple((copy + 1).flatten().tolist())
            assert sudoku.normal_form(copied, boxes) == sudoku.normal_form(grid, boxes)


@pytest.mark.parametrize("digits", [4, 6])
def test_no_grid_of_the_test_has_a_copy_in_training(digits: int) -> None:
    boxes = sudoku.SIZES[digits]
    seen = {}
    for held_out in (False, True):
        drawn = sudoku.draw_puzzles(digits, 30, seed=1, clues=8, held_out=held_out)
        grids = (tuple((grid + 1).flatten().tolist()) for grid in drawn.targets)
        seen[held_out] = {sudoku.normal_form(grid, boxes) for grid in grids}
    assert seen[True] and seen[False] and not seen[True] & seen[False]


def test_a_copy_is_as_hard_as_its_puzzle() -> None:
    drawn = sudoku.draw_puzzles(6, 8, seed=3, clues=0, held_out=False)
    copies = sudoku.permute(drawn, np.random.default_rng(1))
    for measure in (lambda x: x.sum((1, 2, 3)), sudoku.count_rounds):
        assert torch.equal(measure(drawn.inputs), measure(copies.inputs))
    assert len(set(sudoku.count_rounds(drawn.inputs).tolist())) > 1


def test_rounds_of_deduction() -> None:
    full = torch.tensor([[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]])

    def count(*open_: int) -> float:
        puzzle = [0 if cell in open_ else digit for cell, digit in enumerate(full.flatten())]
        drawn = sudoku.encode([tuple(map(int, puzzle))], [tuple(full.flatten().tolist())], 4)
        return float(sudoku.count_rounds(drawn.inputs))

    assert count() == 0
    assert count(0) == count(0, 15) == 1  # apart from one another: at once
    assert count(*range(16)) == 16  # nothing to deduce from: a cell at a time
    assert count(*range(8)) > count(*range(4))


GRID = "".join(
    str((3 * (row % 3) + row // 3 + column) % 9 + 1) for row in range(9) for column in range(9)
)


def test_puzzles_of_nine_digits_are_read_from_csv(tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    path.write_text(f"source,question,answer,rating\nx,{'.' * 80}{GRID[-1]},{GRID},0\n" * 1)
    read = sudoku.read_puzzles(path)
    assert read.inputs.shape == (1, 9, 9, 9) and read.inputs.sum() == 1
    assert "".join(str(x + 1) for x in read.targets.flatten().tolist()) == GRID


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("question,solution\n", "no column answer"),
        ("question,answer\n", "no puzzle"),
        (f"question,answer\n{GRID},{GRID[:-1]}\n", "line 2"),
        (f"question,answer\n{GRID},{GRID}\n{GRID},{'.' * 81}\n", "line 3"),
    ],
    ids=["column", "empty", "short", "open answer"],
)
def test_what_is_no_file_of_puzzles_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "test.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        sudoku.read_puzzles(path)


def test_a_missing_file_of_puzzles_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"test\.csv cannot be read: No such file"):
        sudoku.read_puzzles(tmp_path / "test.csv")


@pytest.mark.parametrize(
    ("answer", "message"),
    [(GRID[1] + GRID[0] + GRID[2:], "line 2.*does not solve"), (GRID[9:] + GRID[:9], "line 2")],
    ids=["no grid", "another grid"],
)
def test_an_answer_that_does_not_solve_its_question_is_refused(
    tmp_path: Path, answer: str, message: str
) -> None:
    path = tmp_path / "test.csv"
    path.write_text(f"question,answer\n{GRID[:20]}{'.' * 61},{answer}\n")
    with pytest.raises(DataError, match=message):
        sudoku.read_puzzles(path)


# --- splits ---------------------------------------------------------------------------------------


def rows_of(split: Split) -> set[bytes]:
    return {x.numpy().tobytes() for x in split.inputs}


SEEDS = (0, 1, 2, 4094, 4095, 4096, 2**32, 2**32 + 1)


@pytest.mark.parametrize(
    "config",
    [PrefixParity(), GroupWords(size=5), Mazes(), PrefixParity(data_seed=4096)],
    ids=["parity", "words", "mazes", "other data"],
)
def test_no_instance_of_valid_and_test_occurs_in_training(config: ReasoningConfig) -> None:
    valid, test = (rows_of(config.draw(100, split, config.size)) for split in ("valid", "test"))
    assert not valid & test
    for seed in SEEDS:
        for step in (0, 1, 4096):
            assert not rows_of(config.draw_batch(64, step, seed)) & (valid | test)


@pytest.mark.parametrize(
    "config", [PrefixParity(size=64), GroupWords(size=32)], ids=["parity", "words"]
)
def test_no_two_draws_have_an_instance_in_common(config: ReasoningConfig) -> None:
    draws = [config.draw(8, split, config.size) for split in ("valid", "test", "test-64")]
    draws += [replace(config, data_seed=seed).draw(8, "test", config.size) for seed in SEEDS[1:]]
    draws += [config.draw_batch(8, step, seed) for seed in SEEDS for step in (0, 1, 2, 4096, 2**32)]
    assert len(set.union(*map(rows_of, draws))) == 8 * len(draws)


def test_what_is_held_out_is_a_tenth_of_the_strings_and_as_often_odd() -> None:
    strings = np.array(list(itertools.product((0, 1), repeat=16)), dtype=np.uint8)
    parts = np.array([part_of(each.tobytes()) for each in strings])
    for part in ("valid", "test"):
        chosen = strings[parts == part]
        assert abs(len(chosen) / len(strings) - 0.1) < 0.005
        assert (np.abs((chosen.cumsum(1) % 2).mean(0) - 0.5) < 0.025).all()


def test_few_strings_are_all_in_every_split() -> None:
    config = PrefixParity(size=1)
    assert len(rows_of(config.draw(50, "test", 1))) == 2
    assert len(rows_of(config.draw_batch(50, 0, 0))) == 2


@pytest.mark.parametrize(
    ("config", "classes"),
    [
        (PrefixParity(size=2, larger=(), test=1), 2),
        (GroupWords(group="S5", size=3, larger=(), test=3), 120),
        (Mazes(size=5, larger=(), test=1), 2),
        (Sudoku(size=4, test=1), 4),
    ],
    ids=["parity", "words", "mazes", "sudoku"],
)
def test_classes_are_those_of_the_task_whatever_is_drawn(
    config: ReasoningConfig, classes: int
) -> None:
    assert config.load().classes == config.classes == classes


@pytest.mark.parametrize("options", [{"begin": 0}, {"begin": 99}, {"curriculum": -1}])
def test_impossible_curricula_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        GroupWords(**options)


def write_puzzles(path: Path, shifts: range) -> str:
    """Puzzles of 9 digits, each with other digits."""
    lines = ["question,answer"]
    for shift in shifts:
        grid = "".join(str((int(x) - 1 + shift) % 9 + 1) for x in GRID)
        lines.append(f"{grid[:70]}{'.' * 11},{grid}")
    path.write_text("\n".join(lines))
    return str(path)


def test_nine_digits_are_evaluated_on_disjoint_halves_of_a_file(tmp_path: Path) -> None:
    files = {
        "train_file": write_puzzles(tmp_path / "train.csv", range(3)),
        "test_file": write_puzzles(tmp_path / "test.csv", range(3, 9)),
    }
    config = Sudoku(size=9, **files)
    valid, test = (rows_of(config.draw(5, split, 9)) for split in ("valid", "test"))
    assert len(valid) == len(test) == 3 and not valid & test
    assert rows_of(config.draw(5, "test", 9)) == test
    assert len(config.draw_batch(4, 0, 0)) == 4


def test_one_file_for_training_and_test_is_refused(tmp_path: Path) -> None:
    files = {f"{name}_file": tmp_path / f"{name}.csv" for name in ("train", "test")}
    config = Sudoku(size=9, **{k: write_puzzles(path, range(3)) for k, path in files.items()})
    with pytest.raises(DataError, match=r"train\.csv and .*test\.csv have the same content"):
        config.load()
    write_puzzles(files["test_file"], range(4, 5))
    with pytest.raises(DataError, match="holds one puzzle"):
        replace(config).load()
    files["train_file"].unlink()
    with pytest.raises(DataError, match=r"train\.csv cannot be read"):
        replace(config).load()
