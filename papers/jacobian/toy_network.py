"""The one-dimensional network of Bai et al. 2021, section 5.1, and Figures 5 and 9."""

import functools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equilibria import solve
from equilibria.nn import DEQ
from equilibria.run.optimizer import Cosine
from equilibria.run.regularizer import JacobianPenalty
from equilibria.run.report.panel import Series
from equilibria.run.report.surfaces import Curve, PlotSurface, SurfacePlot
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Context
from equilibria.run.studies.views import Chart, curve
from equilibria.stability import jacobian_penalty
from papers.jacobian.maps import zigzag

# --- the one-dimensional network and its training -------------------------------------------------

WEIGHTS = ("inner", "outer", "inject", "bias")
"""W1, W2, U and b."""
SPAN, NOISE = (-2.0, 2.0), 0.05
"""Inputs, whose ends the paper does not print, and deviation of the noise."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How the network is trained: as the paper's Table 4 says, or otherwise.

    Args:
        initial: standard deviations of W1, W2, U and b at the start.
        rate: of Adam, at the start of its cosine.
        limit: evaluations of a solve in training, and products of its adjoint.
        clip: maximum norm of a network's gradient.
        probability: share of the steps that have the penalty.
    """

    initial: tuple[float, float, float, float]
    rate: float
    epochs: int
    limit: int
    clip: float = float("inf")
    probability: float = 0.4
    width: int = 50
    training: int = 4096
    validation: int = 1000
    batch: int = 64
    rtol: float = 1e-3
    adjoint_rtol: float = 1e-4


def target(x: Tensor) -> Tensor:
    """Return h(x) = 3/2 x^3 + x^2 - 5 x + 2 sin x - 3, which the fixed point is to be.

    papers: Bai et al. 2021, sec. 5.1, whose appendix A.1 has + 5 x; Bai 2022 (thesis), sec. 4.4.1.
    """
    return 1.5 * x**3 + x**2 - 5 * x + 2 * torch.sin(x) - 3


def samples(generators: Sequence[torch.Generator], count: int) -> tuple[Tensor, Tensor]:
    """Return x ~ U(-2, 2) and y = h(x) + delta, delta ~ N(0, .05^2): (networks, count) each."""
    low, high = SPAN
    x = torch.stack([torch.rand(count, generator=g) for g in generators]) * (high - low) + low
    return x, target(x) + NOISE * torch.stack([torch.randn(count, generator=g) for g in generators])


EXACT = solve.Anderson(period=3, rtol=1e-6, max_evals=200)


class ToyCell(nn.Module):
    """f(z; x) = W2^T relu(W1 z + U x + b) of several networks side by side, z and x scalars.

    States and inputs (networks * samples,) hold all samples of the first network, then all of the
    second, and so on: each is a sample to the solver, and the networks are independent.

    Args:
        weights: W1, W2, U and b, (4, networks, width).

    papers: Bai et al. 2021, sec. 5.1.
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """Evaluate f at states and inputs of the same shape."""
        inner, outer, inject, bias = self.weights[:, :, None]
        state, place = (each.reshape(len(inner), -1, 1) for each in (z, x))
        hidden = torch.relu(state * inner + place * inject + bias)
        return (hidden @ outer.mT).view_as(z)

    def find_equilibrium(self, x: Tensor, solver: solve.Solver = EXACT) -> solve.Solution:
        """Return the solution at x (networks * samples,), from zero."""
        with torch.no_grad():
            return solve.fixed_point(self, torch.zeros_like(x), x, solver=solver)

    def slope(self, z: Tensor, x: Tensor) -> Tensor:
        """Return df/dz at (z, x), of their shape."""
        state = z.detach().requires_grad_()
        return torch.autograd.grad(self(state, x).sum(), state)[0]


@identified_as("_toy.toy")
def toy(context: Context, *, setting: Setting, seeds: Sequence[int]) -> Iterable[dict[str, Any]]:
    """Figures of the trained network of each `seed`, and the weights of the first, by `unit`."""
    cell, x, y = train(setting, float(context.factors["gamma"]), seeds)
    for seed, row in zip(seeds, figures(cell, x, y, setting), strict=True):
        yield {"seed": seed, **row}
    for unit, weights in enumerate(cell.weights[:, 0].T.tolist()):
        yield {"unit": unit, **dict(zip(WEIGHTS, weights, strict=True))}


def train(setting: Setting, gamma: float, seeds: Sequence[int]) -> tuple[ToyCell, Tensor, Tensor]:
    """Train a network for each seed, all at once, on the squared error of the fixed point.

    Each has its own samples, order, start and loss; only whether a step has the penalty, of weight
    gamma, is drawn once for all of them.

    Returns:
        The networks, and inputs and targets to evaluate them on, (networks, samples).
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    x, y = samples(generators, setting.training + setting.validation)
    scales = torch.tensor(setting.initial)[:, None, None]
    drawn = [[torch.randn(setting.width, generator=g) for g in generators] for _ in scales]
    cell = ToyCell(scales * torch.stack([torch.stack(each) for each in drawn]))
    linear = solve.GMRES(rtol=setting.adjoint_rtol, max_evals=setting.limit)
    solver = solve.Anderson(period=3, rtol=setting.rtol, max_evals=setting.limit)
    layer = DEQ(cell, solver=solver, adjoint=solve.Implicit(linear=linear))
    optimizer = torch.optim.Adam(cell.parameters(), lr=setting.rate)
    penalty = JacobianPenalty(gamma=gamma, probability=setting.probability)
    probes = torch.Generator().manual_seed(sum(seeds))
    batches = setting.training // setting.batch
    steps, schedule, order = setting.epochs * batches, Cosine(), torch.empty(0)
    for step in range(steps):
        begin = step % batches * setting.batch
        if begin == 0:
            order = torch.stack([torch.randperm(setting.training, generator=g) for g in generators])
        places = order[:, begin : begin + setting.batch]
        optimizer.param_groups[0]["lr"] = setting.rate * schedule.factor(step, steps)
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", solve.SolveWarning)  # a limit of 6 is often too low
            solution = layer(x.gather(1, places).flatten())
            error = solution.value.view_as(places) - y.gather(1, places)
            loss = error.square().mean(1).sum()  # a sum: none changes the gradient of another
            if gamma and penalty.drawn(step, steps, seeds[0]):
                loss = loss + gamma * len(seeds) * jacobian_penalty(solution, generator=probes)
            loss.backward()
        assert cell.weights.grad is not None
        cell.weights.grad = cell.weights.grad.renorm(2, 1, setting.clip)
        optimizer.step()
    return cell.eval(), x[:, setting.training :], y[:, setting.training :]


def figures(cell: ToyCell, x: Tensor, y: Tensor, setting: Setting) -> list[dict[str, float]]:
    """Return for each network how well it fits, how steep it is and what its solves take.

    `mse` of the states after as many evaluations as training allows; `mse_solved` of the fixed
    points, found to 1e-6; `slope`, the mean |df/dz| at these; evaluations of `plain` iteration and
    of `anderson`, the alternating method, to the tolerance of training, means over the samples;
    and the share of samples that converged, `plain_converged` and `anderson_converged`.
    """
    inputs, exact = x.flatten(), cell.find_equilibrium(x.flatten()).value
    usual = solve.Anderson(period=3, rtol=setting.rtol, max_evals=setting.limit)
    found = {
        "mse": (cell.find_equilibrium(inputs, usual).value.view_as(y) - y).square(),
        "mse_solved": (exact.view_as(y) - y).square(),
        "slope": cell.slope(exact, inputs).abs(),
    }
    for name, kind in (
        ("plain", solve.Picard),
        ("anderson", functools.partial(solve.Anderson, period=3)),
    ):
        solution = cell.find_equilibrium(inputs, kind(rtol=setting.rtol, max_evals=500))
        found[name] = solution.stats.evals
        found[f"{name}_converged"] = solution.status == solve.Status.CONVERGED
    means = {name: each.view_as(y).double().mean(1).tolist() for name, each in found.items()}
    return [{name: mean[place] for name, mean in means.items()} for place in range(len(x))]


# --- Figures 5 and 9 ------------------------------------------------------------------------------

GAMMAS = (0.0, 2.0, 4.0)
"""Weights of the penalty in Figure 5."""

X, SLICES, HEIGHTS = torch.linspace(*SPAN, 160), (-1.0, 0.5, 1.5), (-6.0, 6.0)


def _cells(data: Data) -> dict[float, ToyCell]:
    """Networks of seed 0, by gamma; those that were trained."""
    rows = data.series("unit", setting="ours", gamma=GAMMAS)
    return {
        gamma: ToyCell(torch.tensor(units[list(WEIGHTS)].to_numpy("float32").T[:, None]))
        for gamma, units in rows.groupby("gamma")
    }


@dataclass(frozen=True)
class Landscape:
    """f(z; x) in space, the plane z, the equilibria that lie on both, and a slice."""

    gamma: float

    def render(self, data: Data, /) -> SurfacePlot:
        """Draw the surface; none of a network that was not trained."""
        title = f"Fig. 5: f(z; x), gamma = {self.gamma:g}"
        plot = SurfacePlot(title=title, x="x", y="z", z="z out", surfaces=[], heights=HEIGHTS)
        cell = _cells(data).get(self.gamma)
        if cell is None:
            return plot
        x, z = torch.linspace(*SPAN, 18), torch.linspace(*HEIGHTS, 18)
        plane, at = torch.meshgrid(z, x, indexing="ij")
        surface = partial(PlotSurface, x=x.tolist(), y=z.tolist())
        found, place = cell.find_equilibrium(X).value.tolist(), torch.full_like(z, SLICES[0])
        cut = cell(z, place).tolist()
        return replace(
            plot,
            surfaces=[
                surface(label="f(z; x)", z=cell(plane, at).tolist(), color=2),
                surface(label="z out = z", z=plane.tolist(), color=3, alpha=0.35),
            ],
            curves=[
                Curve(label="equilibria z*(x)", x=X.tolist(), y=found, z=found, dashed=True),
                Curve(label=f"x = {SLICES[0]:g}", x=place.tolist(), y=z.tolist(), z=cut, color=0),
            ],
        )


def _slices(data: Data, gamma: float) -> Iterable[Series]:
    """f(.; x) at some inputs, and the zigzag of plain iteration from zero on each."""
    cell, z = _cells(data).get(gamma), torch.linspace(*HEIGHTS, 121)
    if cell is None:
        return
    yield Series(label="z out = z", x=HEIGHTS, y=HEIGHTS, color=7)
    for color, x in enumerate(SLICES):
        f = cell(z, torch.full_like(z, x)).tolist()
        yield Series(label=f"x = {x:g}", x=z.tolist(), y=f, color=color)
        states = [0.0]
        for _ in range(12):
            states.append(cell(torch.tensor(states[-1:]), torch.tensor([x])).item())
        yield zigzag(states, label="", color=color)


def _along(data: Data, *, slope: bool = False) -> Iterable[Series]:
    """The fixed points of the networks against x, or the slopes there."""
    for color, (gamma, cell) in enumerate(_cells(data).items()):
        found = cell.find_equilibrium(X).value
        y = cell.slope(found, X).abs() if slope else found
        yield Series(label=f"gamma = {gamma:g}", x=X.tolist(), y=y.tolist(), color=color)


H = curve("h(x)", X.tolist(), lambda x: target(torch.tensor(x)).item())
SLOPES = partial(_along, slope=True)
VIEWS = [
    *(Landscape(gamma) for gamma in GAMMAS),
    *(
        Chart(
            title=f"Fig. 5: slices, plain iteration from 0, gamma = {gamma:g}",
            x="z",
            y="f(z; x)",
            marks=partial(_slices, gamma=gamma),
            span_x=HEIGHTS,
            span_y=HEIGHTS,
        )
        for gamma in GAMMAS
    ),
    Chart(title="Fig. 9: learned equilibria and h", x="x", y="z*", marks=[_along, H]),
    Chart(title="slope at the equilibrium", x="x", y="|df/dz|", marks=SLOPES, log_y=True),
]
