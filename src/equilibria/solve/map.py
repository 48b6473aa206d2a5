"""The user's f, with all that it takes to evaluate it again and to differentiate it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.boundary import AutocastRegion, enter_region, is_current
from equilibria.solve.capture import Captured, Recorder, require_known
from equilibria.solve.closure import UserFunction
from equilibria.solve.derivative import FrozenParameter, Linearization
from equilibria.solve.equation import Equation
from equilibria.solve.tree import Leaves, Operands, Tree, describe, flatten, followable, unflatten


@dataclass(kw_only=True)
class UserMap(Equation):
    """(z, p) -> f(z, *operands), with the tensors that f closes over.

    The parameters p are the operands' tensors, then the closed-over ones.

    Attributes:
        f: as given, of a state and operands as trees.
        state_spec: the structure of the state.
        operands: of f, without their tensors.
        autocast: the region that f was called in; every later evaluation enters it.
        has_aux: f returns something beside the state.
        expected: tensors that f closes over, whether its first evaluation uses them or not.
        captured: those that it was found to close over.
    """

    f: UserFunction
    state_spec: pytree.TreeSpec
    operands: Operands
    autocast: AutocastRegion
    has_aux: bool = False
    expected: Sequence[Tensor] = ()
    captured: Captured = field(default_factory=Captured)

    @override
    def evaluate(self, z: Leaves, p: Leaves) -> Leaves:
        return self.evaluate_with_aux(z, p)[0]

    def evaluate_with_aux(self, z: Leaves, p: Leaves) -> tuple[Leaves, Tree]:
        """f, and what it returns beside the state: None without `has_aux`."""
        split = len(self.operands.slots)
        operands = p[:split]
        given = operands if self.operands.spec is None else self.operands.tree(operands)
        inputs = [*z, *operands]
        before = _versions(inputs)
        state, stand_ins = unflatten(z, self.state_spec), p[split:]
        try:
            if self.captured.is_bare(stand_ins) and is_current(self.autocast):
                out = self.f(state, *given)  # no block to enter at each evaluation
            else:
                with self.captured.substitute(stand_ins), enter_region(self.autocast):
                    out = self.f(state, *given)
        except RuntimeError as error:
            _add_remedy(error)
            raise
        if (after := _versions(inputs)) != before:
            number = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
            what = "its state" if number < len(z) else f"operand tensor {number - len(z)}"
            raise RuntimeError(
                f"{self.letter} changed {what} in place: later evaluations still need it. Return "
                "a new tensor, by x + y in place of x.add_(y)"
            )
        aux = None
        if self.has_aux:
            if not (isinstance(out, tuple) and len(cast("tuple[Any, ...]", out)) == 2):
                raise TypeError(
                    f"{self.letter} returned {describe(out)}: with has_aux=True it returns a pair, "
                    "the state and something beside it"
                )
            out, aux = cast("tuple[Any, Any]", out)
        image = self._check_image(out, z)
        if not self.f.is_root:
            return image, aux
        return [x - y for x, y in zip(z, image, strict=True)], aux

    @property
    def letter(self) -> str:
        """What messages call f."""
        return "g" if self.f.is_root else "f"

    def evaluate_first(self, z: Leaves, p: Leaves) -> tuple[Leaves, Tree]:
        """The same where nothing is known of f yet: notes whether it computes in reduced
        precision."""
        with self.note_precision():
            return self.evaluate_with_aux(z, p)

    @contextmanager
    def note_precision(self) -> Generator[None]:
        """Notes whether f, evaluated inside, computes in reduced precision."""
        if not self.autocast.floor:
            yield
            return
        with Recorder() as recorder:
            yield
        self.captured.reduced |= recorder.reduced

    @override
    def evaluate_known(
        self, z: Leaves, p: Leaves, others: Leaves, used: Sequence[Tensor] = ()
    ) -> Leaves:
        if private.transform_active():  # whose wrappers hide the graph
            return self.evaluate(z, p)
        return require_known(lambda: self.evaluate(z, p), [*z, *p, *others], used)

    def _check_image(self, out: Tree, z: Leaves) -> Leaves:
        if (
            type(out) is Tensor
            and len(z) == 1
            and self.state_spec.is_leaf()
            and out.shape == z[0].shape
            and out.dtype == z[0].dtype
        ):
            return [out]
        leaves, spec = flatten(out)
        if spec != self.state_spec or not all(isinstance(leaf, Tensor) for leaf in leaves):
            f, pair = self.letter, isinstance(out, tuple) and len(cast("tuple[Any, ...]", out)) == 2
            beside = pair and not self.has_aux and flatten(out[0])[1] == self.state_spec
            raise TypeError(
                f"{f} returned {describe(out)} where the state is "
                f"{describe(unflatten(z, self.state_spec))}: {f} must return a state like the one "
                f"it is given{', or, with has_aux=True, it and something beside it' * beside}"
            )
        for position, (leaf, like) in enumerate(zip(leaves, z, strict=True)):
            if leaf.shape != like.shape:
                raise ValueError(
                    f"{self.letter} returned the shape {tuple(leaf.shape)} where the state "
                    f"(leaf {position}) has {tuple(like.shape)}"
                )
            if leaf.dtype != like.dtype:
                if not (self.autocast.enabled and leaf.dtype.is_floating_point):
                    raise TypeError(
                        f"{self.letter} returned {leaf.dtype} where the state (leaf {position}) is "
                        f"{like.dtype}: give it operands and parameters of the state's dtype, or "
                        "run it under torch.autocast"
                    )
                leaves[position] = leaf.to(like.dtype)
                self.captured.reduced = True
        return leaves

    @property
    @override
    def floor(self) -> float:
        return self.autocast.floor if self.captured.reduced else 0.0

    @override
    def linearize(self, z: Leaves, p: Leaves, needed: Sequence[bool]) -> Linearization:
        with suppress(FrozenParameter):
            return self._linearize(z, p, needed, as_they_are=True)
        return self._linearize(z, p, needed, as_they_are=False)

    def _linearize(
        self, z: Leaves, p: Leaves, needed: Sequence[bool], as_they_are: bool
    ) -> Linearization:
        """The same; parameters of a module are used `as_they_are`, where that is right.

        One with hooks gets a stand-in, or the hooks would run inside the backward solve too; a
        tensor with a history gets one, or its history would be differentiated there too. What
        only scripted or compiled code sees can have none.
        """
        own, captured, split = self.leaves_for(p, needed), self.captured, len(self.operands.slots)
        others: Leaves = []
        plain: set[int] = set()
        for i, (original, value) in enumerate(
            zip(captured.originals, captured.values, strict=True)
        ):
            need = needed[split + i]
            hooks: Any = original._backward_hooks  # pyright: ignore[reportPrivateUsage]
            usable = need and original.is_leaf and original.requires_grad and not hooks
            if i in captured.fixed or (as_they_are and usable and value is original):
                own[split + i] = original
                plain.add(id(original))
            if not need:
                others += [original, value]
        used = [x for x in captured.used if as_they_are and id(x) in plain]
        return Linearization.at(
            lambda z, p: self.evaluate_known(z, p, others, used),
            z,
            own,
            needed,
            lambda: captured.substitute(own[split:]),
            self.f.enter_evaluation(),
        )

    def linearize_state(self, z: Leaves, p: Leaves) -> Linearization:
        """The same for products with df/dz alone, at parameters that are used as they are."""
        p = [followable(x) for x in p]
        stand_ins = p[len(self.operands.slots) :]
        return Linearization.at(
            self.evaluate, z, p, per_product=lambda: self.captured.substitute(stand_ins)
        )

    @override
    def operand_count(self, p: Leaves) -> int:
        return len(self.operands.slots)

    @override
    def require_substitutable(self) -> None:
        if self.captured.fixed:
            shapes = [tuple(self.captured.originals[i].shape) for i in sorted(self.captured.fixed)]
            raise RuntimeError(
                f"f uses tensors of shape {shapes} in scripted or compiled code: there is no "
                "second derivative, and no torch.func transform, with respect to them unless they "
                "are passed as operands (eq.shared(tensor))"
            )


def _add_remedy(error: RuntimeError) -> None:
    """Notes beside an error of torch.autograd in f what it means there."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if frame.f_code.co_filename.startswith(_AUTOGRAD):
        note = (
            "f is evaluated without gradients in a solve, at a state that requires none: "
            "differentiate in it by torch.func.grad, or under torch.enable_grad() with respect to "
            "(z if z.requires_grad else z.detach().requires_grad_()) and with create_graph=True"
        )
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


_AUTOGRAD = os.path.dirname(torch.autograd.__file__)
_VERSION = attrgetter("_version")


def _versions(leaves: Leaves) -> list[int]:
    """Counts the changes in place that each leaf has seen."""
    try:
        return list(map(_VERSION, leaves))
    except RuntimeError:  # those made in inference mode count none
        return [0 if x.is_inference() else x._version for x in leaves]
