"""End-point errors and residuals of trained flow networks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from equilibria.experiments.data import Frame
from equilibria.experiments.study import Context
from equilibria.nn import using
from equilibria.run.data import load
from equilibria.run.models import EquilibriumModel
from equilibria.run.tasks import Batch
from equilibria.solve import JacobianFree, Status
from equilibria.zoo.flow.data import FlowSet
from equilibria.zoo.flow.model import DEQFlow

__all__ = ["FAR", "RESIDUAL_AT", "gain", "reference", "residuals", "scenes", "starts"]

RESIDUAL_AT = (12, 18)
"""Evaluations after which residuals are measured."""

FAR = 20.0
"""Mean motion at full size, in pixels, at and above which a scene is left out of the mean."""

ALONE = JacobianFree()
"""The solve and nothing else: a phantom gradient's steps would be evaluations too."""

TINY = 1e-12


def reference(context: Context) -> dict[str, float]:
    """`zero`: the end-point error of no flow at all on the test pairs."""
    return {"zero": context.run.task.reference("test")["epe"]}


def residuals(context: Context) -> Iterable[dict[str, Any]]:
    """Of each test pair its end-point error, the relative residual of the state, of all leaves
    together, and the pixels by which the flow still `moves`, on average, after some `evals` of the
    recipe's solver from zero; none of an explicit network."""
    run = context.run.load()
    model = run.model
    if not isinstance(model, DEQFlow):
        return
    for evals in RESIDUAL_AT:
        solver = replace(model.deq.solver, rtol=0.0, atol=0.0, max_evals=evals, patience=None)
        pair = 0
        with torch.no_grad(), using(model, solver=solver, adjoint=ALONE):
            for batch in run.data.batches("test", 8):
                found = model(batch.inputs)
                moves = model.moves(found.solution.value, batch.inputs).mean((1, 2))
                rows = (_errors(found.output, batch), found.solution.stats.residual, moves)
                for epe, residual, moved in zip(*(row.tolist() for row in rows), strict=True):
                    figures = {"epe": epe, "residual": residual, "moves": moved}
                    yield {"pair": pair, "evals": evals, **figures}
                    pair += 1


def starts(context: Context) -> dict[str, Any]:
    """Solves of the test pairs from zero, from the true flow and from noise, each to the tolerance
    within 100 evaluations: `converged`, the share of pairs that converge from all three, `agree`,
    the share of these whose flows differ by at most .1 pixel on average over the image, and by how
    many pixels those `from_truth` and `from_noise` differ from that of zero, the median of all."""
    run = context.run.load()
    model = cast(EquilibriumModel, run.model)
    solver = replace(model.deq.solver, max_evals=100)
    generator = torch.Generator().manual_seed(0)
    solved, distances = [], []
    with torch.no_grad(), using(model, solver=solver, adjoint=ALONE):
        for batch in run.data.batches("test", 8):
            cold = model(batch.inputs)
            hidden, flow = cold.solution.value
            true = functional.interpolate(batch.targets[0], flow.shape[2:], mode="area") / 8
            noise = torch.randn(flow.shape, generator=generator) * true.std()
            begun = [(torch.zeros_like(hidden), start) for start in (true, noise)]
            others = [model(batch.inputs, z0=z0) for z0 in begun]
            status = torch.stack([p.solution.status for p in (cold, *others)])
            apart = [(p.output - cold.output).norm(dim=1).mean((1, 2)) for p in others]
            solved.append((status == Status.CONVERGED).all(0))
            distances.append(torch.stack(apart))
    done, apart = torch.cat(solved), torch.cat(distances, 1)
    agreeing = int((done & (apart <= 0.1).all(0)).sum())
    from_truth, from_noise = apart.median(1).values.tolist()
    return {
        "pairs": len(done),
        "converged": int(done.sum()) / len(done),
        "agree": agreeing / max(int(done.sum()), 1),
        "from_truth": from_truth,
        "from_noise": from_noise,
    }


def scenes(context: Context) -> Iterable[dict[str, Any]]:
    """Of each pair of Sintel at half its size: `epe` and `zero`, in pixels of that size, and
    `motion`, the mean length of the flow at full size."""
    run = context.run.load()
    pairs = cast(FlowSet, load("sintel", context.run.data_dir, kind=FlowSet)).test
    for place in range(len(pairs)):
        pair = pairs.pair(place)
        known = pair.valid[None, None].float()
        share = functional.avg_pool2d(known, 2)
        flow = functional.avg_pool2d(pair.flow[None] * known, 2) / share.clamp_min(TINY) / 2
        images = [functional.avg_pool2d(x[None].float(), 2) for x in (pair.first, pair.second)]
        batch = Batch((images[0], images[1]), (flow, share[:, 0] == 1))
        with torch.no_grad():
            output = run.model(batch.inputs).output
        motion = pair.flow.norm(dim=0)[pair.valid].mean()
        yield {
            "pair": place,
            "epe": float(_errors(output, batch)),
            "zero": float(_errors(torch.zeros_like(output), batch)),
            "motion": float(motion),
        }


def gain(rows: Frame) -> float:
    """The geometric mean of error over zero-flow error, of scenes that move less than `FAR`."""
    near = rows[rows["motion"] < FAR]
    return math.exp((near["epe"] / near["zero"]).map(math.log).mean())


def _errors(output: Tensor, batch: Batch) -> Tensor:
    """The mean end-point error of each pair, over its valid pixels, `(batch,)`."""
    flow, valid = batch.targets
    each = (output - flow).norm(dim=1) * valid
    return each.sum((1, 2)) / valid.sum((1, 2)).clamp_min(1)
