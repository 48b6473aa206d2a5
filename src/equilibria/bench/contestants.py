"""Who takes part: equilibria's solvers, torchdeq's and SciPy's, behind one signature."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import equilibria as eq
from equilibria.bench.count import Spent
from equilibria.bench.problems import Problem
from equilibria.solve import Solver

__all__ = ["Answer", "Contestant", "MissingPeer", "contestants", "require_peers"]


class MissingPeer(RuntimeError):
    """A package to compare with is not installed."""


@dataclass(frozen=True)
class Answer:
    """What a solver returned.

    Attributes:
        value: the solution it found, `(batch, ...)`.
        evals: evaluations that each sample took part in, `(batch,)`; None: as many as there were
            calls.
        status: `(batch,)`, where the solver says how it ended.
    """

    value: Tensor
    evals: Tensor | None = None
    status: Tensor | None = None


BROYDEN = 400  # evaluations of Broyden's method, of ours and theirs alike

Solve = Callable[[Problem, Callable[..., Tensor], float, int], Answer]
"""problem, its f (which may be watched), relative tolerance, evaluations -> answer."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A solver in the benchmark.

    Attributes:
        name: as tables call it.
        family: equilibria, torchdeq or scipy.
        method: the method that two families have in common: Picard, Anderson, Broyden,
            NewtonKrylov; default and Auto are equilibria's own.
        solve: see `Solve`.
        pays_for_budget: its time grows with the evaluations that it is given, needed or not.
        allocates: vectors of the size of the state, for each evaluation it is given, that it
            allocates before it begins.
        most: evaluations that it is given at most: what keeps every step has a price that grows
            with each, and has solved a linear problem in twice its entries or never will.
    """

    name: str
    family: str
    method: str
    solve: Solve
    pays_for_budget: bool = False
    allocates: int = 0
    most: int | None = None


# --- equilibria ----------------------------------------------------------------------------------


def default_solver() -> Solver:
    """The solver of `eq.fixed_point` where none is named."""
    return eq.DEQ(torch.nn.Identity()).solver


def _ours(
    make: Callable[[], Solver], problem: Problem, f: Callable[..., Tensor], rtol: float, evals: int
) -> Answer:
    # No peer gives up on a sample that progresses slowly.
    solver = dataclasses.replace(make(), rtol=rtol, max_evals=evals, patience=None)
    sol = eq.fixed_point(
        f, problem.z0, *problem.operands, solver=solver, per_sample=problem.per_sample
    )
    assert isinstance(sol.value, Tensor)
    return Answer(sol.value, sol.stats.evals, sol.status)


def _equilibria() -> list[Contestant]:
    named: dict[str, Callable[[], Solver]] = {
        "Picard": eq.Picard,
        # As torchdeq has it: six iterates, and an extrapolation every time.
        "Anderson": lambda: eq.Anderson(history=5),
        "Broyden": eq.Broyden,
        "NewtonKrylov": eq.NewtonKrylov,
        "Auto": eq.Auto,
        "default": default_solver,
    }
    return [
        Contestant(
            name=name,
            family="equilibria",
            method=name,
            solve=functools.partial(_ours, make),
            most=BROYDEN if name == "Broyden" else None,
        )
        for name, make in named.items()
    ]


# --- torchdeq ------------------------------------------------------------------------------------


@functools.cache
def _module(name: str, rtol: float, evals: int) -> Any:
    options = {"f_tol": rtol, "f_stop_mode": "rel", "f_max_iter": evals}
    return importlib.import_module("torchdeq").get_deq(f_solver=name, **options).eval()


def _torchdeq(
    name: str, problem: Problem, f: Callable[..., Tensor], rtol: float, evals: int
) -> Answer:
    operands = problem.operands
    found, _ = _module(name, rtol, evals)(lambda z: f(z, *operands), problem.z0)
    return Answer(found[-1])


TORCHDEQ = {"Picard": "fixed_point_iter", "Anderson": "anderson", "Broyden": "broyden"}

# --- SciPy ---------------------------------------------------------------------------------------


class _Done(Exception):
    def __init__(self, x: Any) -> None:
        super().__init__("converged")
        self.x = x


def _scipy(
    name: str, problem: Problem, f: Callable[..., Tensor], rtol: float, evals: int
) -> Answer:
    """The whole batch as one vector; its iterations end by the residual that all are judged by."""
    optimize = importlib.import_module("scipy.optimize")
    like = problem.z0

    def tensor(x: Any) -> Tensor:
        return torch.from_numpy(x).to(like).view_as(like)

    def root(x: Any) -> Any:
        z = tensor(x)
        return (f(z, *problem.operands) - z).flatten().numpy()

    latest = like.flatten().numpy()

    def stop(x: Any, residual: Any) -> None:
        nonlocal latest
        latest = x
        rows, images = (part.reshape(len(like), -1) for part in (residual, x + residual))
        size = (rows**2).sum(1) ** 0.5
        if (size <= rtol * (images**2).sum(1) ** 0.5).all():
            raise _Done(x)

    try:
        x = getattr(optimize, name)(root, latest, f_tol=0.0, maxiter=evals, callback=stop)
    except _Done as done:
        x = done.x
    except (optimize.NoConvergence, Spent):  # what it has reached counts
        x = latest
    return Answer(tensor(x))


SCIPY = {"Anderson": "anderson", "NewtonKrylov": "newton_krylov"}

# --- all -----------------------------------------------------------------------------------------


def contestants(device: str = "cpu") -> list[Contestant]:
    """All that can take part here: SciPy on a CPU alone, peers where they are installed."""
    found = _equilibria()
    if importlib.util.find_spec("torchdeq"):
        found += [
            Contestant(
                name=f"torchdeq {name}",
                family="torchdeq",
                method=method,
                solve=functools.partial(_torchdeq, name),
                pays_for_budget=True,  # it pads its traces to the budget
                allocates=2 if method == "Broyden" else 0,
                most=BROYDEN if method == "Broyden" else None,
            )
            for method, name in TORCHDEQ.items()
        ]
    if device == "cpu" and importlib.util.find_spec("scipy"):
        found += [
            Contestant(
                name=f"scipy {name}",
                family="scipy",
                method=method,
                solve=functools.partial(_scipy, name),
            )
            for method, name in SCIPY.items()
        ]
    return found


def require_peers(*names: str) -> None:
    """Raises MissingPeer where there is nobody to compare with."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPeer(
            f"the benchmark compares with {' and '.join(missing)}, not installed here. "
            "Do: pip install equilibria[bench]"
        )
