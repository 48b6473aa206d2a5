"""What is kept of a solve beside its solution: how wrong that is, and a trace of the way to it.

The error is estimated from the last steps of the iteration.

With the last differences of iterates dz_j and of residuals dr_j, and r = f(z) - z: to first order
dr_j = (J - I) dz_j, and z is wrong by (I - J)^-1 r. So with c = argmin ||r - sum_j c_j dr_j|| it is
wrong by sum_j c_j dz_j, and by what the rest of r contributes, which is taken to be amplified as
the differences are at most:

    ||z - z*|| = ||sum_j c_j dz_j|| + ||r - sum_j c_j dr_j|| max_j ||dz_j|| / ||dr_j||.

It takes no evaluation. It assumes that f is nearly linear between these iterates, and that the
directions in which z is wrong are among those that the iteration still moves in: an error that
contracts so slowly that it hardly shows in the last differences is not seen. Two differences are
used; more of them gain nothing.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.rows import Rows, entries, keep_samples, relative_by_leaf, select, sum_of
from equilibria.solve.solvers import Point, Stepper

POINTS = 3
WARNED_ERROR = 15.0  # times the tolerance, from which a sample that converged is warned of
SAFETY = 0.5  # share of a limit on the error that the estimate must be below
BLOCK = 1 << 13  # entries that are multiplied at once
# Entries of all samples up to which their vectors are kept and multiplied at the end, if a sample
# has fewer than LONG: many products of few entries take long beside f.
KEPT, LONG = 1 << 15, 1000
FEW = 8  # entries up to which many small matrix products are slower than their sums
RIDGE = 1e-10  # of differences of length 1
AMPLIFIED = 7.0  # the least that is looked at: the error over the residual


class Course:
    """The last three iterates of a solve, and their images, held by reference.

    Memory: four vectors of the size of z in plain iteration, where an image is the next iterate,
    else up to six, of which the method may hold some anyway.

    Attributes:
        limit: the largest error that is allowed; None: any.
        excess: `(samples,)` the estimated error of the newest iterate over what is allowed,
            infinite where nothing is known, 0 where it was not asked for; None without a limit.
    """

    PER_SAMPLE = ("excess",)

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit
        self.excess: Tensor | None = None
        self.points: deque[tuple[Rows, Rows]] = deque(maxlen=POINTS)
        self._vectors_kept: list[tuple[Tensor, Rows]] = []
        self._products_kept: list[tuple[Tensor, Tensor]] = []

    def add(self, z: Rows, f: Rows) -> None:
        """Notes the newest iterate and its image."""
        self.points.append((z, f))

    def select(self, index: Tensor) -> None:
        """Keeps the samples named by `index`."""
        points = [(select(z, index), select(f, index)) for z, f in self.points]
        self.points = deque(points, maxlen=POINTS)
        keep_samples(self, index)

    def compare(self, relative: Tensor, limit: float, which: Tensor | None) -> None:
        """Compares the newest iterate of these samples, of this relative residual, with the limit.

        Args:
            relative: residuals, `(samples,)`.
            limit: of the relative error.
            which: the samples, bool `(samples,)`; None: all.
        """
        if which is None:
            everybody = torch.arange(relative.shape[0], device=relative.device)
            excess = estimate_error(self.products(everybody), relative) / (limit * SAFETY)
            self.excess = excess.nan_to_num(nan=torch.inf, posinf=torch.inf)
            return
        self.excess = torch.zeros_like(relative)
        if not private.some(which):
            return
        here = which.nonzero().flatten()
        excess = estimate_error(self.products(here), relative[here]) / (limit * SAFETY)
        excess = excess.nan_to_num(nan=torch.inf, posinf=torch.inf)
        self.excess.index_copy_(0, here, excess.to(relative.dtype))

    def end(self, here: Tensor, at: Tensor, known: Tensor | None) -> None:
        """Keeps what is needed of samples that end with the newest iterate.

        Args:
            here: their places in the batch.
            at: their places among all.
            known: `(samples,)`, those in the batch of which the newest iterate is the answer; None:
                all.
        """
        if len(self.points) == 1:
            return
        if known is not None and not private.every(known := known.index_select(0, here)):
            here, at = here[known], at[known]
        if not here.numel():
            return
        rows = self.points[0][0]
        size = rows[0].shape[0] * entries(rows)
        if size <= (KEPT if entries(rows) < LONG else BLOCK):  # multiplied all at once
            leaves, everybody = self._rows(), len(here) == rows[0].shape[0]
            if size > BLOCK and not everybody:
                leaves, everybody = [select(each, here) for each in leaves], True
            vectors = [torch.stack(each, 1) for each in leaves]
            self._vectors_kept.append((at, vectors if everybody else select(vectors, here)))
        else:
            self.note(at, self._multiply_in_blocks(here))

    def note(self, at: Tensor, products: Tensor) -> None:
        """Keeps the products of samples that have ended, which are `at` among all."""
        self._products_kept.append((at, products))

    def results(self, like: Tensor) -> Tensor:
        """The products of all samples that have ended, NaN for one of which nothing is known."""
        kept, several = list(self._products_kept), self._vectors_kept
        events = len(kept) + len(several)
        if several:
            at = torch.cat([places for places, _ in several])
            leaves = zip(*(vectors for _, vectors in several), strict=True)
            kept.append((at, _multiply([torch.cat(leaf) for leaf in leaves])))
        samples = like.shape[0]
        if events == 1 and len(kept[0][0]) == samples:  # all at once, in order
            return kept[0][1]
        out = like.new_full((samples, FORMS), torch.nan, dtype=torch.float64)
        for at, products in kept:
            out.index_copy_(0, at, products)
        return out

    def products(self, here: Tensor) -> Tensor:
        """The products of the samples at these places; NaN after a single evaluation."""
        found = self._multiply_in_blocks(here)
        return found if len(self.points) > 1 else torch.full_like(found, torch.nan)

    def _multiply_in_blocks(self, here: Tensor) -> Tensor:
        """The products of these samples, some samples and entries after the others."""
        leaves = self._rows()
        most = max(1, BLOCK // entries(self.points[0][0]))
        found: list[Tensor] = []
        for first in range(0, len(here), most):
            part = here[first : first + most]
            blocks: list[Tensor] = []
            for rows in leaves:
                for start in range(0, rows[0].shape[1], BLOCK):
                    block = [row[:, start : start + BLOCK].index_select(0, part) for row in rows]
                    blocks.append(_multiply([torch.stack(block, 1)]))
            found.append(sum_of(blocks))
        return torch.cat(found)

    def _rows(self) -> list[Rows]:
        points = [self.points[0]] * (POINTS - len(self.points)) + list(self.points)
        leaves = range(len(points[0][0]))
        return [[x[leaf].detach() for point in points for x in point] for leaf in leaves]


def _quadratic_forms() -> Tensor:
    """The matrix `(36, 9)` that makes of the products of z_0 - z_2, f_0 - z_2, ..., f_2 - z_2 with
    each other those of dz_0 and dz_1, those of dr_0 and dr_1, theirs with r, and that of r with
    itself."""
    basis: Any = torch.eye(2 * POINTS, dtype=torch.float64, device="cpu")
    z, f = basis[::2], basis[1::2]
    moves, changes, r = z.diff(dim=0), (f - z).diff(dim=0), (f - z)[-1]
    pairs = [(x[i], x[j]) for x in (moves, changes) for i, j in ((0, 0), (0, 1), (1, 1))]
    pairs += [(changes[0], r), (changes[1], r), (r, r)]
    forms: list[Tensor] = [torch.outer(a, b).flatten() for a, b in pairs]
    return torch.stack(forms, 1)


_FORMS = _quadratic_forms()
FORMS = _FORMS.shape[1]


def _multiply(leaves: Rows) -> Tensor:
    """dz_0^2, dz_0 dz_1, dz_1^2, dr_0^2, dr_0 dr_1, dr_1^2, dr_0 r, dr_1 r, r^2 of samples
    `(samples, 9)`, in float64.

    Args:
        leaves: z_0, f_0, z_1, f_1, z_2, f_2, `(samples, 6, entries)`.
    """
    products: list[Tensor] = []
    for vectors in leaves:
        vectors = vectors.to(torch.float64, copy=True)
        vectors -= vectors[:, -2:-1].clone()
        if vectors.shape[2] <= FEW:
            products.append((vectors.unsqueeze(1) * vectors.unsqueeze(2)).sum(3))
        else:
            products.append(vectors @ vectors.mT)
    return sum_of(products).flatten(1) @ _FORMS.to(products[0].device)


def estimate_error(products: Tensor, relative: Tensor, *, rounded: bool = False) -> Tensor:
    """The relative error of each sample `(samples,)`, NaN where there was no difference, or none
    that exceeds what f(z) is rounded by: that makes the differences of residuals longer than they
    are, and the estimate too small.

    Args:
        products: either form of `Run.course`; errors `(samples,)` are returned as they are.
        relative: the relative residual, `(samples,)`, in whose measure the error is.
        rounded: estimate from differences below rounding too.
    """
    if products.dim() == 1:
        return products
    z00, z01, z11, r00, r01, r11, b0, b1, rest = products.unbind(1)
    n0, n1 = _root(r00), _root(r11)
    # The normal equations of differences of length 1.
    cosine = torch.where((n0 > 0) & (n1 > 0), r01 / (n0 * n1), 0.0)
    b0, b1 = (torch.where(n > 0, b / n, 0.0) for b, n in ((b0, n0), (b1, n1)))
    determinant = (1 + RIDGE) ** 2 - cosine.square()
    c0 = ((1 + RIDGE) * b0 - cosine * b1) / determinant
    c1 = ((1 + RIDGE) * b1 - cosine * b0) / determinant
    left = _root(rest - c0 * b0 - c1 * b1)
    c0, c1 = (torch.where(n > 0, c / n, 0.0) for c, n in ((c0, n0), (c1, n1)))
    known = _root(c0.square() * z00 + 2 * c0 * c1 * z01 + c1.square() * z11)
    ratio = torch.maximum(
        *(torch.where(n > 0, _root(z) / n, 0.0) for z, n in ((z00, n0), (z11, n1)))
    )
    amplified = (known + left * ratio) / _root(rest)
    least = 0.0 if rounded else torch.finfo(relative.dtype).eps * _root(rest) / relative
    amplified = torch.where(torch.maximum(n0, n1) > least, amplified, torch.nan)
    return torch.where(relative == 0, 0.0, amplified * relative).to(relative.dtype)


def _root(x: Tensor) -> Tensor:
    return x.clamp_min(0.0).sqrt()


def may_be_wrong(products: Tensor, relative: Tensor) -> bool:
    """Has any sample moved by much more than its residual changed? A quick look, which spares most
    solves the estimate; both as `estimate_error` takes them."""
    if products.dim() == 1:
        return private.some(products > AMPLIFIED * relative)
    return private.some(products[:, 0:3:2] > AMPLIFIED**2 * products[:, 3:6:2])


class Observer:
    """Notes the residuals of every evaluation, and what a method knows of samples that end.

    Args:
        samples: in the solve; tables have a row for each of them.
        trace: note the residuals, and at the end the Ritz values.
    """

    def __init__(self, samples: int, trace: bool) -> None:
        self.samples = samples
        self.traces = trace
        self._relative: list[Tensor] = []
        self._by_leaf: list[Tensor] = []
        self._tables: dict[str, Tensor] = {}

    def note_evaluation(
        self, point: Point, relative: Tensor, running: Tensor, index: Tensor | None
    ) -> None:
        """Notes an evaluation.

        Args:
            relative: residual of each sample in the batch.
            running: which of them have not finished.
            index: of the samples in the batch, among all; None: all.
        """
        # Detached before norms are taken: autograd would keep their graph, for nobody.
        residual, f = ([row.detach() for row in rows] for rows in (point.residual, point.f))
        each = relative_by_leaf(residual, f)
        relative = torch.where(running, relative, math.nan)
        each = torch.where(running, each, math.nan)
        if index is not None:
            relative = relative.new_full((self.samples,), math.nan).index_copy(0, index, relative)
            empty = each.new_full((len(each), self.samples), math.nan)
            each = empty.index_copy(1, index, each)
        self._relative.append(relative)
        self._by_leaf.append(each)

    def note_end(self, stepper: Stepper, here: Tensor, at: Tensor) -> None:
        """Notes what the method knows of the samples that end, which are `here` in the batch and
        `at` among all."""
        if self.traces and (ritz := stepper.ritz(here)) is not None:
            self._note("ritz", ritz, at, math.nan)
        if (choices := stepper.choices()) is not None:
            self._note("choices", choices.index_select(0, here), at, 0)

    def results(self, evals: Tensor, phases: int) -> dict[str, Tensor]:
        """Fields of `Stats`.

        Args:
            evals: of each sample, all phases together.
            phases: that the method has.
        """
        if phases:
            later = self._tables.get("choices", evals.new_zeros(self.samples, phases))[:, 1:]
            first = (evals - later.sum(1)).unsqueeze(1)
            self._tables["choices"] = torch.cat([first, later], 1)
        if not self._relative:
            return self._tables
        trace, by_leaf = torch.stack(self._relative), torch.stack(self._by_leaf)
        return {**self._tables, "trace": trace, "leaf_trace": by_leaf}

    def _note(self, name: str, rows: Tensor, at: Tensor, fill: float) -> None:
        """Writes the rows into a table, of which the shorter rows end with `fill`."""
        table = self._tables.get(name)
        if table is None:
            table = rows.new_full((self.samples, rows.shape[1]), fill)
        width = max(table.shape[1], rows.shape[1])
        table, rows = (
            torch.nn.functional.pad(x, (0, width - x.shape[1]), value=fill) for x in (table, rows)
        )
        self._tables[name] = table.index_copy(0, at, rows)
