"""Tables fit the width of what they are printed on, and break between words alone."""

import io

import pytest
from rich.console import Console

from equilibria.run.cli.output import fit_table
from equilibria.run.cli.reproduce import WIDTH
from equilibria.run.cli.session import print_grid
from equilibria.run.studies import catalog
from equilibria.run.studies.pages import render
from equilibria.run.studies.runner import collect
from equilibria.run.studies.views import Grid


def printed(grid, width):
    console = Console(file=io.StringIO(), width=width)
    print_grid(grid, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


WIDE = Grid(
    title="Evaluations and times of all that was measured in one table, of which there is a lot",
    columns=["network", "seed", *(f"median evaluations, solver {k}" for k in range(14))],
    rows=[
        ["a-network-with-a-long-name", s, *(f"{1000.5 + k} ± 0.25" for k in range(14))]
        for s in range(3)
    ],
    lead=2,
)
NARROW = Grid(title="Two", columns=["a", "b"], rows=[["1", "2"]])
PROSE = Grid(
    title="Words",
    columns=["what", "why", "how much"],
    rows=[["one", " ".join(["because"] * 40), 1.5], ["two", "–", None]],
)


@pytest.mark.parametrize("width", [60, 80, WIDTH])
@pytest.mark.parametrize("grid", [WIDE, NARROW, PROSE], ids=["wide", "narrow", "prose"])
def test_a_table_is_no_wider_than_its_console_and_no_word_is_broken(grid, width):
    text = printed(grid, width)
    assert max(map(len, text.splitlines())) <= width
    words = {w for row in (grid.columns, *grid.rows) for cell in row for w in str(cell).split()}
    assert words - {"None"} <= {*text.split()}
    assert all(cell in text for row in grid.rows for cell in row if "±" in str(cell))
    assert "…" not in text


def test_parts_begin_with_what_a_row_is():
    text = printed(WIDE, 80)
    parts = text.split("(continued)")
    assert len(parts) > 1
    for part in parts:
        assert "network" in part and "seed" in part
        assert part.count("a-network-with-a-long-name") == 3


def test_what_is_short_is_not_broken():
    (table,) = fit_table(Console(width=100), "t", PROSE.columns, [["one", "word " * 40, "1.5"]])
    what, why, much = (column.width for column in table.columns)
    assert (what, much) == (4, 8) and why is not None and why > 70


@pytest.mark.parametrize("folder", ["bench/", "inexact/", "initialisation/"])
def test_no_heading_of_a_study_is_cut(folder, tmp_path):
    for name in catalog.names():
        if not name.startswith(folder):
            continue
        study = catalog.find(name)
        page = render(study, collect(study, tmp_path / "nothing.csv", "cpu"))
        for grid in page.grids:
            text = printed(grid, WIDTH)
            assert max(map(len, text.splitlines())) <= WIDTH, name
            assert {w for head in grid.columns for w in head.split()} <= {*text.split()}, name


def test_a_long_name_leaves_room_for_what_is_said_of_it():
    console = Console(width=60, file=io.StringIO())
    for table in fit_table(console, "", ["name", "value"], [["x" * 80, "1.25"]]):
        console.print(table)
    printed = console.file.getvalue()
    assert printed.count("x") == 80 and "1.25" in printed and "value" in printed
