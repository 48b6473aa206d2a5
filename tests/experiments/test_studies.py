"""Every study there is: its grid, its views of nothing and of what was measured, its size."""

import csv
from pathlib import Path

import pytest

from equilibria.experiments import catalogue, pages, runner
from equilibria.experiments.data import Data
from equilibria.experiments.published import published
from equilibria.experiments.results import ORIGIN, read
from equilibria.experiments.views import NOT_RUN

RESULTS = Path(__file__).parents[2] / "results"
NAMES = catalogue.names()


def test_the_studies_of_all_papers_are_found():
    assert {name.partition("/")[0] for name in NAMES} == set(catalogue.ORDER) - {"solvers"}
    assert len(NAMES) >= 28


@pytest.mark.parametrize("name", NAMES)
def test_a_study_is_short_and_needs_no_data_to_be_read(name, monkeypatch):
    monkeypatch.setenv("EQUILIBRIA_DATA", "/nowhere")
    assert len(catalogue.source_of(name).read_text("utf-8").splitlines()) <= 150
    study = catalogue.find(name)
    for scale in ("cpu", "gpu"):
        points = runner.check(study, scale)
        assert points and all(point.minutes > 0 for point in points)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_not_measured_says_so(name, tmp_path):
    study = catalogue.find(name)
    page = pages.rendered(study, runner.collect(study, tmp_path / "none.csv"))
    assert page.grids
    text = [str(cell) for grid in page.grids for row in grid.rows for cell in row]
    assert NOT_RUN in text or not any(grid.rows for grid in page.grids) or study.paper
    for grid in page.grids:
        assert all(len(row) == len(grid.columns) for row in grid.rows)
    pages.picture(page, tmp_path / "empty.svg")
    assert "not run" in pages.markdown(name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_views_take_every_row_that_was_measured(name):
    path = RESULTS / f"{catalogue.rows_of(name)}.csv"
    if not path.exists():
        pytest.skip("not measured yet")
    study = catalogue.find(name)
    factors = [point.factors for point in runner.check(study, "cpu")]
    keys = list(dict.fromkeys(key for each in factors for key in each))
    rows = read(path, keys)
    assert len(Data.of(rows, factors).rows) == len(rows), "rows of points that the grid lacks"
    page = pages.rendered(study, runner.collect(study, path))
    for grid in page.grids:
        assert all(len(row) == len(grid.columns) for row in grid.rows)
    assert pages.markdown(name, RESULTS).count("\n|") >= sum(len(g.rows) for g in page.grids)


def test_results_hold_one_table_a_study_and_pictures_and_nothing_else():
    known = {catalogue.file_of(name) for name in NAMES}
    files = [path for path in RESULTS.iterdir() if path.is_file() and path.name[0] != "."]
    assert {path.stem for path in files} <= known
    assert {path.suffix for path in files} <= {".csv", ".svg"}
    assert sum(path.stat().st_size for path in files) < 6_000_000
    for path in files:
        if path.suffix == ".csv":
            with path.open(encoding="utf-8") as file:
                assert set(ORIGIN) <= set(next(csv.reader(file)))


def test_published_numbers_are_found_by_paper_and_item():
    rows = published("Bai et al. 2019", "Table 2")
    assert rows[-1] == {
        "row": "DEQ-TrellisNet",
        "size": "24M",
        "core": "20M",
        "perplexity": 57.1,
        "memory": 1.2,
    }
    with pytest.raises(LookupError, match="Table 9"):
        published("Bai et al. 2019", "Table 9")
