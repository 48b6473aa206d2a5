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


def test_one_run(folder, capsys):
    assert main(["report", str(folder)]) == 0
    html = (folder / "report.html").read_text()
    assert str(folder / "report.html") in capsys.readouterr().out.replace("\n", "")
    for text in (
        "<h1>digits</h1>",
        "Accuracy",
        "Residual against evaluations",
        "Evaluations in each epoch",
        "How solves end",
        "Spectral radius",
        "Memory of one training step against depth",
        "Effect of depth",
        "The doctor’s findings",
        "width: 16",
        "torch",
    ):
        assert text in html
    assert "://" not in html
    accuracy = json.loads((folder / "evaluation.json").read_text())["accuracy"]
    assert f"{100 * accuracy:.2f} %" in html


def test_several_runs_on_one_page(folder, tmp_path):
    other = Path(shutil.copytree(folder, tmp_path / "other" / "digits"))
    out = tmp_path / "pages" / "both.html"
    out.parent.mkdir()
    assert main(["report", str(folder), str(other), "--out", str(out)]) == 0
    html = out.read_text()
    assert "2 runs compared" in html
    assert str(folder) in html and str(other) in html  # equal names are told apart by their paths
    assert not (folder / "report.html").exists()


def test_comparison_goes_to_the_working_directory(folder, tmp_path, monkeypatch):
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(folder), str(other)]) == 0
    assert "digits" in (tmp_path / "comparison.html").read_text()


def test_what_was_not_examined_is_examined(folder):
    stored = folder / "doctor.json"
    before = stored.read_text()
    assert main(["report", str(folder)]) == 0
    assert stored.read_text() == before
    os.utime(stored, (0, 0))  # a copy that keeps no dates is still of these weights
    assert main(["report", str(folder)]) == 0
    assert stored.read_text() == before
    of_others = {**json.loads(before), "weights": "0" * 64}  # as if training had gone on since
    stored.write_text(json.dumps(of_others))
    assert main(["report", str(folder)]) == 0
    assert json.loads(stored.read_text())["samples"] > json.loads(before)["samples"]


def test_without_its_data_a_run_is_reported_without_findings(folder, monkeypatch, capsys):
    def load(*_, **__):
        raise DataError("the images are gone")

    monkeypatch.setattr(classification, "load", load)
    (folder / "doctor.json").unlink()
    assert main(["report", str(folder)]) == 0
    assert "the images are gone" in capsys.readouterr().out
    assert "The doctor’s findings" not in (folder / "report.html").read_text()


def test_files_that_are_missing_are_done_without(folder, capsys):
    for name in ("memory.json", "evaluation.json", "run.json"):
        (folder / name).unlink()
    assert main(["report", str(folder)]) == 0
    assert "Memory of one training step" not in (folder / "report.html").read_text()
    assert f"equilibria memory {folder}" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "there is no run folder"),
        (lambda folder: (folder / "recipe.yaml").unlink(), "is not a run folder"),
        (lambda folder: (folder / "memory.json").write_text("{"), "memory.json is damaged"),
        (lambda folder: (folder / "run.json").write_bytes(b"\xff\x00"), "run.json is damaged"),
        (lambda folder: (folder / "run.json").write_text("[]"), "run.json is damaged"),
        (
            lambda folder: (folder / "evaluation.json").write_text('{"accuracy"'),
            "evaluation.json is damaged",
        ),
        (lambda folder: (folder / "doctor.json").write_text("{}"), "doctor.json is damaged"),
        (lambda folder: (folder / "doctor.json").write_text("{"), "doctor.json is damaged"),
        (lambda folder: (folder / "metrics.jsonl").unlink(), "has no finished epoch yet"),
    ],
)
def test_a_bad_run_leaves_the_last_page(folder, spoil, message, capsys):
    page = folder / "report.html"
    page.write_text("the last page")
    spoil(folder)
    assert main(["report", str(folder)]) == 1
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1
    assert not folder.exists() or page.read_text() == "the last page"


def test_an_examination_is_announced_and_shows_its_stages(folder, capsys):
    (folder / "doctor.json").unlink()
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "has not been examined yet: the doctor examines it first" in printed.out
    assert "--no-doctor skips it" in printed.out
    for stage in ("1 of 5, solving the batch", "5 of 5, comparing the gradient"):
        assert stage in printed.err


def test_an_examination_can_be_skipped(folder, capsys):
    (folder / "doctor.json").unlink()
    assert main(["report", str(folder), "--no-doctor"]) == 0
    printed = capsys.readouterr()
    assert "--no-doctor skipped it" in printed.out and "Examining" not in printed.err
    assert not (folder / "doctor.json").exists()
    html = (folder / "report.html").read_text()
    assert "The run was not examined: --no-doctor skipped it" in html
    assert "The doctor’s findings" not in html


def test_without_its_weights_a_run_is_reported_without_findings(folder, capsys):
    (folder / "doctor.json").unlink()
    (folder / "model.safetensors").unlink()
    assert main(["report", str(folder)]) == 0
    assert "reported without the doctor's findings" in capsys.readouterr().out
    assert "The run was not examined" in (folder / "report.html").read_text()


def test_an_evaluation_from_before_the_last_epoch_is_left_out(folder):
    evaluation = json.loads((folder / "evaluation.json").read_text())
    stale = evaluation | {"step": 1, "accuracy": 0.12345}
    (folder / "evaluation.json").write_text(json.dumps(stale))
    assert main(["report", str(folder)]) == 0
    html = (folder / "report.html").read_text()
    assert "12.35 %" not in html and "There is no final evaluation" in html


def test_a_damaged_line_of_the_metrics_is_named_and_left_out(folder, capsys):
    path = folder / "metrics.jsonl"
    path.write_text("no\n" + path.read_text())
    assert main(["report", str(folder)]) == 0
    assert f"line 1 of {path} is damaged" in capsys.readouterr().err


def test_mistakes_end_in_one_message(folder, capsys):
    assert main(["report"]) == 1
    assert main(["report", str(folder), str(folder)]) == 1
    assert "a run is named twice" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to(folder, capsys):
    assert main(["report", str(folder), "--out", str(folder / "nowhere" / "page.html")]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
