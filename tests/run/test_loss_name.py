"""One word for one loss: training, evaluation, export and report call it the same."""

import json
import re

import pytest
import torch
from torch.nn import functional

from equilibria.run import run
from equilibria.run.cli.main import main

SMALL = ["--task.samples", "200", "--epochs", "1", "--model.width", "16"]
NAMES = {"0.1": "label-smoothed loss", "0": "loss"}


@pytest.mark.parametrize("smoothing", NAMES)
def test_the_loss_has_one_name_wherever_it_is_shown(smoothing, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    folder, name = str(tmp_path / "run"), NAMES[smoothing]
    argv = ["train", "digits", "--out", folder, *SMALL, "--task.label_smoothing", smoothing]
    assert main(argv) == 0
    trained = capsys.readouterr().out
    assert main(["evaluate", folder]) == 0
    evaluated = capsys.readouterr().out
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
