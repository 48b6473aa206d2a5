"""Ways to a gradient: equilibria's adjoints and torchdeq's, behind one signature."""

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
from equilibria.bench.cells import Case
from equilibria.bench.contestants import default_solver
from equilibria.bench.solvers import SLACK
from equilibria.solve import Adjoint, Solver

__all__ = ["Backward", "Method", "adjoints", "exact"]

MAX_EVALS = 400  # evaluations forward, and products backward


@dataclass(frozen=True)
class Backward:
    """What a method says about its own backward solve.

    Attributes:
        products: vector-Jacobian products of each sample; None where it does not say.
        failed: samples that it says did not converge.
    """

    products: Tensor | None = None
    failed: int = 0


Forward = Callable[[Case, float], tuple[Tensor, Callable[[], Backward]]]
"""case, tolerance -> z* connected to autograd, and what to ask once it has gone backward."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to a gradient.

    Attributes:
        name: as tables call it.
        family: equilibria or torchdeq.
        exact: the gradient is that of the fixed point, up to tolerances.
        forward: see `Forward`.
    """

    name: str
    family: str
    exact: bool
    forward: Forward


# --- equilibria ----------------------------------------------------------------------------------


def _layer(case: Case, solver: Solver, adjoint: Adjoint) -> eq.Solution:
    return eq.fixed_point(
        case.cell, torch.zeros_like(case.x), case.x, solver=solver, adjoint=adjoint
    )


def _ours(
    make_solver: Callable[[], Solver], make_adjoint: Callable[[], Adjoint], case: Case, rtol: float
) -> tuple[Tensor, Callable[[], Backward]]:
    solver = dataclasses.replace(make_solver(), rtol=rtol, max_evals=MAX_EVALS, patience=None)
    sol = _layer(case, solver, _at_tolerance(make_adjoint(), rtol))

    def ask() -> Backward:
        if sol.adjoint is None:
            return Backward()
        return Backward(sol.adjoint.stats.evals, int((sol.adjoint.status != 0).sum()))

    assert isinstance(sol.value, Tensor)
    return sol.value, ask


def _at_tolerance(adjoint: Any, rtol: float) -> Adjoint:
    """The adjoint with the tolerance and budget of the benchmark, where it has a linear solver."""
    linear = getattr(adjoint, "linear", None)
    if linear is None:
        return adjoint
    limits: dict[str, Any] = {"rtol": rtol, "max_evals": MAX_EVALS}
    return dataclasses.replace(adjoint, linear=dataclasses.replace(linear, **limits))


def default_adjoint() -> Adjoint:
    """The adjoint where none is named."""
    return eq.DEQ(torch.nn.Identity()).adjoint


def _method(
    name: str, make_adjoint: Callable[[], Adjoint], *, exact: bool, solver: Any = default_solver
) -> Method:
    return Method(
        name=name,
        family="equilibria",
        exact=exact,
        forward=functools.partial(_ours, solver, make_adjoint),
    )


def _implicit(linear: str) -> Callable[[], Adjoint]:
    return lambda: eq.Implicit(linear=getattr(eq, linear)())


# --- torchdeq ------------------------------------------------------------------------------------


class _Theirs:
    """torchdeq's layer. It pads its traces to the budget it is given, and its Broyden fills its
    memory for that many evaluations: so each case gets by hindsight just what it needs."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.needed: dict[tuple[str, float], tuple[int, int]] = {}  # forward, backward

    def __call__(self, case: Case, rtol: float) -> tuple[Tensor, Callable[[], Backward]]:
        told: list[Any] = []
        key = case.name, rtol
        layer = _module(rtol, self.needed.get(key), **self.options)
        found, info = layer(
            lambda z: case.cell(z, case.x), torch.zeros_like(case.x), backward_writer=told.append
        )

        def ask() -> Backward:
            reached = bool((info["rel_lowest"] <= SLACK * rtol).all())
            answer, backward = Backward(), MAX_EVALS
            if told:
                last = told[-1]
                answer = Backward(last["nstep"], int((last["rel_lowest"] > SLACK * rtol).sum()))
                backward = int(last["nstep"].max()) + 3
            if reached and not answer.failed:
                self.needed.setdefault(key, (int(info["nstep"].max()) + 3, backward))
            return answer

        return found[-1], ask


@functools.cache
def _module(rtol: float, budget: tuple[int, int] | None, **options: Any) -> Any:
    most: dict[str, int] = {}
    for side, given in zip(("f", "b"), budget or (MAX_EVALS, MAX_EVALS), strict=True):
        fills = options.get(f"{side}_solver") == "broyden"
        most[f"{side}_max_iter"] = min(given, 100) if fills else given
    limits = {"f_tol": rtol, "b_tol": rtol, **most}
    modes = {"f_stop_mode": "rel", "b_stop_mode": "rel"}
    return importlib.import_module("torchdeq").get_deq(**limits, **modes, **options).train()


def _its(name: str, *, exact: bool, **options: Any) -> Method:
    return Method(
        name=f"torchdeq {name}",
        family="torchdeq",
        exact=exact,
        forward=_Theirs(options),
    )


THEIRS = ("fixed_point_iter", "anderson", "broyden")
SHORT = {"fixed_point_iter": "plain"}

# --- all -----------------------------------------------------------------------------------------


def adjoints() -> list[Method]:
    """Every adjoint there is. All iterate plainly forward and so find the same solution, except
    those with Shine, which live on what Broyden's method has stored.
    """
    linear = ("Relay", "GMRES", "BiCGSTAB", "Neumann", "Dense")
    linear += ("Picard", "Anderson", "AlternatingAnderson", "Broyden")
    methods = [
        _method(f"Implicit({name})", _implicit(name), exact=True, solver=eq.Picard)
        for name in linear
    ]
    for name in ("Phantom", "NeumannPhantom", "JacobianFree"):
        methods.append(_method(name, getattr(eq, name), exact=False, solver=eq.Picard))
    shared = {
        "Shine": eq.Shine,
        "Shine(refine=5)": lambda: eq.Shine(refine=5),
        "Implicit, guess Shine": lambda: eq.Implicit(guess=eq.Shine()),
        "Implicit, preconditioner Shine": lambda: eq.Implicit(preconditioner=eq.Shine()),
    }
    for name, make in shared.items():
        methods.append(_method(name, make, exact=name.startswith("Implicit"), solver=eq.Broyden))
    methods.append(_method("Unrolled", eq.Unrolled, exact=True, solver=eq.Picard))
    if importlib.util.find_spec("torchdeq"):
        for solver in THEIRS:
            for mode in ("ift", "hook_ift"):
                options: dict[str, Any] = {mode: True, "f_solver": THEIRS[0], "b_solver": solver}
                name = f"{mode}({SHORT.get(solver, solver)})"
                methods.append(_its(name, exact=True, **options))
        methods.append(_its("phantom(5)", exact=False, f_solver=THEIRS[0], grad=5, tau=0.5))
        methods.append(_its("phantom(1)", exact=False, f_solver=THEIRS[0], grad=1))
    return methods


def exact() -> list[Method]:
    """Training steps with an exact gradient: defaults, and every exact setting of torchdeq."""
    methods = [_method("default", default_adjoint, exact=True)]
    for solver, linear in (("Anderson", "Anderson"), ("Broyden", "GMRES"), ("Picard", "GMRES")):
        methods.append(
            _method(
                f"{solver}, {linear}", _implicit(linear), exact=True, solver=getattr(eq, solver)
            )
        )
    if importlib.util.find_spec("torchdeq"):
        for mode in ("ift", "hook_ift"):
            for forward in THEIRS:
                for backward in THEIRS:
                    options: dict[str, Any] = {mode: True}
                    name = f"{mode} {SHORT.get(forward, forward)}, {SHORT.get(backward, backward)}"
                    methods.append(
                        _its(name, exact=True, f_solver=forward, b_solver=backward, **options)
                    )
    return methods
