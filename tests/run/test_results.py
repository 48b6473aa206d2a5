"""A study's CSV file, and what its views read of it."""

import dataclasses
import math

import pytest

from equilibria.run.report.panel import Panel
from equilibria.run.studies.results import LEGACY, Data, Origin, ResultsError, read, replace_point
from equilibria.run.studies.views import NOT_RUN, Chart, Lines, Pivot, Table, count, mean, spread

ORDER = [{"net": net, "seed": seed} for net in ("a", "b") for seed in (0, 1)]
ORIGIN = Origin(commit="c0", versions="torch 2", hardware="2 cores", threads=1, date="2026-01-01")


def put(path, factors, rows, identity="i0", origin=ORIGIN):
    replace_point(path, ORDER, factors, rows, identity=identity, origin=origin, seconds=1.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.csv"


def data_of(path):
    return Data.of(read(path, ("net", "seed")), ORDER)


def test_figures_come_back_as_they_were(path):
    rows = [
        {"big": 123456789, "inf": math.inf, "nan": math.nan, "word": "diverged, at 3"},
        {"epoch": 1, "loss": 0.123456789},
        {"epoch": 2, "loss": -math.inf},
    ]
    put(path, ORDER[0], rows)
    data = data_of(path)
    head = data.get(net="a", seed=0)
    assert head["big"] == 123456789 and head["inf"] == math.inf and head["word"] == "diverged, at 3"
    assert head["nan"] != head["nan"]
    assert data.series("epoch")["loss"].tolist() == [0.123456789, -math.inf]
    assert set(data.rows["_commit"]) == {"c0"}  # of every row of the point


def test_points_stand_in_the_order_of_the_grid_and_are_replaced_whole(path):
    put(path, ORDER[2], [{"x": 3}])
    put(path, ORDER[0], [{"x": 1}, {"epoch": 1, "y": 5}, {"epoch": 2, "y": 6}])
    put(path, ORDER[0], [{"x": 9}, {"epoch": 1, "y": 7}], identity="i1")
    data = data_of(path)
    assert data.points["done"].tolist() == [True, False, True, False]
    assert data.points["x"].dropna().tolist() == [9, 3]
    assert data.series("epoch")["y"].tolist() == [7]
    assert data.points["_identity"].dropna().tolist() == ["i1", "i0"]


def test_rows_of_other_points_are_kept_on_disk_and_not_shown(path):
    put(path, {"net": "gone", "seed": 0}, [{"x": 1}])
    put(path, ORDER[0], [{"x": 2}])
    assert data_of(path).rows["x"].tolist() == [2]
    assert "gone" in path.read_text()


def test_a_table_that_a_spreadsheet_has_saved_keeps_its_rows(path):
    for number in (0, 1):
        put(path, ORDER[number], [{"x": number}])
    path.write_text(path.read_text("utf-8").replace("\n", "\r\n"), "utf-8-sig")
    put(path, ORDER[1], [{"x": 5}])
    assert data_of(path).points["x"].tolist()[:2] == [0, 5]


@pytest.mark.parametrize(
    "content", ["", "a,b\n1,2\n", 'net,_identity,_commit\na,"i,c\n', "net,_identity,_commit\na\n"]
)
def test_a_file_that_is_no_table_of_a_study_is_named(path, content):
    path.write_text(content)
    with pytest.raises(ResultsError, match=r"s\.csv"):
        read(path, ("net",))


def table(path):
    put(path, ORDER[0], [{"x": 1.0}, {"epoch": 1, "y": 1.0}, {"epoch": 2, "y": 3.0}])
    put(path, ORDER[1], [{"x": 3.0}, {"epoch": 1, "y": 3.0}, {"epoch": 2, "y": 7.0}])
    return data_of(path)


def test_a_pivot_merges_seeds_and_says_what_was_not_run(path):
    pivot = Pivot(
        title="t",
        index={"net": "network"},
        values={"x": mean("x"), "spread": spread("x"), "seeds": count("x")},
        words={"net": {"a": "A"}},
        above=[["paper", 5]],
    )
    grid = pivot.render(table(path))
    assert list(grid.columns) == ["network", "x", "spread", "seeds"]
    assert grid.rows == [
        ["paper", 5, None, None],
        ["A", 2.0, "2.0 ± 1.4", "2 of 2"],
        ["b", NOT_RUN, None, None],
    ]


def test_levels_stand_side_by_side(path):
    pivot = Pivot(title="t", index={"net": "net"}, across="seed", values={"x at {level}": "x"})
    grid = pivot.render(table(path))
    assert list(grid.columns) == ["net", "x at 0", "x at 1"]
    assert grid.rows == [["a", 1.0, 3.0], ["b", NOT_RUN, NOT_RUN]]


def test_a_pivot_of_rows_says_what_was_not_run(path):
    pivot = Pivot(title="t", index={"net": "", "epoch": ""}, each="epoch", values={"y": mean("y")})
    assert pivot.render(table(path)).rows == [["a", 1, 2.0], ["a", 2, 5.0], ["b", None, NOT_RUN]]


def test_missing_cells_of_a_table_are_filled_up():
    made = Table(title="t", columns=["a", "b"], rows=lambda data: [["x"]])
    assert made.render(Data.of(read_nothing(), ORDER)).rows == [["x", None]]


def read_nothing():
    from pathlib import Path

    return read(Path("nowhere.csv"), ("net", "seed"))


def test_lines_merge_rows_at_the_same_place_and_shade_their_range(path):
    chart = Chart(
        title="t",
        x="epoch",
        y="y",
        marks=[Lines(x="epoch", y="y", by=["net"], band=True, scale=10, colors={"a": 4})],
    )
    panel = chart.render(table(path))
    assert isinstance(panel, Panel)
    (line,) = panel.series
    assert (line.label, line.color) == ("a", 4)
    assert (list(line.x), list(line.y)) == ([1, 2], [20.0, 50.0])
    assert (list(line.low), list(line.high)) == ([10.0, 30.0], [30.0, 70.0])


def test_lines_of_nothing_are_none(path):
    chart = Chart(title="t", x="", y="", marks=[Lines(x="epoch", y="y")])
    assert not chart.render(data_of(path)).series


def test_legacy_is_no_identity():
    assert len(LEGACY) != 16  # the length of every checksum


# --- factors, and where rows come from -----------------------------------------------------------

FACTORS = [1 / 3, 0.1 + 0.2, 1234567890123, 1234567890124, True, None]
FACTORS += ["all", "a,\r\nb", "1e-7", "é"]


def test_points_of_any_factor_are_found_again(path):
    order = [{"x": x} for x in FACTORS]
    for number, each in enumerate(order):
        rows = [{"y": number}, {"epoch": 1, "text": "two\rlines"}]
        replace_point(path, order, each, rows, identity="i0", origin=ORIGIN, seconds=1.0)
    data = Data.of(read(path, ("x",)), order)
    assert data.points["y"].tolist() == list(range(len(FACTORS)))
    assert data.rows["x"].tolist() == [x for x in FACTORS for _ in range(2)]
    assert data.series("epoch", x=1 / 3)["text"].tolist() == ["two lines"]


def test_text_that_looks_like_a_number_is_the_factor_of_the_grid(path):
    order = [{"x": "1"}, {"x": "2.10"}]
    for each in order:
        rows = [{"epoch": 1}]
        replace_point(path, order, each, rows, identity="i0", origin=ORIGIN, seconds=1.0)
    assert len(Data.of(read(path, ("x",)), order).series("epoch", x="2.10")) == 1


def test_a_point_without_a_training_has_not_that_of_the_point_before(path):
    for factors, trained in zip(ORDER, (["c1"], []), strict=False):
        replace_point(
            path, ORDER, factors, [{"x": 1}, {"epoch": 1}],
            identity="i0", origin=ORIGIN, seconds=1.0, trained=trained,
        )  # fmt: skip
    trained = read(path, ("net", "seed"))["_trained"]
    assert trained.tolist()[:2] == ["c1", "c1"] and trained.isna().tolist()[2:] == [True, True]


@pytest.mark.parametrize("identity", ["1234567890123456", "12345678901234e5", "0000000000000012"])
def test_an_identity_of_digits_stays_text(path, identity):
    put(path, ORDER[0], [{"x": 1}], identity=identity)
    assert data_of(path).points["_identity"][0] == identity


def test_a_table_from_before_generations_were_counted_is_of_the_first(path):
    put(path, ORDER[0], [{"x": 1}, {"epoch": 1}])
    lines = [line.rpartition(",")[0] for line in path.read_text().splitlines()]
    assert lines[0].endswith("_trained")
    path.write_text("\n".join(lines) + "\n")
    put(path, ORDER[1], [{"x": 2}], origin=dataclasses.replace(ORIGIN, generation=2))
    assert data_of(path).rows["_generation"].tolist() == [1, 1, 2]


def test_a_row_of_zeros_was_run(path):
    put(path, ORDER[0], [{"x": 0}])
    view = Pivot(title="", index={"seed": "seed"}, values={"x": "x"}, where={"net": "a"})
    assert view.render(data_of(path)).rows == [[0, 0], [1, NOT_RUN]]
