"""Tasks whose samples are drawn, and models for them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import equilibria as eq
from equilibria.metric import ACCURACY
from equilibria.run.tasks.base import SampleTask, right
from equilibria.zoo.io.sequences import Sequences
from equilibria.zoo.recurrent.model import CELLS
from equilibria.zoo.recurrent.model.classifier import RecurrentConfig, SequenceClassifier
from equilibria.zoo.recurrent.task.standardisation import ChannelStatistics, Standardised

ONNX = ("onnx", "onnxscript", "onnxruntime")


def need_onnx() -> None:
    """Skip where the extra `export` is not installed."""
    for name in ONNX:
        pytest.importorskip(name, reason=f"{name} of the extra `export` is not installed")


class Drawn(SampleTask):
    """Which of two classes is a sequence (time, 3) of?"""

    metrics = (ACCURACY,)

    def complete(self, config):
        return config

    def loss(self, model, output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output, targets, reduction="sum")

    def sums(self, model, output, targets):
        return right(output.argmax(1) == targets)


def sequences(
    count: int = 12, time: int = 9, *, lengths: bool = False, compress: float | None = None
) -> Drawn:
    """Sequences far from mean 0 and deviation 1, which the task brings there."""
    draw = torch.Generator().manual_seed(1)
    x = 5 + 3 * torch.randn(count, time, 3, generator=draw)
    own = torch.randint(1, time + 1, (count,), generator=draw) if lengths else None
    found = Sequences(x, torch.arange(count) % 2, own)
    statistics = ChannelStatistics.of(found, compress)
    return Drawn(dict.fromkeys(("train", "test"), Standardised(found, statistics)), "sha256:0")


def recurrent(name: str = "ERNN", *, layer=None, cell=None, **options) -> SequenceClassifier:
    """A recurrent model whose weights are drawn."""
    torch.manual_seed(0)
    config = RecurrentConfig(
        **{"shape": (3,), "classes": 2, "hidden": 8, **options}, cell=CELLS[name](**(cell or {}))
    )
    model = config.build(**(layer or {})).eval()
    with torch.no_grad():  # away from the steps of almost 0 that training begins with
        for key, each in model.named_parameters():
            if key.endswith("step_sizes"):
                each.fill_(0.3)
    return model


def digits(name: str, tmp: Path, **config) -> tuple[eq.models.Model, SampleTask]:
    """A model of images with drawn weights, and the task of scikit-learn's digits."""
    from equilibria.zoo.vision.task.classification import ImageClassification

    task = ImageClassification(data="digits", normalise=True, valid=100).load(tmp)
    torch.manual_seed(0)
    solver = {} if name == "resnet" else {"solver": eq.Anderson(rtol=1e-3, max_evals=30)}
    config = {"shape": (1, 8, 8), "classes": 10, **config}
    return eq.models.create(name, **config, **solver).eval(), task
