"""`equilibria report`."""

import json
import os
import shutil
from pathlib import Path

import pytest

from equilibria.run.cli.main import main
from equilibria.run.data import DataError
from equilibria.zoo.vision.task import classification

pytestmark = pytest.mark.usefixtures("drawn_once")


@pytest.fixture(scope="module")
def trained(digits_run, shallow, tmp_path_factory):
    folder = Path(shutil.copytree(digits_run, tmp_path_factory.mktemp("report") / "digits"))
    assert main(["memory", str(folder)]) == 0
    assert main(["doctor", str(folder), "--samples", "10", "--starts", "1"]) == 0
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    """A copy that a test may spoil."""
    return Path(shutil.copytree(trained, tmp_path / "digits"))


@pytest.fixture
def report(folder, prints):
    """report(*words) -> the page of the run, and what was printed in lines that are not broken."""

    def run(*words):
        shown = prints("report", folder, *words).replace("\n", "")
        return (folder / "report.html").read_text(), shown

    return run


def test_one_run(folder, report):
    html, shown = report()
    assert str(folder / "report.html") in shown
    for text in (
        *("<h1>digits</h1>", "Accuracy", "Residual against evaluations", "How solves end"),
        *("Evaluations in each epoch", "Spectral radius", "Effect of depth", "width: 16", "torch"),
        *("Memory of one training step against depth", "The doctor’s findings"),
    ):
        assert text in html
    assert "://" not in html
    accuracy = json.loads((folder / "evaluation.json").read_text())["accuracy"]
    assert f"{100 * accuracy:.2f} %" in html


def test_several_runs_on_one_page(folder, tmp_path, prints, monkeypatch):
    other = Path(shutil.copytree(folder, tmp_path / "other" / "digits"))
    out = tmp_path / "pages" / "both.html"
    out.parent.mkdir()
    prints("report", folder, other, "--out", out)
    html = out.read_text()
    assert "2 runs compared" in html
    assert str(folder) in html and str(other) in html  # equal names are told apart by their paths
    assert not (folder / "report.html").exists()
    monkeypatch.chdir(tmp_path)  # where a comparison is written by itself
    prints("report", folder, other)
    assert "digits" in (tmp_path / "comparison.html").read_text()


def test_what_was_not_examined_is_examined(folder, report):
    stored = folder / "doctor.json"
    before = stored.read_text()
    report()
    assert stored.read_text() == before
    os.utime(stored, (0, 0))  # a copy that keeps no dates is still of these weights
    report()
    assert stored.read_text() == before
    of_others = {**json.loads(before), "weights": "0" * 64}  # as if training had gone on since
    stored.write_text(json.dumps(of_others))
    report()
    assert json.loads(stored.read_text())["samples"] > json.loads(before)["samples"]


def test_without_its_data_a_run_is_reported_without_findings(folder, report, monkeypatch):
    def load(*_, **__):
        raise DataError("the images are gone")

    monkeypatch.setattr(classification, "load", load)
    (folder / "doctor.json").unlink()
    html, shown = report()
    assert "the images are gone" in shown and "The doctor’s findings" not in html


def test_files_that_are_missing_are_done_without(folder, report):
    for name in ("memory.json", "evaluation.json", "run.json"):
        (folder / name).unlink()
    html, shown = report()
    assert "Memory of one training step" not in html and f"equilibria memory {folder}" in shown


@pytest.mark.parametrize("content", [b"{", b"\xff\x00", b"5"])
@pytest.mark.parametrize("name", ["memory.json", "run.json", "evaluation.json", "doctor.json"])
def test_a_damaged_file_is_named_and_leaves_the_last_page(folder, name, content, fails):
    page = folder / "report.html"
    page.write_text("the last page")
    (folder / name).write_bytes(content)
    assert f"{name} is damaged" in fails("report", folder)
    assert page.read_text() == "the last page"


def test_a_folder_without_a_finished_epoch_or_a_recipe_has_no_page(folder, fails):
    (folder / "metrics.jsonl").unlink()
    assert "has no finished epoch yet" in fails("report", folder)
    (folder / "recipe.yaml").unlink()
    assert "is not a run folder" in fails("report", folder)


def test_an_examination_is_announced_and_shows_its_stages(folder, capsys):
    (folder / "doctor.json").unlink()
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "has not been examined yet: the doctor examines it first" in printed.out
    assert "--no-doctor skips it" in printed.out
    for stage in ("1 of 5, solving the batch", "5 of 5, comparing the gradient"):
        assert stage in printed.err


def test_an_examination_can_be_skipped(folder, report):
    (folder / "doctor.json").unlink()
    html, shown = report("--no-doctor")
    assert "--no-doctor skipped it" in shown and not (folder / "doctor.json").exists()
    assert "The run was not examined: --no-doctor skipped it" in html
    assert "The doctor’s findings" not in html


def test_without_its_weights_a_run_is_reported_without_findings(folder, report):
    (folder / "doctor.json").unlink()
    (folder / "model.safetensors").unlink()
    html, shown = report()
    assert "reported without the doctor's findings" in shown
    assert "The run was not examined" in html


def test_an_evaluation_from_before_the_last_epoch_is_left_out(folder, report):
    evaluation = json.loads((folder / "evaluation.json").read_text())
    stale = evaluation | {"step": 1, "accuracy": 0.12345}
    (folder / "evaluation.json").write_text(json.dumps(stale))
    html, _ = report()
    assert "12.35 %" not in html and "There is no final evaluation" in html


def test_a_damaged_line_of_the_metrics_is_named_and_left_out(folder, capsys):
    path = folder / "metrics.jsonl"
    path.write_text("no\n" + path.read_text())
    assert main(["report", str(folder)]) == 0
    assert f"line 1 of {path} is damaged" in capsys.readouterr().err
