"""Consecutive frames: evaluations from zero and from the equilibrium of the pair before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.experiments.study import Context
from equilibria.nn import using
from equilibria.run.data import load
from equilibria.solve import JacobianFree, Status
from equilibria.zoo.flow.model.network import DEQFlow
from equilibria.zoo.flow.predict.following import Follower
from equilibria.zoo.vision.data.segmentation import SegmentationSet

__all__ = ["CUTS", "MAX_EVALS", "SIZE", "cuts", "frames"]

SIZE = (180, 240)
MAX_EVALS = 100
TOLERANCE = {"rtol": (5e-3, 0.0), "atol": (0.0, 0.00625)}
"""Half of the recipe's: relative for the hidden state, and .05 pixels at full size for the flow."""
CUTS = 8
"""Places where another drive is shown in between."""

Images = tuple[Tensor, Tensor]


def _drive(context: Context) -> tuple[list[Tensor], list[Tensor]]:
    """The 101 frames of CamVid at about 15 Hz, and as many of other drives, (1, 3, h, w) each."""
    found = cast(
        SegmentationSet, load("camvid", context.run.data_dir, kind=SegmentationSet, size=SIZE)
    )
    assert found.valid is not None
    drives = [
        [images.image(k)[None].float() for k in range(len(images))]
        for images in (found.valid, found.train)
    ]
    return drives[0], drives[1]


@torch.no_grad()
def _solved(model: DEQFlow, images: Images, start: Any) -> Any:
    return model(images, z0=start)


def frames(context: Context) -> Iterable[dict[str, Any]]:
    """Of each pair of frames `cold`, `reuse` and `flow_only`: evaluations from zero, from the
    hidden state and the flow of the pair before, and from its flow alone, to one tolerance, each
    from zero after a pair whose solve did not converge, as `--reuse` does; whether it was `warm`,
    whether all have converged, and how far both flows are `apart` on average, in pixels."""
    run = context.run.load()
    model = cast(DEQFlow, run.model)
    drive, _ = _drive(context)
    solver = replace(model.deq.solver, **TOLERANCE, max_evals=MAX_EVALS)
    before: Any = None
    with using(model, solver=solver, adjoint=JacobianFree()):
        for place, images in enumerate(pairwise(drive)):
            cold = _solved(model, images, None)
            solves = {"cold": cold, "reuse": cold, "flow_only": cold}
            if before is not None:
                hidden, flow = before
                solves["reuse"] = _solved(model, images, before)
                solves["flow_only"] = _solved(model, images, (torch.zeros_like(hidden), flow))
            arrived = {
                name: int(p.solution.status) == Status.CONVERGED for name, p in solves.items()
            }
            if place:
                far = (solves["reuse"].output - cold.output).norm(dim=1).mean()
                yield {
                    "frame": place,
                    **{name: int(p.solution.stats.evals) for name, p in solves.items()},
                    "warm": before is not None,
                    "arrived": all(arrived.values()),
                    "apart": float(far),
                }
            before = solves["reuse"].solution.value if arrived["reuse"] else None


def cuts(context: Context) -> Iterable[dict[str, Any]]:
    """At a cut to another drive the evaluations `cut_cold` from zero and `cut_reuse` as `--reuse`
    starts, `cut_blind` from the last equilibrium whatever is seen, and whether it is `noticed`."""
    run = context.run.load()
    model = cast(DEQFlow, run.model)
    drive, other = _drive(context)
    solver = replace(model.deq.solver, **TOLERANCE, max_evals=MAX_EVALS)
    with using(model, solver=solver, adjoint=JacobianFree()):
        for cut in range(CUTS):
            follower, last = Follower(), None
            begin = cut * (len(drive) // CUTS)
            shown = [*drive[begin : begin + 4], other[cut * (len(other) // CUTS)]]
            pairs = list(pairwise(shown))
            for place, images in enumerate(pairs):
                first, second = (x[0] for x in images)
                start, why = follower.start(first, second, follows=place > 0)
                found = _solved(model, images, start)
                if place == len(pairs) - 1:
                    starts = {"cut_cold": None, "cut_blind": last}
                    solves = {name: _solved(model, images, z0) for name, z0 in starts.items()}
                    yield {
                        "cut": cut,
                        "cut_reuse": int(found.solution.stats.evals),
                        **{name: int(p.solution.stats.evals) for name, p in solves.items()},
                        "noticed": why == "cut",
                    }
                last = found.solution.value
                follower.keep(last)
