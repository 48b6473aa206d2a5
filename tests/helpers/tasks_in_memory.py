"""Tasks whose samples are in memory, and models of images."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import equilibria as eq
from equilibria.metric import ACCURACY
from equilibria.run.tasks.base import SampleTask, right

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


def digits(name: str, tmp: Path, **config) -> tuple[eq.models.Model, SampleTask]:
    """A model of images with drawn weights, and the task of scikit-learn's digits."""
    from equilibria.zoo.vision.task.classification import ImageClassification

    task = ImageClassification(data="digits", normalize=True, valid=100).load(tmp)
    torch.manual_seed(0)
    solver = {} if name == "resnet" else {"solver": eq.Anderson(rtol=1e-3, max_evals=30)}
    config = {"shape": (1, 8, 8), "classes": 10, **config}
    return eq.models.create(name, **config, **solver).eval(), task
