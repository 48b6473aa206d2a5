"""The one-dimensional network of Bai et al. 2021, section 5.1: 200 weights, drawn whole."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equilibria.nn import DEQ
from equilibria.solve import (
    GMRES,
    AlternatingAnderson,
    Implicit,
    Picard,
    Solution,
    Solver,
    SolveWarning,
    Status,
    fixed_point,
)
from equilibria.stability import jacobian_penalty
from equilibria.train.regulariser import JacobianPenalty
from equilibria.train.schedule import Cosine

__all__ = ["Samples", "Setting", "ToyCell", "draw_samples", "judged", "slope", "target", "train"]

WIDTH = 50
TRAINING, VALIDATION = 4096, 1000
NOISE = 0.05
SPAN = (-2.0, 2.0)
BATCH = 64
PROBABILITY = 0.4
TOLERANCE = 1e-3
ADJOINT_TOLERANCE = 1e-4
NAMES = ("inner", "outer", "inject", "bias")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How the network is trained: what the paper's Table 4 says, or another way.

    Args:
        words: what it is, for a reader.
        initial: standard deviation of W1 and W2 at the start.
        injected: standard deviation of U and b at the start.
        rate: of Adam, at the start of its cosine.
        epochs: passes over the training samples.
        limit: evaluations of a solve in training, and products of its adjoint.
        clip: largest norm of the gradient of a network; None for no limit.
    """

    words: str
    initial: float
    injected: float
    rate: float
    epochs: int
    limit: int
    clip: float | None = None


def target(x: Tensor) -> Tensor:
    """Return h(x) = 3/2 x^3 + x^2 - 5 x + 2 sin x - 3, which the fixed point is to be.

    So section 5.1 and the thesis; the paper's appendix A.1 has + 5 x.

    papers: Bai et al. 2021, sec. 5.1; Bai 2022 (thesis), sec. 4.4.1.
    """
    return 1.5 * x**3 + x**2 - 5 * x + 2 * torch.sin(x) - 3


@dataclass(frozen=True)
class Samples:
    """Noisy values of h for several networks: `x` and `y`, (networks, samples)."""

    x: Tensor
    y: Tensor

    def at(self, index: Tensor) -> Samples:
        """Return the samples of an index (networks, count)."""
        return Samples(self.x.gather(1, index), self.y.gather(1, index))


def draw_samples(generators: Sequence[torch.Generator]) -> tuple[Samples, Samples]:
    """Return samples to learn from and samples to be judged by, of a network for each generator.

    x ~ U(-2, 2), whose ends the paper does not print; y = h(x) + delta, delta ~ N(0, .05^2).
    """
    low, high = SPAN
    count = TRAINING + VALIDATION
    x = torch.stack([torch.rand(count, generator=g) for g in generators]) * (high - low) + low
    noise = torch.stack([torch.randn(count, generator=g) for g in generators])
    y = target(x) + NOISE * noise
    cut = TRAINING
    return Samples(x[:, :cut], y[:, :cut]), Samples(x[:, cut:], y[:, cut:])


class ToyCell(nn.Module):
    """f(z; x) = W2^T relu(W1 z + U x + b) of several networks side by side, z and x scalars.

    Rows are all samples of the first network, then all of the second, and so on: each row is a
    sample to the solver, and no network knows of another.

    Args:
        networks: how many.
        width: hidden features.

    papers: Bai et al. 2021, sec. 5.1.
    """

    def __init__(self, networks: int, width: int = WIDTH) -> None:
        super().__init__()
        self.inner, self.outer, self.inject, self.bias = (
            nn.Parameter(torch.zeros(networks, width)) for _ in NAMES
        )

    @torch.no_grad()
    def initialise(self, setting: Setting, generators: Sequence[torch.Generator]) -> None:
        """Draw the weights of each network with its own generator."""
        for name in NAMES:
            scale = setting.initial if name in ("inner", "outer") else setting.injected
            weight = getattr(self, name)
            for row, generator in zip(weight, generators, strict=True):
                row.copy_(scale * torch.randn(row.shape, generator=generator))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """Evaluate f at states (networks * samples, 1) and inputs of the same shape."""
        networks = len(self.inner)
        state, place = z.view(networks, -1, 1), x.view(networks, -1, 1)
        hidden = state * self.inner[:, None] + place * self.inject[:, None] + self.bias[:, None]
        return (torch.relu(hidden) @ self.outer[:, :, None]).view_as(z)

    def weights(self, network: int) -> dict[str, list[float]]:
        """Return the weights of one network as plain numbers; `of` takes them back."""
        return {name: getattr(self, name)[network].tolist() for name in NAMES}

    @classmethod
    def of(cls, weights: Mapping[str, Sequence[float]]) -> ToyCell:
        """Return the network that has these weights."""
        cell = cls(1, len(weights["inner"]))
        with torch.no_grad():
            for name in NAMES:
                getattr(cell, name).copy_(torch.tensor(weights[name]))
        return cell


def train(
    setting: Setting, gamma: float, seeds: Sequence[int]
) -> tuple[ToyCell, Samples, list[list[float]]]:
    """Train a network for each seed, all at once, on the squared error of the fixed point.

    The loss of each is its own, its samples, their order and its start too; only whether a step has
    the penalty is drawn once for all of them.

    Args:
        setting: how.
        gamma: weight of the penalty in the steps that have it, a share of `PROBABILITY`.
        seeds: one a network.

    Returns:
        The networks, the samples that they are judged by, and the mean squared error over the
        batches of each epoch, (epochs, networks).
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    training, validation = draw_samples(generators)
    cell = ToyCell(len(seeds))
    cell.initialise(setting, generators)
    layer = DEQ(
        cell,
        solver=AlternatingAnderson(rtol=TOLERANCE, max_evals=setting.limit),
        adjoint=Implicit(linear=GMRES(rtol=ADJOINT_TOLERANCE, max_evals=setting.limit)),
    )
    optimiser = torch.optim.Adam(cell.parameters(), lr=setting.rate)
    penalty = JacobianPenalty(gamma=gamma, probability=PROBABILITY)
    probes = torch.Generator().manual_seed(sum(seeds))
    rounds = TRAINING // BATCH
    steps, course = setting.epochs * rounds, Cosine(warmup=0.0)
    errors: list[list[float]] = []
    for epoch in range(setting.epochs):
        order = torch.stack([torch.randperm(TRAINING, generator=g) for g in generators])
        total = torch.zeros(len(seeds))
        for position in range(rounds):
            step = epoch * rounds + position
            optimiser.param_groups[0]["lr"] = setting.rate * course.factor(step, steps)
            batch = training.at(order[:, position * BATCH : (position + 1) * BATCH])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SolveWarning)  # a limit of 6 is often too low
                solution = layer(batch.x.reshape(-1, 1))
                each = (solution.value.view_as(batch.y) - batch.y).square().mean(1)
                # A sum over the networks: each gets the gradient that it would get alone.
                loss = each.sum()
                weight = penalty.weight(step, steps, seeds[0])
                if weight:
                    extra = jacobian_penalty(solution, generator=probes)
                    loss = loss + weight * len(seeds) * extra
                optimiser.zero_grad()
                loss.backward()
            if setting.clip is not None:
                _clip(cell, setting.clip)
            optimiser.step()
            total += each.detach()
        errors.append((total / rounds).tolist())
    return cell.eval(), validation, errors


def _clip(cell: ToyCell, limit: float) -> None:
    """Shorten the gradient of each network to the limit."""
    grads = [p.grad for p in cell.parameters() if p.grad is not None]
    length = torch.stack([grad.square().sum(1) for grad in grads]).sum(0).sqrt()
    factor = (limit / length).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor[:, None])


@torch.no_grad()
def solve(cell: ToyCell, x: Tensor, solver: Solver) -> Solution:
    """Solve for the fixed points at x (networks * samples, 1), from zero."""
    return fixed_point(cell, torch.zeros_like(x), x, solver=solver)


def slope(cell: ToyCell, z: Tensor, x: Tensor) -> Tensor:
    """Return df/dz at (z, x), of their shape."""
    with torch.enable_grad():
        state = z.detach().requires_grad_()
        return torch.autograd.grad(cell(state, x).sum(), state)[0]


def judged(cell: ToyCell, samples: Samples, limit: int) -> list[dict[str, Any]]:
    """Return for each network how well it fits, how steep it is and what its solves take.

    `mse` of the states after at most `limit` evaluations, as in training; `mse_solved` of the fixed
    points, found to 1e-6; `slope`, the mean |df/dz| at these; evaluations to 1e-3 of `plain`
    iteration and of `anderson`, the alternating method, means over the samples; and the share of
    samples that got there, `plain_converged` and `anderson_converged`.
    """
    x = samples.x.reshape(-1, 1)
    usual = solve(cell, x, AlternatingAnderson(rtol=TOLERANCE, max_evals=limit))
    exact = solve(cell, x, AlternatingAnderson(rtol=1e-6, max_evals=200))
    figures = {
        "mse": (usual.value.view_as(samples.y) - samples.y).square(),
        "mse_solved": (exact.value.view_as(samples.y) - samples.y).square(),
        "slope": slope(cell, exact.value, x).abs(),
    }
    for name, solver in (
        ("plain", Picard(rtol=TOLERANCE, max_evals=500)),
        ("anderson", AlternatingAnderson(rtol=TOLERANCE, max_evals=500)),
    ):
        found = solve(cell, x, solver)
        figures[name] = found.stats.evals
        figures[f"{name}_converged"] = found.status == Status.CONVERGED
    means = {name: each.view_as(samples.y).double().mean(1) for name, each in figures.items()}
    return [
        {name: float(each[network]) for name, each in means.items()}
        for network in range(len(samples.x))
    ]
