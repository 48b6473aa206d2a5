"""What a final evaluation keeps of the sums beside the figures, and an epoch does not."""

import json

import torch

from equilibria.run.cli.main import main
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
