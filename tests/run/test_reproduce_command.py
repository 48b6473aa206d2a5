"""`equilibria reproduce` as a user meets it, with a study of one's own."""

from dataclasses import replace
from pathlib import Path

import pytest

from equilibria.run.cli import session
from equilibria.run.cli.main import main
from equilibria.run.studies import catalog
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


def test_a_study_of_ones_own_is_one_short_file(mine, capsys):
    assert len(OWN.splitlines()) <= 35
    assert main(["reproduce", "mine.py", "--only", "lr=0.005"]) == 0
    shown = capsys.readouterr().out
    assert "±" in shown and "not run" in shown
    assert main(["reproduce", "mine.py", "--budget", "5"]) == 0
    shown = capsys.readouterr().out
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


def test_names_are_never_cut(monkeypatch, capsys):
    find = catalog.find
    monkeypatch.setattr(
        catalog, "find", lambda name: replace(find(name), points=find("deq/growth").points)
    )
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["reproduce"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in catalog.names())


def test_a_study_whose_file_is_broken_is_listed_with_its_error(monkeypatch, capsys):
    names, studies = ["deq/growth", "deq/broken", "deq/tolerance"], []

    def find(name):
        if name == "deq/broken":
            raise NameError("name 'unknown' is not defined")
        studies.append(name)
        return Study(title="t", description="the others", points=lambda scale: [], views=[])

    monkeypatch.setattr(catalog, "names", lambda: names)
    monkeypatch.setattr(catalog, "find", find)
    assert main(["reproduce"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert studies == ["deq/growth", "deq/tolerance"] and shown.count("the others") == 2
    assert "cannot be run: " in shown and "NameError: name 'unknown' is not defined" in shown


def test_stale_rows_are_listed(capsys):
    assert main(["reproduce", "deq/growth", "--stale"]) == 0
    assert "deq/growth" in capsys.readouterr().out


def test_stale_rows_are_those_of_the_scale(monkeypatch, capsys, tmp_path):
    seen = []
    collect = session.collect
    monkeypatch.setattr(session, "collect", lambda *args: seen.append(args[1:]) or collect(*args))
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
def test_what_cannot_be_run_is_named(mine, capsys, words, message):
    (mine / "broken.py").write_text("STUDIES = 1\n")
    assert main(["reproduce", *words]) == 1
    assert message in capsys.readouterr().err
    assert not (mine / "results").exists()


def test_a_damaged_table_is_not_overwritten(mine, capsys):
    (mine / "results").mkdir()
    (mine / "results" / "mine.csv").write_text("a,b\n1,2\n")
    assert main(["reproduce", "mine.py", "--budget", "1"]) == 1
    assert "mine.csv" in capsys.readouterr().err
    assert (mine / "results" / "mine.csv").read_text() == "a,b\n1,2\n"
