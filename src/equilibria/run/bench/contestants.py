"""Solvers that are compared: equilibria's, torchdeq's and SciPy's, behind one signature."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import equilibria as eq
from equilibria.run import plugins
from equilibria.run.bench.count import Spent
from equilibria.run.bench.problems import BenchProblem
from equilibria.solve import Solver


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


BROYDEN = 400
"""Maximal evaluations of Broyden's method, ours and theirs alike: it keeps every step, so that each
costs more than the one before; a linear problem is solved in twice its entries or never."""

Solve = Callable[[BenchProblem, Callable[..., Tensor], float, int], Answer]
"""problem, its f (which may be watched), relative tolerance, evaluations -> answer."""


@dataclass(frozen=True, kw_only=True)
class BenchedSolver:
    """A solver in the benchmark.

    Attributes:
        name: as tables call it.
        family: equilibria, torchdeq or scipy; own, of a class that the user names.
        method: the method that two families have in common: Picard, Anderson, Broyden,
            NewtonKrylov; default, and Auto with Newton steps, are equilibria's own.
        solve: see `Solve`.
        pays_for_budget: its time grows with the evaluations that it is given, needed or not.
        allocates: vectors of the size of the state, for each evaluation it is given, that it
            allocates before it begins.
        max_evals: evaluations that it is given at most; None for the problem's own.
    """

    name: str
    family: str
    method: str
    solve: Solve
    pays_for_budget: bool = False
    allocates: int = 0
    max_evals: int | None = None


# --- equilibria ----------------------------------------------------------------------------------


OURS: Mapping[str, Any] = {
    "Picard": eq.Picard(),
    # As torchdeq has it: six iterates, and an extrapolation every time.
    "Anderson": eq.Anderson(history=5),
    "Broyden": eq.Broyden(),
    "NewtonKrylov": eq.NewtonKrylov(),
    "Auto": eq.Auto(newton=eq.GMRES(rtol=1e-6, restart=100)),
    "default": eq.DEQ(torch.nn.Identity()).solver,
}


def _ours(
    which: str | Solver, problem: BenchProblem, f: Callable[..., Tensor], rtol: float, evals: int
) -> Answer:
    solver = OURS[which] if isinstance(which, str) else which
    # No peer gives up on a sample that progresses slowly.
    solver = dataclasses.replace(solver, rtol=rtol, max_evals=evals, patience=None)
    sol = eq.fixed_point(
        f, problem.z0, *problem.operands, solver=solver, drop_finished=problem.drop_finished
    )
    assert isinstance(sol.value, Tensor)
    return Answer(sol.value, sol.stats.evals, sol.status)


# --- torchdeq ------------------------------------------------------------------------------------

TORCHDEQ = {"Picard": "fixed_point_iter", "Anderson": "anderson", "Broyden": "broyden"}


@functools.cache
def torchdeq(rtol: float, evals: int, products: int, **options: Any) -> Any:
    """Return torchdeq's layer, with budgets forward and backward."""
    for side, budget in (("f", evals), ("b", products)):
        options |= {f"{side}_tol": rtol, f"{side}_stop_mode": "rel", f"{side}_max_iter": budget}
    return importlib.import_module("torchdeq").get_deq(**options)


def _torchdeq(
    name: str, problem: BenchProblem, f: Callable[..., Tensor], rtol: float, evals: int
) -> Answer:
    operands = problem.operands
    layer = torchdeq(rtol, evals, evals, f_solver=name).eval()
    found, _ = layer(lambda z: f(z, *operands), problem.z0)
    return Answer(found[-1])


# --- SciPy ---------------------------------------------------------------------------------------

SCIPY = {"Anderson": "anderson", "NewtonKrylov": "newton_krylov"}


class _Done(Exception):
    def __init__(self, x: Any) -> None:
        super().__init__("converged")
        self.x = x


def _scipy(
    name: str, problem: BenchProblem, f: Callable[..., Tensor], rtol: float, evals: int
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


# --- all -----------------------------------------------------------------------------------------

FAMILIES: Mapping[str, tuple[Mapping[str, str], Callable[..., Answer]]] = {
    "equilibria": ({name: name for name in OURS}, _ours),
    "torchdeq": (TORCHDEQ, _torchdeq),
    "scipy": (SCIPY, _scipy),
}


def contestants(device: str = "cpu", own: str | None = None) -> list[BenchedSolver]:
    """Return all that can take part here: SciPy on a CPU alone, peers where they are installed.

    Args:
        device: to solve on.
        own: a solver of the user's own that joins them, as `plugins.build` takes it.
    """
    found = [
        BenchedSolver(
            name=name if family == "equilibria" else f"{family} {name}",
            family=family,
            method=method,
            solve=functools.partial(solve, name),
            pays_for_budget=family == "torchdeq",  # it pads its traces to the budget
            allocates=2 if (family, method) == ("torchdeq", "Broyden") else 0,
            max_evals=BROYDEN if method == "Broyden" else None,
        )
        for family, (methods, solve) in FAMILIES.items()
        if importlib.util.find_spec(family) and (family != "scipy" or device == "cpu")
        for method, name in methods.items()
    ]
    if own is not None:
        solve = functools.partial(_ours, plugins.build(own, (Solver,)))
        found.append(BenchedSolver(name=own, family="own", method=own, solve=solve))
    return found


def require_peers(*names: str) -> None:
    """Raise MissingPeer where there is nobody to compare with."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPeer(
            f"the benchmark compares with {' and '.join(missing)}, not installed here. "
            "Do: pip install 'equilibria[bench]', or in a clone pip install '.[bench]'"
        )
