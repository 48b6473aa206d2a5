"""Traces of the resolvent at a fixed point, by random probes, with their errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from equilibria.solve import GMRES, Status
from equilibria.stability.jacobian import JacobianOperator
from equilibria.stability.settled import Settled

__all__ = ["Estimate", "resolvent_traces"]


@dataclass(frozen=True)
class Estimate:
    """A mean over random probes.

    Attributes:
        value: NaN where nothing could be measured.
        error: standard error over the probes; NaN of a single one.
        used: samples that took part, of which all linear systems were solved.
    """

    value: float
    error: float
    used: int

    def __str__(self) -> str:
        return f"{self.value:.4g} +- {self.error:.2g}"


def resolvent_traces(
    settled: Settled, probes: int, rtol: float, generator: torch.Generator
) -> tuple[Estimate, Estimate]:
    """Estimates tr[M^T M] and 2 tr[(M^T M)^2], M = (I - J)^-1 at z*, tr being the mean eigenvalue.

        tr[M^T M] = E ||M eps||^2 / N,    tr[(M^T M)^2] = E ||M^T M eps||^2 / N,

    with N independent signs eps. Each probe takes two linear solves by GMRES for each sample; the
    mean is over samples and probes, the error is over probes, each being a mean over the samples.

    papers: Agarwala and Schoenholz 2022, eq. 10, 13 and 16; Hutchinson 1989.
    """
    layer = settled.layer
    # Torch's fused attention has no second derivatives, which products with J need.
    with sdpa_kernel(SDPBackend.MATH):
        jacobian = JacobianOperator(layer.cell, settled.z, settled.operands, layer.coupled)
    samples, width = jacobian.shape
    solver = GMRES(rtol=rtol, max_evals=1500, restart=100)
    good = torch.ones(samples, dtype=torch.bool)
    second: list[Tensor] = []
    fourth: list[Tensor] = []
    for _ in range(probes):
        signs = jacobian.noise(generator).sign()
        forth = solver.solve(lambda rows: [jacobian.direct(rows[0])], [signs])
        back = solver.solve(lambda rows: [jacobian.transposed(rows[0])], forth.value)
        for run, squares in ((forth, second), (back, fourth)):
            good &= (run.status == Status.CONVERGED).cpu()
            squares.append(run.value[0].double().square().sum(1).cpu() / width)
    return _mean(second, good), _mean(fourth, good, 2.0)


def _mean(squares: list[Tensor], good: Tensor, factor: float = 1.0) -> Estimate:
    """Of the samples that are good."""
    used = int(good.sum())
    if not used:
        return Estimate(math.nan, math.nan, 0)
    means = factor * torch.stack(squares)[:, good].mean(1)
    error = float(means.std() / len(means) ** 0.5) if len(means) > 1 else math.nan
    return Estimate(float(means.mean()), error, used)
