"""The one rule that says of a sample whether f(z) is to be taken for z.

A sample has converged when ||f(z) - z|| <= atol + rtol ||f(z)||, and not by growing alone:
z <- z + 1 meets any relative tolerance once z is large. So where f(z) has outgrown its start,

    ||f(z)|| > GROWTH S,  S = max(||f(z_0)||, ||f(z_0) - z_0||),

the residual itself must have fallen below

    atol + max(SHARE S, min(10 rtol, LARGEST_SHARE) ||f(z_0) - z_0||),

what f(z) is rounded by included: far out z + 1 is z. A map whose residual stays above that is
never taken for solved, whatever a solver does on its way. The largest residual on the way in place
of S would serve starts near an unstable fixed point better, whose residuals grow before they fall,
but an excursion far out makes it as large as you please.

The rule is coded in `Criterion.has_converged`, for a measured state. `Criterion.limit` says the
same as the largest residual that is tolerated, for a linear solver, which has to aim at one.
Rounding stands on different sides of the two: `fallen` adds it to the residual, for a ratio that is
compared with 1; `limit` subtracts it from what is allowed, since it returns a residual alone.

An equilibrium that is zero to rounding has no relative residual to speak of: where ||f(z)|| and
||f(z) - z|| have both fallen below eps^1.5 S, they count as zero, and 0 / 0 is 0. A start
that is itself zero beside the S of the solve that it was taken from keeps that S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.layout import Layout
from equilibria.solve.options import Flat, length_of, of_leaf
from equilibria.solve.rows import Rows, divide_lengths, length
from equilibria.solve.solvers import Limits, Point, Solver

GROWTH = 4.0
SHARE, LARGEST_SHARE = 0.03, 0.3


@dataclass(frozen=True)
class Reference:
    """What a solve is measured from: lengths at its start, `(samples,)`.

    Attributes:
        size: S, the larger of ||f(z_0)|| and ||f(z_0) - z_0||.
        residual: ||f(z_0) - z_0||.
        before: S of the solve that a warm start comes from; None: it comes from none.
    """

    size: Tensor
    residual: Tensor
    before: Tensor | None = None

    @classmethod
    def at(cls, residual: Tensor, f: Tensor, before: Tensor | None = None) -> Reference:
        """From the lengths of f(z_0) - z_0 and of f(z_0)."""
        return cls(torch.maximum(residual, f), residual, before)

    @property
    def largest(self) -> Tensor:
        """The larger of S and that of the solves before it."""
        return self.size if self.before is None else torch.fmax(self.size, self.before)

    @property
    def size_to_keep(self) -> Tensor:
        """The S that a warm start from here keeps: that of before for a start that was zero beside
        it, or it would count as large in the next solve; else this one's."""
        if self.before is None:
            return self.size
        return torch.where(self.size < self.zero, self.largest, self.size)

    @property
    def growth_limit(self) -> Tensor:
        """The length from which on f(z) has outgrown the start."""
        return GROWTH * self.size

    @property
    def zero(self) -> Tensor:
        """The length below which a state is zero to rounding."""
        share = torch.finfo(self.size.dtype).eps ** 1.5
        return torch.nan_to_num(share * self.largest, nan=0.0, posinf=0.0)

    def is_zero(self, residual: Tensor, f: Tensor) -> Tensor:
        """Are f(z) and z zero to rounding?"""
        return (residual < self.zero) & (f < self.zero)

    def share(self, rtol: float | Tensor) -> Tensor:
        """What the residual must have fallen below where f(z) has grown, less the absolute
        tolerance."""
        return torch.maximum(SHARE * self.size, _loose(rtol) * self.residual)

    def select(self, index: Tensor) -> Reference:
        before = None if self.before is None else self.before.index_select(0, index)
        size, residual = (x.index_select(0, index) for x in (self.size, self.residual))
        return Reference(size, residual, before)


def _loose(rtol: float | Tensor) -> float | Tensor:
    if isinstance(rtol, Tensor):
        return torch.clamp(10 * rtol, max=LARGEST_SHARE)
    return min(10 * rtol, LARGEST_SHARE)


class Measure(NamedTuple):
    """f(z) and f(z) - z of each sample `(samples,)`.

    Attributes:
        size: ||f(z) - z||.
        scale: ||f(z)||.
        relative: the relative residual ||f(z) - z|| / ||f(z)||; of the worst row where each has to
            meet the tolerance.
        tolerance_ratio: the residual over what is tolerated, times `Criterion.goal`.
        arriving: is a row of z zero where that of f(z) is not? None where rows are not looked at.
    """

    size: Tensor
    scale: Tensor
    relative: Tensor
    tolerance_ratio: Tensor
    arriving: Tensor | None = None


@dataclass(frozen=True)
class Criterion:
    """The tolerance of a solve, in Euclidean lengths of rows.

    Attributes:
        rtol: relative tolerance: one, one for each leaf, or one for each sample `(samples,)`.
        atol: absolute tolerance, one or one for each leaf, in the RMS norm.
        layout: how the state lies in the rows; None where each is a sample as it is.
        per_row: the rows of the state that make up a sample have each to meet the tolerance.
        plain: `Measure.tolerance_ratio` is the relative residual, and `goal` is rtol; else it is
            the residual over what is tolerated, and `goal` is 1.
        by_part: a sample is measured by its worst row, or leaf.
    """

    rtol: Flat | Tensor
    atol: Flat = 0.0
    layout: Layout | None = None
    per_row: bool = False
    plain: bool = field(init=False)
    goal: float = field(init=False)
    by_part: bool = field(init=False)

    def __post_init__(self) -> None:
        by_leaf = isinstance(self.rtol, tuple) or isinstance(self.atol, tuple)
        plain = not (isinstance(self.rtol, Tensor | tuple) or self.atol)
        several = self.per_row and self.layout is not None and self.layout.coupled is not False
        object.__setattr__(self, "plain", plain)
        object.__setattr__(self, "goal", self.rtol if plain else 1.0)
        object.__setattr__(self, "by_part", self.layout is not None and (several or by_leaf))

    @classmethod
    def of(cls, solver: Limits, layout: Layout | None, rtol: Tensor | None = None) -> Criterion:
        """The tolerances of a solver, which are in the order of the leaves, or `rtol`."""
        own: Any = solver
        per_row = isinstance(solver, Solver) and solver.per_row
        return cls(own.rtol if rtol is None else rtol, own.atol, layout, per_row)

    def select(self, index: Tensor) -> Criterion:
        """The criterion of the samples named by `index`."""
        rtol = self.rtol.index_select(0, index) if isinstance(self.rtol, Tensor) else self.rtol
        layout = None if self.layout is None else self.layout.select(index)
        return Criterion(rtol, self.atol, layout, self.per_row)

    @property
    def loosest(self) -> float | Tensor:
        return max(self.rtol) if isinstance(self.rtol, tuple) else self.rtol

    def absolute(self, rows: Rows) -> float | Tensor:
        """The absolute tolerance as a length."""
        whole = length_of(self.atol, [row.shape[1] for row in rows])
        if not whole or self.layout is None:
            return whole
        share = self.layout.share
        return whole if share is None else whole * share

    def measure(self, residual: Rows, f: Rows, size: Tensor, scale: Tensor) -> Measure:
        """Measures f(z) and f(z) - z, whose lengths are `scale` and `size`."""
        if self.by_part:
            return self._measure_parts(residual, f, size, scale)
        relative = size / scale
        if self.plain:
            return Measure(size, scale, relative, relative)
        assert not isinstance(self.rtol, tuple)
        limit = torch.add(scale * self.rtol, self.absolute(f))
        relative = torch.where(size == 0, size, relative)  # 0 / 0 where f(z) is zero too
        return Measure(size, scale, relative, size / limit)

    def tolerances(self, rows: Rows) -> tuple[float | Tensor, float | Tensor]:
        """a and b of the ratio size / (a scale + b), which `Measure.tolerance_ratio` is unless a
        sample is measured by its parts."""
        assert not isinstance(self.rtol, tuple)
        return (1.0, 0.0) if self.plain else (self.rtol, self.absolute(rows))

    def unit(self, dtype: torch.dtype) -> float:
        """`goal`, or the smallest normal number in place of 0."""
        return max(self.goal, torch.finfo(dtype).tiny)

    def tolerance_ratio(self, point: Point) -> Tensor:
        """The residual of a point over what is tolerated, `(samples,)`."""
        residual, f = ([row.detach() for row in rows] for rows in (point.residual, point.f))
        found = self.measure(residual, f, point.size, length(f))
        return found.tolerance_ratio / self.unit(point.size.dtype)

    def measure_exactly(self, residual: Rows, f: Rows) -> Measure:
        """The same, where squares may have been rounded to nothing and 0 / 0 is 0."""
        residual, f = ([row.detach() for row in rows] for rows in (residual, f))
        found = self.measure(residual, f, length(residual), length(f))
        short = found.size < underflow_length(f)
        if self.by_part or not private.some(short):
            return found
        return self.correct(found, residual, f, short)

    def correct(self, found: Measure, residual: Rows, f: Rows, short: Tensor) -> Measure:
        """A measure with the ratios of those samples whose residual is too short to be squared."""
        relative = torch.where(short, divide_lengths(residual, f), found.relative)
        tolerance_ratio = relative
        if not self.plain:
            tolerance_ratio = torch.where(found.size == 0, 0.0, found.tolerance_ratio)
        return Measure(found.size, found.scale, relative, tolerance_ratio, found.arriving)

    def fallen(self, now: Measure, reference: Reference, rows: Rows) -> Tensor:
        """The residual over what it must have fallen below where f(z) has grown, both with their
        rounding: at 1 it has."""
        allowed = self.absolute(rows) + reference.share(self.loosest)
        return (now.size + bound_rounding(now.scale)) / allowed

    def has_converged(self, now: Measure, reference: Reference | None, rows: Rows) -> Tensor:
        """The verdict: has the sample converged?

        Args:
            reference: None for a state that no solve has begun at.
            rows: in the shape of the state.
        """
        met = torch.isfinite(now.size + now.scale) & (now.tolerance_ratio <= self.goal)
        if reference is None:
            return met
        held = (now.scale > reference.growth_limit) & ~(self.fallen(now, reference, rows) <= 1)
        return (met & ~held) | reference.is_zero(now.size, now.scale)

    def limit(self, scale: Tensor, reference: Reference, rows: Rows) -> Tensor:
        """The largest residual that is tolerated where ||f(z)|| is `scale`; one tolerance for all
        leaves."""
        assert not isinstance(self.rtol, tuple)
        absolute = self.absolute(rows)
        relative = absolute + self.rtol * scale
        if not isinstance(self.rtol, Tensor) and not self.rtol:
            return relative  # an absolute tolerance is met by no growth
        fallen = absolute + reference.share(self.rtol) - bound_rounding(scale)
        grown = scale > reference.growth_limit
        return torch.where(grown, torch.minimum(relative, fallen), relative)

    def _measure_parts(self, residual: Rows, f: Rows, size: Tensor, scale: Tensor) -> Measure:
        """By the worst part of each sample: a row, such as a node of a graph, or a leaf.

        Over all rows together a relative residual of 1e-3 is met when nine hops out of ten of a
        signal that fades have not been made yet; what is still to come is small beside what is
        there. By rows it is not: where a signal arrives f(z) is all residual. And over all leaves
        together 128 channels of a hidden state hide the two of a flow.
        """
        assert self.layout is not None
        by_leaf = isinstance(self.rtol, tuple) or isinstance(self.atol, tuple)
        residual, f = ([row.detach() for row in rows] for rows in (residual, f))
        gaps = self.layout.parts(residual) if self.per_row else None
        images = self.layout.parts(f) if self.per_row else None
        share = self.layout.share if gaps is None else self.layout.unit_share
        if gaps is None or images is None:
            gaps, images = ([row.unsqueeze(1) for row in rows] for rows in (residual, f))
        part, whole, unit = _lengths(gaps, images)
        relative = torch.where(part == 0, 0.0, part / whole).amax(1)
        ratios: list[Tensor] = []
        for leaf in range(len(gaps) if by_leaf else 1):
            here = images
            if by_leaf:
                here = images[leaf : leaf + 1]
                part, whole, unit = _lengths(gaps[leaf : leaf + 1], here)
            entries = sum(each.shape[2] for each in here)
            absolute = of_leaf(self.atol, leaf) * math.sqrt(entries) / unit
            if share is not None:
                absolute = absolute * share[:, None]
            rtol = self.rtol
            goal = rtol[:, None] if isinstance(rtol, Tensor) else of_leaf(rtol, leaf)
            ratios.append(torch.where(part == 0, 0.0, part / (goal * whole + absolute)).amax(1))
        at_zero = torch.stack([(a == b).all(2) for a, b in zip(gaps, images, strict=True)]).all(0)
        there = torch.stack([each.any(2) for each in images]).any(0)
        tolerance_ratio = ratios[0] if len(ratios) == 1 else torch.stack(ratios).amax(0)
        arriving = (at_zero & there).any(1)
        return Measure(size, scale, relative, relative if self.plain else tolerance_ratio, arriving)


def bound_rounding(scale: Tensor) -> Tensor:
    return torch.finfo(scale.dtype).eps * scale


def underflow_length(rows: Rows) -> float:
    """The squares of a shorter length may be rounded to nothing."""
    info = torch.finfo(rows[0].dtype)
    return math.sqrt(info.tiny / info.eps)


def _lengths(gaps: Rows, images: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """||f(z) - z|| and ||f(z)|| in a unit of each part's own, and the unit: `(samples, rows)` all.

    Far out, a signal is smaller than what can be squared.
    """
    largest = torch.stack([part.abs().amax(2) for part in (*gaps, *images)]).amax(0)
    unit = torch.where(largest > 0, largest, 1.0)
    size, scale = (_length([part / unit[..., None] for part in x]) for x in (gaps, images))
    return size, scale, unit


def _length(parts: Rows) -> Tensor:
    """`(samples, rows)`."""
    squares = [part.square().sum(2) for part in parts]
    return torch.stack(squares).sum(0).sqrt()
