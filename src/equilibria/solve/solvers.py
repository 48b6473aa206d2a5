"""What every forward solver has: limits, and methods of its own; and plain iteration."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve.layout import Layout
from equilibria.solve.options import (
    Options,
    Tolerance,
    check_tolerance,
    coarsen,
    damping_field,
    finest,
    flag_field,
    flatten_tolerance,
    name_of,
    number_field,
    whole_field,
)
from equilibria.solve.rows import Rows, add_scaled, sum_of


@dataclass(frozen=True)
class Inverse:
    """Broyden's approximation of (I - J)^-1, J = df/dz, for each sample: I + S_+ R S^T.

    A sample's matrix is that of its last evaluation.

    Attributes:
        steps: s_0, s_1, ..., `(samples, k + 1, entries)` a leaf; S has all but the last of them,
            S_+ all but the first.
        matrix: R, `(samples, k, k)`, zero beyond the sample's own length, as the steps are.
    """

    steps: Rows
    matrix: Tensor

    @classmethod
    def of(cls, steps: Rows, matrix: Tensor, lengths: Tensor) -> Inverse:
        """From all steps and R, one row lower, of which each sample has those up to its length."""
        k = int(lengths.max())
        own = torch.arange(k + 1, device=lengths.device) <= lengths.unsqueeze(1)
        if k:
            matrix = matrix[:, 1 : k + 1, :k].double()
            matrix = torch.where(own[:, 1:, None] & own[:, None, 1:], matrix, 0.0)
        else:
            matrix = torch.zeros(len(lengths), 0, 0, dtype=torch.float64)
        # Later steps of a finished sample are no steps: they may be anything.
        return cls([torch.where(own.unsqueeze(2), x[:, : k + 1], 0.0) for x in steps], matrix)

    def multiply(self, c: Rows) -> Rows:
        """(I + S_+ R S^T) c."""
        return self._apply(c, self.matrix, 0, 1)

    def multiply_transposed(self, g: Rows) -> Rows:
        """(I + S R^T S_+^T) g."""
        return self._apply(g, self.matrix.transpose(1, 2), 1, 0)

    def _apply(self, rows: Rows, matrix: Tensor, right: int, left: int) -> Rows:
        k = matrix.shape[1]
        if not k:
            return list(rows)
        total = sum_of(
            [
                torch.bmm(leaf[:, right : right + k], row.unsqueeze(2)).double()
                for leaf, row in zip(self.steps, rows, strict=True)
            ]
        )
        weights = torch.bmm(matrix, total).to(rows[0].dtype).transpose(1, 2)
        return [
            torch.baddbmm(row.unsqueeze(1), weights, leaf[:, left : left + k]).squeeze(1)
            for leaf, row in zip(self.steps, rows, strict=True)
        ]


Product = Callable[[Rows], Rows]
"""v -> J v."""


class Jacobian(Protocol):
    """z -> (v -> J(z) v), df/dz by its products, at the newest iterate.

    Attributes:
        cost: evaluations of f that the first one takes. From then on f keeps its graph.
    """

    cost: int

    def __call__(self, z: Rows) -> Product: ...


@dataclass(frozen=True, kw_only=True)
class Limits(Options):
    """When to stop. The base of all forward and linear solvers.

    A sample has converged when ||f(z) - z|| <= atol + rtol ||f(z)||, in the RMS norm over all its
    entries, and has not met that by growing alone, as z <- z + 1 does: once ||f(z)|| is over 4
    times S = max(||f(z_0)||, ||f(z_0) - z_0||), the residual must also have fallen below
    atol + .03 S, or atol + 10 rtol ||f(z_0) - z_0|| where rtol is loose, what f(z) is rounded by
    included. A start within tolerance counts, an equilibrium that is zero to rounding beside S
    does, and scaling by a power of two changes nothing. No rule on residuals bounds the error:
    for that there is `error`.

    Where f runs in reduced precision under autocast, a relative tolerance above 0 is at least half
    of the machine epsilon there, 3.9e-3 in bfloat16: no residual falls much below what f rounds by.

    Attributes:
        rtol: relative tolerance, >= 0.
        atol: absolute tolerance, >= 0, in the units of z.
        error: the largest relative error ||z - z*|| / ||z*||, > 0: a sample has converged when the
            estimate of it, `stats.error`, is below half of this too. None: only the residual
            counts. See `Stats` for what the estimate assumes.
        max_evals: evaluations of f (vector-Jacobian products, in a backward solve), >= 1.
    """

    rtol: Tolerance = 1e-4
    atol: Tolerance = 0.0
    error: float | None = number_field(None, lambda x: 0 < x < math.inf, "a number > 0, or None")
    max_evals: int = whole_field(100, 1)

    def no_finer_than(self, floor: float) -> Self:
        """This method with relative tolerances that f, which rounds by `floor`, can meet."""
        if not floor or (rtol := coarsen(self.rtol, floor)) == self.rtol:
            return self
        return replace(self, rtol=rtol)


@dataclass(frozen=True, kw_only=True)
class Solver(Limits, abc.ABC):
    """A fixed-point method z_0, z_1, ... with one evaluation of f a step.

    Beside its own history each holds the last three iterates and their images, from which
    `stats.error` is estimated: four vectors of the size of z in plain iteration, six in others, of
    which its history may hold some.

    Attributes:
        rtol, atol: a number; or one for each leaf of the state, as a tree like it: `rtol=(1e-2,
            1e-3)` of a pair. Then each leaf has to meet its own, ||f(z) - z|| <= atol + rtol
            ||f(z)|| over its entries, so that a large leaf hides nothing of a small one; the best
            iterate is the one whose worst leaf is nearest to that. The residual that is reported
            remains that of all leaves together.
        patience: a sample has stalled when its best residual fell by less than 1 % in this many
            iterates, which is looked for once every so many; None never gives up. More entries that
            come to rest than leave it, as behind a signal that travels through the state, are
            progress too. A Newton step is one iterate, however many products it takes; for other
            methods each evaluation is.
        per_row: where a sample is made of several rows of the state (see `coupled` of
            `fixed_point`), the tolerance is one for each of them, such as a node of a graph, and
            the residual of the sample is that of its worst row, 0 / 0 being 0. Over all rows
            together, a residual of 1e-3 is met before a signal that fades has travelled far.
    """

    patience: int | None = whole_field(20, 1)
    per_row: bool = flag_field(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("rtol", "atol"):
            object.__setattr__(
                self, field, check_tolerance(name_of(self, field), getattr(self, field))
            )

    @property
    def by_leaf(self) -> bool:
        """Is there a tolerance for each leaf of the state?"""
        return not (isinstance(self.rtol, int | float) and isinstance(self.atol, int | float))

    @property
    def finest(self) -> float:
        """The relative tolerance; of several, the smallest that is not 0."""
        return finest(self.rtol)

    @property
    def limits(self) -> dict[str, Any]:
        """The fields that every solver has, as options of another one."""
        return {field.name: getattr(self, field.name) for field in fields(Solver)}

    def like(self, state: object) -> Solver:
        """This method with its tolerances in the order of a state's leaves.

        Raises:
            ValueError: they are trees of another structure than the state.
        """
        return replace(
            self,
            **{
                name: flatten_tolerance(name, getattr(self, name), state)
                for name in ("rtol", "atol")
            },
        )

    def bound_to(self, cell: object) -> Solver:
        """This method for the cell of a layer, of which some need to know more than f's values.

        Raises:
            TypeError: the method is not made for such a cell.
        """
        del cell
        return self

    @abc.abstractmethod
    def start(self, tracked: bool, jacobian: Jacobian | None) -> Stepper:
        """The method's memory for one solve, empty.

        Args:
            tracked: autograd will follow the steps; nothing may be written in place.
            jacobian: df/dz by its products; None where they can't be had.
        """


class Point(NamedTuple):
    """An evaluated iterate: z, f(z), the residual f(z) - z and its length `(samples,)`.

    The residual may lie in the stepper's memory: it lasts until the next evaluation.

    The rest is for methods that look around, None for others.

    Attributes:
        best: each sample's iterate with the smallest residual, as the tolerance measures it.
        best_size: length of the residual there.
        running: `(samples,)`, which samples the step is for: those that have not finished, and
            those that have with this evaluation where the step from it is asked for.
        tolerance_ratio: `(samples,)` the newest residual over what is tolerated, or with
            `Limits.error` the estimated error over what is allowed, if that is larger; at 1 a
            sample has converged.
    """

    z: Rows
    f: Rows
    residual: Rows
    size: Tensor
    best: Rows | None = None
    best_size: Tensor | None = None
    running: Tensor | None = None
    tolerance_ratio: Tensor | None = None


class Stepper(abc.ABC):
    """The running state of a method.

    A sample that has finished stays in the batch, put back to its answer after every step. What a
    method then keeps of it means nothing, and must harm nobody else.

    Attributes:
        looks_around: it wants to be told more than the newest evaluation; see `Point`.
        glances: it serves with the operators of `fused`: it has `places`, and it keeps no length of
            a residual beyond its step.
        fused: the operators serve.
        spent: `(samples,)` evaluations that the latest step took beside the loop's own; None: none.
        phases: of a method whose evaluations are told apart by phase, at the least.
        layout: how the state lies in the rows; None where each leaf is a row as it is.
        tolerance_ratio: computes `Point.tolerance_ratio`, for a method that seldom wants it: the
            residual over what is tolerated, or with `Limits.error` the estimated error over what is
            allowed, if that is larger.
    """

    looks_around: bool = False
    glances: bool = False
    fused: bool = False
    spent: Tensor | None = None
    phases: int = 0
    layout: Layout | None = None
    tolerance_ratio: Callable[[Point], Tensor]

    def residual(self, f: Rows, z: Rows) -> Rows:
        """f - z, where the method wants it to lie."""
        return [y - x for y, x in zip(f, z, strict=True)]  # no further frame at each evaluation

    def places(self, z: Rows) -> Rows:
        """Where f - z of this evaluation is to lie; empty: nowhere. In place of `residual`."""
        del z
        return []

    def heeds(self, evals: int) -> bool:
        """Does the step from evaluation number `evals`, or what is noted of a sample that ends
        there, depend on who has ended by then?"""
        del evals
        return False

    @abc.abstractmethod
    def step(self, now: Point) -> Rows:
        """The next iterate, from the newest evaluation; newly made, or `now.f` itself."""

    @abc.abstractmethod
    def select(self, index: Tensor) -> None:
        """Keeps the samples named by `index`; the others have finished and leave the batch."""

    def ritz(self, here: Tensor) -> Tensor | None:
        """Ritz values `(len(here), k)` of df/dz, for the samples at these places, from what the
        method has stored, NaN where it has none; None for a method that stores nothing of the
        kind."""
        del here
        return None

    def retry(self, stalled: Tensor) -> Tensor | None:
        """Which samples it goes on with by other means, of those that have `stalled`, `(samples,)`;
        None: none."""
        del stalled
        return None

    def end(self, here: Tensor) -> None:
        """The samples at these places have ended with the newest evaluation, from which a step may
        still be asked for."""
        del here

    def find_inverse(self) -> Inverse | None:
        """What the method has learned of (I - df/dz)^-1 for each sample by its end; None for a
        method that learns nothing of the kind. No sample may have left the batch."""
        return None

    def choices(self) -> Tensor | None:
        """Evaluations that each sample spent in each phase `(samples, phases)`, for a method that
        has several; None: all in the first one, or there are none."""
        return None


@dataclass(frozen=True, kw_only=True)
class Picard(Solver):
    """Fixed-point iteration z <- (1 - damping) z + damping f(z).

    Converges where the damped map contracts: for damping 1, where the spectral radius of df/dz at
    the solution is below 1. History: none.

    Source: Bai et al. 2019, sec. 3.1; damping is the lambda of Bai 2022 (thesis), eq. 5.9.

    Attributes:
        damping: between 0 and 2, exclusive; 1 is undamped.
    """

    damping: float = damping_field(1.0)

    @override
    def start(self, tracked: bool, jacobian: object = None) -> Stepper:
        return _Picard(self.damping)


class _Picard(Stepper):
    glances = True

    def __init__(self, damping: float) -> None:
        self.damping = damping

    @override
    def places(self, z: Rows) -> Rows:
        return [] if self.damping == 1 else [torch.empty_like(row) for row in z]

    @override
    def step(self, now: Point) -> Rows:
        return now.f if self.damping == 1 else add_scaled(now.z, self.damping, now.residual)

    @override
    def select(self, index: Tensor) -> None:
        pass
