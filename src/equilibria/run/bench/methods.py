"""Ways to a gradient: equilibria's adjoints and torchdeq's, behind one signature."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import equilibria as eq
from equilibria.run import plugins
from equilibria.run.bench.cells import Case
from equilibria.run.bench.contestants import torchdeq
from equilibria.run.bench.solvers import SLACK
from equilibria.solve import Adjoint, Solver

MAX_EVALS = 400  # evaluations forward, and products backward


class BackwardReport(NamedTuple):
    """What a method says about its own backward solve.

    Attributes:
        products: vector-Jacobian products of each sample; None where it does not say.
        failed: samples that it says did not converge.
    """

    products: Tensor | None = None
    failed: int = 0


Forward = Callable[[Case, float], tuple[Tensor, Callable[[], BackwardReport]]]
"""case, tolerance -> z* connected to autograd, and what to ask once it has gone backward."""


class Method(NamedTuple):
    """A way to a gradient.

    Attributes:
        name: as tables call it.
        family: equilibria or torchdeq; own, of a class that the user names.
        exact: the gradient is that of the fixed point, up to tolerances.
        forward: see `Forward`.
    """

    name: str
    family: str
    exact: bool
    forward: Forward


# --- equilibria ----------------------------------------------------------------------------------


def _ours(
    solver: Any, adjoint: Any, coupled: bool | Tensor, case: Case, rtol: float
) -> tuple[Tensor, Callable[[], BackwardReport]]:
    limits = {"rtol": rtol, "max_evals": MAX_EVALS}
    solver = dataclasses.replace(solver, **limits, patience=None)
    if hasattr(adjoint, "linear"):
        adjoint = dataclasses.replace(adjoint, linear=dataclasses.replace(adjoint.linear, **limits))
    z0 = torch.zeros_like(case.x)
    sol = eq.fixed_point(case.cell, z0, case.x, solver=solver, adjoint=adjoint, coupled=coupled)

    def ask() -> BackwardReport:
        own = sol.adjoint
        return (
            BackwardReport(own.stats.evals, int((own.status != 0).sum()))
            if own
            else BackwardReport()
        )

    assert isinstance(sol.value, Tensor)
    return sol.value, ask


def _method(
    name: str,
    solver: Solver,
    adjoint: Adjoint,
    *,
    exact: bool = True,
    coupled: bool | Tensor = False,
) -> Method:
    return Method(name, "equilibria", exact, functools.partial(_ours, solver, adjoint, coupled))


def default(coupled: bool | Tensor = False, name: str = "default") -> Method:
    """Return what a layer does by itself; `coupled` as of `eq.fixed_point`."""
    layer = eq.DEQ(torch.nn.Identity())
    return _method(name, layer.solver, layer.adjoint, coupled=coupled)


def plain(coupled: bool | Tensor = False, name: str = "plain") -> Method:
    """Return plain iteration, forward and backward."""
    return _method(name, eq.Picard(), _implicit("Picard"), coupled=coupled)


# --- torchdeq ------------------------------------------------------------------------------------

MODES, SIDES = ("ift", "hook_ift"), ("f_solver", "b_solver")
THEIRS = {"fixed_point_iter": "plain", "anderson": "anderson", "broyden": "broyden"}
"""torchdeq's solvers, with what tables call them."""


class _Theirs:
    """torchdeq's layer. It pads its traces to the budget it is given, and its Broyden fills its
    memory for that many evaluations: so each case gets by hindsight just what it needs."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.needed: dict[tuple[str, float], tuple[int, int]] = {}  # forward, backward

    def __call__(self, case: Case, rtol: float) -> tuple[Tensor, Callable[[], BackwardReport]]:
        told: list[Any] = []
        key = case.name, rtol
        most = (100 if self.options.get(s) == "broyden" else MAX_EVALS for s in SIDES)
        budget = map(min, self.needed.get(key, (MAX_EVALS, MAX_EVALS)), most)
        found, info = torchdeq(rtol, *budget, **self.options)(
            lambda z: case.cell(z, case.x), torch.zeros_like(case.x), backward_writer=told.append
        )

        def ask() -> BackwardReport:
            reached = bool((info["rel_lowest"] <= SLACK * rtol).all())
            answer, backward = BackwardReport(), MAX_EVALS
            if told:
                last = told[-1]
                answer = BackwardReport(
                    last["nstep"], int((last["rel_lowest"] > SLACK * rtol).sum())
                )
                backward = int(last["nstep"].max()) + 3
            if reached and not answer.failed:
                self.needed.setdefault(key, (int(info["nstep"].max()) + 3, backward))
            return answer

        return found[-1], ask


def _its(name: str, *, exact: bool = True, **options: Any) -> Method:
    return Method(f"torchdeq {name}", "torchdeq", exact, _Theirs(options))


# --- all -----------------------------------------------------------------------------------------

LINEAR = (
    *("Fallback", "GMRES", "BiCGSTAB", "Neumann", "DirectSolve"),
    *("Picard", "Anderson", "Auto", "Broyden"),
)
"""Methods for the linear system of `eq.Implicit`."""

SHINE: dict[str, Adjoint] = {
    "Shine": eq.Shine(),
    "Shine(refine=5)": eq.Shine(refine=5),
}
"""Adjoints that live on what Broyden's method has stored."""

INEXACT = (eq.Phantom(), eq.NeumannPhantom(), eq.JacobianFree())


def adjoints() -> list[Method]:
    """Return every adjoint there is. All iterate plainly forward and so find the same solution,
    except those of `SHINE`.
    """
    plain, broyden = eq.Picard(), eq.Broyden()
    found = [
        *(_method(f"Implicit({name})", plain, _implicit(name)) for name in LINEAR),
        *(_method(type(each).__name__, plain, each, exact=False) for each in INEXACT),
        *(_method(n, broyden, each, exact=n.startswith("Implicit")) for n, each in SHINE.items()),
        _method("Unrolled", plain, eq.Unrolled()),
    ]
    if importlib.util.find_spec("torchdeq"):
        theirs = functools.partial(_its, f_solver="fixed_point_iter")
        for solver, short in THEIRS.items():
            found += [theirs(f"{mode}({short})", b_solver=solver, **{mode: True}) for mode in MODES]
        found.append(theirs("phantom(5)", exact=False, grad=5, tau=0.5))
        found.append(theirs("phantom(1)", exact=False, grad=1))
    return found


def exact() -> list[Method]:
    """Return training steps with an exact gradient: our defaults, and all settings of torchdeq."""
    found = [
        default(),
        _method("Anderson, Anderson", eq.Anderson(), _implicit("Anderson")),
        _method("Broyden, GMRES", eq.Broyden(), _implicit("GMRES")),
        _method("Picard, GMRES", eq.Picard(), _implicit("GMRES")),
    ]
    if importlib.util.find_spec("torchdeq"):
        each = THEIRS.items()
        for mode, (f, short), (b, shorter) in itertools.product(MODES, each, each):
            solvers: dict[str, Any] = {"f_solver": f, "b_solver": b, mode: True}
            found.append(_its(f"{mode} {short}, {shorter}", **solvers))
    return found


def of_own(path: str) -> Method:
    """Return the way to a gradient by a class of a user's own: an adjoint, or under `eq.Implicit` a
    linear solver or a solver. Only `eq.Implicit` is held to be exact.
    """
    own = plugins.build(path, plugins.BASES)
    adjoint = own if isinstance(own, Adjoint) else eq.Implicit(linear=own)
    found = _method(path, eq.Picard(), adjoint, exact=isinstance(adjoint, eq.Implicit))
    return found._replace(family="own")


def _implicit(linear: str) -> Adjoint:
    return eq.Implicit(linear=getattr(eq, linear)())
