"""Every study there is: its grid, its views of nothing and of what was measured, its size."""

import csv
from pathlib import Path

import pytest

from applications import needs
from equilibria.run.studies import catalog, pages, runner
from equilibria.run.studies.results import ORIGIN
from equilibria.run.studies.views import NOT_RUN
from papers.initialisation import solvers, wide
from papers.published import read_published

RESULTS = Path(__file__).parents[2] / "results"
NAMES = catalog.names()
APPLICATIONS = {"flow": "flow", "ernn": "recurrent", "representation": "signal"}
"""Papers whose studies all use one application."""


def test_the_studies_of_all_papers_are_found():
    assert {name.partition("/")[0] for name in NAMES} == set(catalog.ORDER) - {"solvers"}
    assert len(NAMES) >= 28


@pytest.fixture
def no_reaction(monkeypatch):
    """Predictions for symmetric weights without the reaction, which takes seconds each."""
    cached = solvers.critical, wide.critical, wide.field
    for each in cached:
        each.cache_clear()
    for module, name in (
        (solvers, "critical_scale"),
        (wide, "critical_scale"),
        (wide, "mean_field"),
    ):
        theory = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, of=theory, **given: of(*args, **given | {"reaction": False})
        )
    yield
    for each in cached:
        each.cache_clear()


@pytest.fixture
def shown(monkeypatch):
    """What pages show, in order: their data and what is rendered of them."""
    found, render = [], pages.render

    def render_whole(study, data):
        page = render(study, data)
        assert all(len(row) == len(grid.columns) for grid in page.grids for row in grid.rows)
        found.append((data, page))
        return page

    monkeypatch.setattr(pages, "render", render_whole)
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs(APPLICATIONS[paper]) if paper in APPLICATIONS else ())
        for name in NAMES
        for paper in [name.partition("/")[0]]
    ],
)
def test_a_study_shows_what_was_measured_and_what_was_not(
    name, monkeypatch, tmp_path, shown, no_reaction, unsaved
):
    monkeypatch.setenv("EQUILIBRIA_DATA", "/nowhere")
    assert len(catalog.source_of(name).read_text("utf-8").splitlines()) <= 400
    study = catalog.find(name)
    points = {scale: runner.check(study, scale) for scale in ("cpu", "gpu")}
    for each in points.values():
        assert each and all(point.minutes > 0 for point in each)
    monkeypatch.setattr(runner, "check", lambda study, scale: points[scale])  # seconds of some

    empty = pages.render(study, runner.collect(study, tmp_path / "none.csv"))
    assert empty.grids
    text = [str(cell) for grid in empty.grids for row in grid.rows for cell in row]
    assert NOT_RUN in text or not text or study.paper
    pages.picture(empty, tmp_path / "empty.svg")
    assert "not run" in pages.markdown(name, tmp_path)

    path = RESULTS / f"{catalog.rows_of(name)}.csv"
    if path.exists():
        page = pages.markdown(name, RESULTS)
        _, (data, measured) = shown
        with path.open(encoding="utf-8") as file:
            rows = sum(1 for _ in csv.reader(file)) - 1
        assert len(data.rows) == rows, "rows of points that the grid lacks"
        assert page.count("\n|") >= sum(len(grid.rows) for grid in measured.grids)


def test_results_hold_one_table_a_study_and_pictures_and_nothing_else():
    known = {catalog.file_of(name) for name in NAMES}
    files = [path for path in RESULTS.iterdir() if path.is_file() and path.name[0] != "."]
    assert {path.stem for path in files} <= known
    assert {path.suffix for path in files} <= {".csv", ".svg"}
    assert sum(path.stat().st_size for path in files) < 6_000_000
    for path in files:
        if path.suffix == ".csv":
            with path.open(encoding="utf-8") as file:
                # Tables that the first generation of the core wrote do not have its column.
                assert {*ORIGIN} - {"_generation"} <= {*next(csv.reader(file))}


def test_published_numbers_are_found_by_paper_and_item():
    rows = read_published("Bai et al. 2019", "Table 2")
    assert rows[-1] == {
        "row": "DEQ-TrellisNet",
        "size": "24M",
        "core": "20M",
        "perplexity": 57.1,
        "memory": 1.2,
    }
    with pytest.raises(LookupError, match="Table 9"):
        read_published("Bai et al. 2019", "Table 9")
