"""Put twenty faults into solves, one at a time, and see that the comparison finds each.

    python tests/oracle/faults.py RECORD.npz

The record is one that `draws.py` wrote of the same version. A fault is applied at the border of the
library, to the solution or to its gradients, so that it fits any version; it affects only some
solves, as a real one does. Exits with 1 if a fault passes unnoticed.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import draws
from compare import differences, read
from draws import Draw, draw

CHECKED = 25  # draws in which a fault has the chance to be noticed


class Rescaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied by `factor`; `once`: its own gradient is lost."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor, once: bool) -> Tensor:
        ctx.save_for_backward(factor)
        ctx.once = once
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (factor,) = ctx.saved_tensors
        grad = grads[0].detach() if ctx.once else grads[0]
        return grad * factor, None, None


def rescale(tree: Any, factor: Any, *, once: bool = False) -> Any:
    return Rescaled.apply(tree, torch.as_tensor(factor, dtype=tree.dtype), once)


@dataclass
class Fault:
    """What is wrong, in which draws, and how it is done.

    Attributes:
        name: for the list.
        where: whether a draw is affected.
        before: changes the operand x and the matrix a as f's gradients see them.
        after: changes the solution, which has the attributes of eq.Solution.
    """

    name: str
    where: Callable[[Draw], bool]
    before: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda x, a: (x, a)
    after: Callable[[SimpleNamespace], None] = lambda sol: None


def set_status(sol: SimpleNamespace, old: int, new: int) -> None:
    sol.status = torch.where(sol.status == old, new, sol.status)


def shift_evals(sol: SimpleNamespace, by: int) -> None:
    sol.stats.evals = torch.cat([sol.stats.evals[:1] + by, sol.stats.evals[1:]])


def swap(tensor: Tensor) -> Tensor:
    """The first two samples in each other's place."""
    return torch.cat([tensor[1:2], tensor[:1], tensor[2:]])


def on_value(change: Callable[[Tensor], Tensor]) -> Callable[[SimpleNamespace], None]:
    def after(sol: SimpleNamespace) -> None:
        if isinstance(sol.value, dict):
            sol.value = {key: change(leaf) for key, leaf in sol.value.items()}
        else:
            sol.value = change(sol.value)

    return after


def drop_last(tensor: Tensor) -> Tensor:
    return torch.cat([tensor[:-1], tensor[-1:] * 0])


def drop_unconverged(sol: SimpleNamespace) -> None:
    def change(tensor: Tensor) -> Tensor:
        good = (sol.status == 0).reshape(-1, *[1] * (tensor.dim() - 1))
        return torch.where(good, tensor, 0 * tensor)

    on_value(change)(sol)


def lose_first_gradient(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    factor = torch.ones(len(x), 1)
    factor[0] = 0
    return rescale(x, factor), a


def solver(name: str) -> Callable[[Draw], bool]:
    return lambda given: given.solver[0] == name and given.mode not in ("vmap", "autocast")


def mode(name: str, at_least: int = 1) -> Callable[[Draw], bool]:
    return lambda given: given.mode == name and given.batch >= at_least


def exact(given: Draw) -> bool:
    """Solves whose gradients are compared: those that converge, forward and backward."""
    return given.adjoint[0] == "Implicit" and given.rate < 1 and given.mode != "autocast"


FAULTS = (
    Fault("a stalled sample is called converged", lambda g: g.problem == "drift",
          after=lambda sol: set_status(sol, 2, 0)),
    Fault("Broyden calls a converged sample stalled", solver("Broyden"),
          after=lambda sol: set_status(sol, 0, 2)),
    Fault("NaN is called diverged", lambda g: g.problem == "nan" and g.mode != "vmap",
          after=lambda sol: set_status(sol, 4, 3)),
    Fault("two evaluations more are counted, Anderson", solver("Anderson"),
          after=lambda sol: shift_evals(sol, 2)),
    Fault("two evaluations fewer are counted, Picard", solver("Picard"),
          after=lambda sol: shift_evals(sol, -2)),
    Fault("the residual is that of another iterate", mode("float64"),
          after=lambda sol: setattr(sol.stats, "residual", sol.stats.residual * 1e5)),
    Fault("values of NewtonKrylov are a thousandth off", solver("NewtonKrylov"),
          after=on_value(lambda z: z * 1.001)),
    Fault("two samples are exchanged", lambda g: g.batch > 2 and g.mode == "float32",
          after=on_value(swap)),
    Fault("the last sample is returned at its start", lambda g: g.batch > 2 and g.mode == "second",
          after=on_value(drop_last)),
    Fault("samples that do not converge are returned at their start",
          lambda g: g.mode in ("float64", "float32") and g.problem in ("drift", "rotation"),
          after=drop_unconverged),
    Fault("a row of per_row is lost", mode("per_row", 2), after=on_value(drop_last)),
    Fault("groups take each other's status", mode("coupled", 3),
          after=lambda sol: setattr(sol, "status", sol.status * 0 + 1)),
    Fault("the state is returned in half precision", mode("autocast"),
          after=on_value(lambda z: z.bfloat16())),
    Fault("gradients of operands are a hundredth off", exact,
          before=lambda x, a: (rescale(x, 1.01), a)),
    Fault("gradients of the matrix are a hundredth off", exact,
          before=lambda x, a: (x, rescale(a, 1.01))),
    Fault("a sample's gradient is lost", lambda g: exact(g) and g.mode not in ("vmap", "coupled"),
          before=lose_first_gradient),
    Fault("gradients under vmap are a hundredth off", lambda g: exact(g) and g.mode == "vmap",
          before=lambda x, a: (rescale(x, 0.99), a)),
    Fault("second derivatives are missing", lambda g: exact(g) and g.mode == "second",
          before=lambda x, a: (rescale(x, 1.0, once=True), rescale(a, 1.0, once=True))),
    Fault("one-step gradients are a hundredth off", lambda g: g.adjoint[0] == "JacobianFree",
          before=lambda x, a: (rescale(x, 1.01), rescale(a, 1.01))),
    Fault("the adjoint's count is two more", lambda g: exact(g) and g.mode == "float64",
          after=lambda sol: setattr(sol, "more_products", 2)),
    Fault("an impossible pair is not refused",
          lambda g: g.adjoint[0] == "Shine" and g.number % 10 == 0),
)  # fmt: skip


def faulty(fault: Fault) -> Callable[..., Any]:
    """`eq.fixed_point` with the fault."""
    right = draws.eq.fixed_point

    def fixed_point(f: Any, z0: Any, x: Tensor, a: Any, **arguments: Any) -> Any:
        if "not refused" in fault.name:
            arguments["adjoint"] = draws.eq.JacobianFree()
        matrix = a.value
        x, matrix = fault.before(x, matrix)
        sol = right(f, z0, x, draws.eq.shared(matrix), **arguments)
        stats = SimpleNamespace(evals=sol.stats.evals, residual=sol.stats.residual)
        changed = SimpleNamespace(value=sol.value, status=sol.status, stats=stats)
        fault.after(changed)
        return Wrapped(sol, changed)

    return fixed_point


class Wrapped:
    """A solution whose adjoint is read when it is asked for, after the backward."""

    def __init__(self, sol: Any, changed: SimpleNamespace) -> None:
        self._sol, self._more = sol, getattr(changed, "more_products", 0)
        self.value, self.status, self.stats = changed.value, changed.status, changed.stats

    @property
    def adjoint(self) -> Any:
        found = self._sol.adjoint
        if found is None or not self._more:
            return found
        stats = SimpleNamespace(evals=found.stats.evals + self._more)
        return SimpleNamespace(status=found.status, stats=stats)


def noticed(fault: Fault, record: Path) -> tuple[int, int]:
    """In how many draws the comparison finds the fault, and how many have it."""
    about, known = read(record)
    affected = [given for n in known if fault.where(given := draw(n, about["seed"]))][:CHECKED]
    real, found = draws.eq, 0
    fake = SimpleNamespace(**{name: getattr(real, name) for name in real.__all__})
    fake.fixed_point = faulty(fault)
    for given in affected:
        draws.eq = fake  # pyright: ignore[reportAttributeAccessIssue]
        try:
            with warnings.catch_warnings(action="ignore"):
                new = draws.solve(given)
        except Exception as error:
            new = {"error": draws.np.array(type(error).__name__)}
        finally:
            draws.eq = real
        found += any(True for _ in differences(given, known[given.number], new))
    return found, len(affected)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path)
    given = parser.parse_args()
    missed = 0
    for fault in FAULTS:
        found, affected = noticed(fault, given.record)
        missed += not found
        print(f"{'found' if found else 'MISSED'} in {found:2} of {affected:2} draws: {fault.name}")
    print(f"{len(FAULTS) - missed} of {len(FAULTS)} faults found")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
