"""What an evaluation tells: its loss by one name, and what it keeps beside the figures."""

import json
import re

import pytest
import torch
from torch.nn import functional

from equilibria.run import run
from equilibria.run.cli.main import main
from equilibria.run.data import DataError
from equilibria.zoo.vision.task.classification import ImageClassification

SMALL = ("--epochs", "1", "--model.width", "8", "--probes", "4", "--solver.rtol", "1e-2")


def test_the_confusion_of_classes_is_in_the_final_evaluation_alone(tmp_path):
    run = tmp_path / "run"
    assert main(["train", "digits", "--out", str(run), *SMALL]) == 0
    result = json.loads((run / "evaluation.json").read_text())
    matrix = torch.tensor(result["confusion"])
    assert matrix.shape == (10, 10) and int(matrix.sum()) == result["samples"]
    right = int(matrix.diagonal().sum())
    assert right / result["samples"] == result["accuracy"]
    assert "confusion" not in (run / "metrics.jsonl").read_text()
    (run / "evaluation.json").unlink()
    assert main(["evaluate", str(run)]) == 0
    assert json.loads((run / "evaluation.json").read_text())["confusion"] == result["confusion"]


def test_it_is_not_counted_for_very_many_classes():
    task = ImageClassification(data="digits").load()
    output, targets = torch.eye(10)[:3], torch.tensor([0, 1, 3])
    assert task.record(task.sums(None, output, targets))["confusion"][3][2] == 1
    task.classes = 101
    assert task.record(task.sums(None, output, targets)) == {}


# --- one word for one loss: training, evaluation, export and report call it the same --------------


FEW = ["--task.samples", "200", "--epochs", "1", "--model.width", "16"]
NAMES = {"0.1": "label-smoothed loss", "0": "loss"}


@pytest.mark.parametrize("smoothing", NAMES)
def test_the_loss_has_one_name_wherever_it_is_shown(
    smoothing, tmp_path, capsys, prints, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "160")
    folder, name = str(tmp_path / "run"), NAMES[smoothing]
    argv = ["train", "digits", "--out", folder, *FEW, "--task.label_smoothing", smoothing]
    trained = prints(*argv)
    evaluated = prints("evaluate", folder)
    exported = ["export", folder, "--format", "pt2", "--evals", "4", "--samples", "20"]
    assert main(exported) == 0
    shown = {
        "train": re.findall(r"epoch 1/1  ([\w -]*?loss) \d", trained),
        "evaluate": re.findall(r"^[ │]+([\w-]*? ?loss) +[│ ]", evaluated, re.MULTILINE),
        "export": re.findall(r"^[ │]+([\w-]*? ?loss) on 20", capsys.readouterr().out, re.MULTILINE),
    }
    assert shown == {command: [name] for command in shown}
    assert main(["report", folder, "--no-doctor", "--no-gallery", "--quiet"]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert f">{name}, train<" in page
    assert f">{name.capitalize()}<" in page  # the plot's title

    loaded = run.load(folder)
    (batch,) = loaded.data.batches("test", 1000)
    with torch.no_grad():
        output = loaded.model(batch.inputs).output
    told = json.loads((tmp_path / "run" / "evaluation.json").read_text())["loss"]
    smoothed = functional.cross_entropy(output, batch.targets, label_smoothing=float(smoothing))
    assert told == pytest.approx(float(smoothed), rel=1e-4)


# --- a split of a task that has no samples --------------------------------------------------------


class Empty:
    """A split without samples."""

    targets = torch.zeros(0, dtype=torch.int64)

    def __len__(self):
        return 0

    def __getitem__(self, index):
        return torch.zeros(0, 1, 8, 8), self.targets


def test_a_split_without_samples_is_an_error_that_names_it(make):
    trainer, _ = make()
    trainer.task.samples["test"] = Empty()
    with pytest.raises(DataError, match="the test split of Digits is empty"):
        trainer.evaluate("test")
