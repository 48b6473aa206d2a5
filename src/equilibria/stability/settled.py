"""A module's layer at its fixed points on one batch, for measurements there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equilibria.nn import DEQ, using
from equilibria.solve import Broyden, Implicit, Picard, Shared, Status, followable
from equilibria.stability.patient import Patient, Seen

__all__ = ["Settled", "as_it_is", "copied", "settle", "unsettled"]

BUDGET = 1000
"""Evaluations that a solve may take, at least: plain iteration takes 600 at a radius of .98."""


@dataclass(frozen=True)
class Settled:
    """The solved samples of a batch: z* and the operands that belong to it.

    Attributes:
        layer: whose cell it is a fixed point of.
        z: z* of the solved samples; None if there are none.
        operands: of the cell, for these.
        solved: (samples,) bool, which they are.
    """

    layer: DEQ
    z: Any
    operands: tuple[Any, ...]
    solved: Tensor

    @classmethod
    def of(cls, layer: DEQ, seen: Seen, found: Tensor) -> Settled:
        """Take the solved samples, those with `found` (samples,), out of a call."""
        found = found.cpu()
        if bool(found.all()):
            return cls(layer, seen.solution.value, seen.operands, found)
        if not bool(found.any()):
            return cls(layer, None, (), found)
        z, operands = (_rows(tree, found) for tree in (seen.solution.value, seen.operands))
        return cls(layer, z, operands, found)

    @property
    def cell(self) -> Callable[..., Any]:
        return self.layer.cell

    @property
    def plain(self) -> tuple[Any, ...]:
        """The operands as the cell gets them."""
        return tuple(o.value if isinstance(o, Shared) else o for o in self.operands)

    def spread(self, values: Tensor) -> Tensor:
        """Put values of the solved samples in their places of the batch, among NaN."""
        out = torch.full(self.solved.shape, torch.nan, dtype=torch.float64)
        out[self.solved] = values.detach().double().cpu()
        return out


def copied(model: nn.Module, inputs: tuple[Any, ...]) -> Patient:
    """A copy in eval mode to measure on, made within `as_it_is`; see `Patient`."""
    patient = Patient.admit(model, pytree.tree_map_only(Tensor, followable, inputs))
    patient.layer.adjoint = Implicit()  # others answer with another iterate
    return patient


def settle(patient: Patient, rtol: float) -> Settled:
    """Solves by the layer's own solver and, where that fails, by Broyden's.

    Args:
        patient: of `copied`.
        rtol: relative residual at which a sample counts as solved.
    """
    layer = patient.layer
    used = layer.eval_solver or layer.solver
    budget = max(BUDGET, used.max_evals)
    with using(layer, replace(used, rtol=rtol, atol=0.0, max_evals=budget)):
        seen = patient.call()
    found = seen.solution.status == Status.CONVERGED
    if not bool(found.all()):
        # From the start, for the best iterate of a method that fails can be anywhere.
        with using(layer, Broyden(rtol=rtol, max_evals=budget, memory=50)):
            again = patient.call()
        found_again = again.solution.status == Status.CONVERGED
        use = ~found & found_again
        merged = pytree.tree_map(
            lambda a, b: torch.where(_rowwise(use, a), b, a),
            seen.solution.value,
            again.solution.value,
        )
        seen = replace(seen, solution=replace(seen.solution, value=merged))
        found = found | found_again
    return Settled.of(layer, seen, found)


def unsettled(patient: Patient) -> Settled:
    """The layer at its own start, in place of the fixed points: no sample is solved."""
    layer = patient.layer
    with using(layer, Picard(max_evals=1)):  # answers with the one iterate that it evaluates
        seen = patient.call()
    nobody = torch.zeros_like(seen.solution.status, dtype=torch.bool, device="cpu")
    return Settled(layer, seen.solution.value, seen.operands, nobody)


@contextmanager
def as_it_is(model: nn.Module) -> Iterator[None]:
    """Leaves torch's random generators as they were; nothing inside has a gradient.

    Whatever mode the caller is in: inference mode, in which nothing can be differentiated, and
    autocast, whose bfloat16 has no residual as small as is asked for, end inside.
    """
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    kinds = {"cpu"} | {p.device.type for p in model.parameters()}
    with ExitStack() as stack:
        for kind in sorted(kinds):
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())  # which the end of inference mode would undo
        stack.enter_context(torch.random.fork_rng(devices=sorted(devices)))
        yield


def _rows(tree: Any, which: Tensor) -> Any:
    """The rows of some samples in all tensors but those that all samples share."""
    index = which.nonzero().flatten()

    def pick(x: Any) -> Any:
        own = isinstance(x, Tensor) and not isinstance(x, Shared)
        return x.index_select(0, index.to(x.device)) if own else x

    return pytree.tree_map(pick, tree)


def _rowwise(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of samples, to be broadcast over their entries; of one sample for a coupled batch."""
    mask = mask.to(like.device)
    return mask.reshape(-1, *(1 for _ in like.shape[1:]))
