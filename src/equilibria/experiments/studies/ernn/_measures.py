"""What is measured of a trained recurrent network beside its accuracy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch

from equilibria.experiments.study import Context
from equilibria.run.bench.clock import interleaved
from equilibria.zoo.recurrent.model import SequenceClassifier
from equilibria.zoo.recurrent.model.diagnostics import field_jacobian
from equilibria.zoo.recurrent.model.ernn import ERNNCell

__all__ = ["cost", "eigenvalues"]

WINDOWS = 500


def cost(context: Context) -> dict[str, Any]:
    """Milliseconds of inference per sequence, in batches of `WINDOWS`, and bytes of the weights."""
    run = context.run
    if run.diverged:
        return {}
    model = run.load().model
    batch = run.task.sample("test", WINDOWS)

    @torch.no_grad()
    def read() -> None:
        model(batch.inputs)

    read()
    seconds = interleaved({"read": read}, torch.device("cpu"), rounds=5)["read"]
    bytes_of = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"inference_ms": 1e3 * seconds / batch.samples, "bytes": bytes_of}


def eigenvalues(context: Context, *, windows: int = 20, bins: int = 60) -> Iterable[dict[str, Any]]:
    """Histogram of the real parts of the eigenvalues of dF/dh, over test data.

    `share` of all eigenvalues in a bin around `real`; `negative`, the share below 0, and `top`, the
    largest.
    """
    run = context.run
    if run.diverged:
        return
    model = cast(SequenceClassifier, run.load().model)
    cell = model.recurrent.cells[0]
    assert isinstance(cell, ERNNCell)
    x = run.task.sample("test", windows).inputs.transpose(0, 1)
    with torch.no_grad():
        h = model.recurrent(x)[0]
    before = torch.cat([torch.zeros_like(h[:1]), h[:-1]])
    jacobians = torch.cat(
        [field_jacobian(cell, *each).detach() for each in zip(h, x, before, strict=True)]
    )
    real = torch.linalg.eigvals(jacobians.double()).real.flatten()
    low, high = float(real.min()), float(real.max())
    counts = torch.histc(real, bins, low, high)
    width = (high - low) / bins
    for k, n in enumerate(counts.tolist()):
        row: dict[str, Any] = {"real": low + (k + 0.5) * width, "share": n / len(real)}
        if k == 0:
            row |= {"negative": float((real < 0).double().mean()), "top": high}
        yield row
