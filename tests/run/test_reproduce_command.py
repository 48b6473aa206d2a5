"""`equilibria reproduce` with studies of one's own, that change and that are not right."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from equilibria.run.cli.main import main
from equilibria.run.studies import catalog, pages, runner
from equilibria.run.studies.study import Study

pytestmark = pytest.mark.usefixtures("few_digits")

PAGE = Path(__file__).parents[2] / "docs" / "reproduce.md"
OWN = PAGE.read_text("utf-8").partition("```python\n")[2].partition("```")[0]
"""The study of one's own that the page shows."""

TINY = OWN.replace('"--epochs=2"', '"--epochs=1", "--epoch_steps=2", "--task.samples=100"')


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TINY)
    return tmp_path


def test_a_study_of_ones_own_is_one_short_file(mine, prints):
    assert len(OWN.splitlines()) <= 35
    shown = prints("reproduce", "mine.py", "--only", "lr=0.005")
    assert "±" in shown and "not run" in shown
    shown = prints("reproduce", "mine.py", "--budget", "5")
    assert "not run" not in shown and "lr=0.005" not in shown  # measured before
    table = (mine / "results" / "mine.csv").read_text()
    assert table.count("test_accuracy") == 1 and len(table.splitlines()) == 1 + 4 * 2
    assert (mine / "results" / "mine.svg").read_text().startswith("<?xml")
    runs = [path for path in (mine / "runs" / "studies").iterdir() if path.is_dir()]
    assert len(runs) == 4


def test_a_measure_of_ones_own_that_changes_is_taken_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [
        "from equilibria.run.studies.study import Point, Study",
        "def measure(context): return {'y': 1}",
        "def points(scale): return [Point(factors={'x': 0}, measures=[measure])]",
        "STUDY = Study(title='t', description='d', points=points, views=[])",
    ]
    for title, y in (("t", 1), ("other words", 1), ("t", 2)):
        text = "\n".join(lines).replace("1}", f"{y}}}").replace("'t'", repr(title))
        (tmp_path / "mine.py").write_text(text)
        before = (tmp_path / "results/mine.csv").read_text() if y + len(title) > 2 else ""
        assert main(["reproduce", "mine.py"]) == 0
        table = (tmp_path / "results/mine.csv").read_text()
        assert table.splitlines()[1].startswith(f"0,{y},")
        assert (table == before) == (title == "other words")


def test_names_are_never_cut(monkeypatch, prints):
    find = catalog.find
    monkeypatch.setattr(
        catalog, "find", lambda name: replace(find(name), points=find("deq/growth").points)
    )
    monkeypatch.setenv("COLUMNS", "80")
    shown = prints("reproduce")
    assert all(name in shown for name in catalog.names())


def test_a_study_whose_file_is_broken_is_listed_with_its_error(monkeypatch, prints):
    names, studies = ["deq/growth", "deq/broken", "deq/tolerance"], []

    def find(name):
        if name == "deq/broken":
            raise NameError("name 'unknown' is not defined")
        studies.append(name)
        return Study(title="t", description="the others", points=lambda scale: [], views=[])

    monkeypatch.setattr(catalog, "names", lambda: names)
    monkeypatch.setattr(catalog, "find", find)
    shown = prints("reproduce", flat=True)
    assert studies == ["deq/growth", "deq/tolerance"] and shown.count("the others") == 2
    assert "cannot be run: " in shown and "NameError: name 'unknown' is not defined" in shown


def test_stale_rows_are_listed(prints):
    assert "deq/growth" in prints("reproduce", "deq/growth", "--stale")


def test_stale_rows_are_those_of_the_scale(monkeypatch, capsys, tmp_path):
    seen = []
    collect = runner.collect
    monkeypatch.setattr(runner, "collect", lambda *args: seen.append(args[1:]) or collect(*args))
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "deq/growth", "--stale", "--scale", "gpu"]) == 0
    assert seen == [(Path("results/gpu/deq-growth.csv"), "gpu")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["deq/grwth"], "deq/growth"),
        (["mine.py", "--only", "lr=9"], "--only"),
        (["nowhere.py"], "nowhere.py"),
        (["mine.py", "--budget", "-1"], "--budget must be 0 or more"),
        (["mine.py", "--threads", "0"], "--threads must be 1 or more"),
        (["mine.py", "--scale", "gpu"], "CUDA"),
        (["broken.py"], "broken.py"),
    ],
)
def test_what_cannot_be_run_is_named(mine, fails, words, message):
    (mine / "broken.py").write_text("STUDIES = 1\n")
    assert message in fails("reproduce", *words)
    assert not (mine / "results").exists()


def test_a_damaged_table_is_not_overwritten(mine, fails):
    (mine / "results").mkdir()
    (mine / "results" / "mine.csv").write_text("a,b\n1,2\n")
    assert "mine.csv" in fails("reproduce", "mine.py", "--budget", "1")
    assert (mine / "results" / "mine.csv").read_text() == "a,b\n1,2\n"


# --- `equilibria reproduce` on a study that changes, and on files and folders that are not right


MINE = """
from functools import partial
from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import Pivot

def measure(context, *, times):
    return {"y": times * context.factors["x"]}

STUDY = Study(
    title="Multiples",
    description="A number, twice.",
    points=lambda scale: [
        Point(factors={"x": x}, measures=[partial(measure, times=2)]) for x in (3, 4)
    ],
    views=[Pivot(title="Multiples", index={"x": "x"}, values={"y": "y"})],
)
"""


@pytest.fixture
def reproduce(tmp_path, monkeypatch, capsys):
    """Run the command on `mine.py`: reproduce(words) -> its status, what it printed, its errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "mine.py").write_text(MINE)

    def run(*words, file="mine.py"):
        status = main(["reproduce", file, *words])
        return status, *capsys.readouterr()

    return run


def test_rows_of_another_definition_are_stale_and_said_to_be_from_before(reproduce, tmp_path):
    assert reproduce()[0] == 0
    (tmp_path / "mine.py").write_text(MINE.replace("times=2", "times=5"))
    _, shown, _ = reproduce("--stale")
    line = next(line for line in shown.splitlines() if "mine.py" in line)
    assert "x=3, x=4" in line
    _, shown, _ = reproduce("--budget", "0")
    assert "Earlier results are shown for 2 points" in shown and "not run" not in shown
    _, shown, _ = reproduce("--only", "x=3")
    assert " 15 " in shown and " 8 " in shown and "not run" not in shown
    _, shown, _ = reproduce("--stale")
    assert "x=3" not in shown and "x=4" in shown


def test_rows_of_an_earlier_generation_of_the_core_are_counted_below_the_tables(
    reproduce, tmp_path
):
    _, shown, _ = reproduce()
    assert "generation" not in shown
    table = tmp_path / "results" / "mine.csv"
    rows = pd.read_csv(table)
    rows.loc[0, "_generation"] = 1
    rows.to_csv(table, index=False)
    _, shown, _ = reproduce("--budget", "0")
    assert "1 of 2 points measured by an earlier generation of the core" in shown
    page = pages.markdown("mine.py", table.parent)
    assert "1 of 2 points measured by an earlier generation" in page
    _, shown, _ = reproduce("--stale")
    assert "x=3" in shown and "x=4" not in shown


def test_studies_of_one_name_in_two_folders_have_their_own_tables(reproduce, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.py").write_text(MINE.replace("times=2", "times=5"))
    reproduce()
    reproduce(file="other/mine.py")
    assert "\n3,6," in (tmp_path / "results/mine.csv").read_text()
    assert "\n3,15," in (tmp_path / "results/other-mine.csv").read_text()
    assert catalog.file_of(str(tmp_path / "other" / "mine.py")) == "other-mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nSTUDY = (", "line 2: SyntaxError"),
        ("import nothing_of_that_name", "line 1: ModuleNotFoundError"),
        ("def f():\n    return 1 / 0\n\nSTUDY = f()", "line 2: ZeroDivisionError"),
        ("STUDY = 1", "defines no study"),
    ],
)
def test_a_mistake_in_ones_own_file_is_named_with_its_line(reproduce, tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    status, _, error = reproduce()
    assert status == 1 and "mine.py" in error and message in error and "defect" not in error


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    reproduce, tmp_path
):
    (tmp_path / "file").write_text("")
    status, shown, error = reproduce("--out", "file/results")
    assert status == 1 and "cannot write to --out file/results" in error and not shown


def test_half_a_pattern_is_completed(reproduce):
    status, _, error = reproduce("--only", "x")
    assert status == 1 and "FACTOR=VALUE" in error
    status, _, error = reproduce(file="jacobean/*")
    assert status == 1 and "'jacobian/*'" in error


def test_threads_are_set_and_recorded(reproduce, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert reproduce("--threads", "3")[0] == 0 and asked == [3]
    table = pd.read_csv(tmp_path / "results" / "mine.csv")
    assert set(table["_threads"]) == {torch.get_num_threads()}
    assert set(table["_command"]) == {"equilibria reproduce mine.py --threads 3"}
