"""Restarted GMRES, batched over samples, on a Krylov basis that knows what it was made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve.linear import Goal, LinearSolver, Measured, Product
from equilibria.solve.options import whole_field
from equilibria.solve.rows import Rows, length, room, sum_of

# A vector that was more than so many times as long before its projection on the others was taken
# off is made orthogonal once more: else one pass has left it so to a few units of rounding.
# Source: Daniel, Gragg, Kaufman and Stewart 1976.
CANCELLATION = 2.0


class Krylov:
    """v_0 = r / |r|, v_1, v_2, ...: an orthonormal basis of the Krylov space of A from r.

    A v_k is made orthogonal to v_0 ... v_k and given length 1. Beside its entries each vector
    carries its coordinates (y, c_0, c_1, ...), by which, with B = I - A,

        v_j = y_j v_0 + sum_i c_ji B v_i,

    and which every operation on the vector changes as well: no Hessenberg matrix, rotations or
    triangular systems are needed. As the v_j are orthonormal, sum_j y_j v_j / sum_j y_j^2 is the
    shortest vector of the form v_0 + B w: the residual of GMRES, and its coordinates are the
    solution. It is A v_k that is orthogonalised, and not B v_k, because it lies further from v_k
    where A is small: little is lost by cancellation.

    The vectors lie in one buffer a leaf, `(samples, vectors, entries)`, which grows by doubling
    up to the limit; the coordinates are at the end of the first leaf's rows. For speed alone, rows
    are padded to whole cache lines: those of a power of two would otherwise begin at other
    alignments.

    Args:
        residual: r.
        size: its length, above zero.
        limit: vectors after v_0, at most.

    Attributes:
        length: vectors so far.
        total: sum_j y_j (y_j, c_j0, c_j1, ...) over them, `(samples, 1 + room)`.
    """

    def __init__(self, residual: Rows, size: Tensor, limit: int) -> None:
        self.limit = limit
        self.length = 1
        self.widths = [row.shape[1] for row in residual]
        self.lines = [_whole_lines(row.shape[1], row) for row in residual]
        self.buffers: Rows = []
        self._like = residual
        self.eps = torch.finfo(size.dtype).eps
        self._grow(room(1, limit + 1))
        column = size.clamp_min(torch.finfo(size.dtype).tiny).unsqueeze(1)
        for buffer, row, width in zip(self.buffers, residual, self.widths, strict=True):
            torch.div(row, column, out=buffer[:, 0, :width])
        self.coordinates(0)[:, 0] = 1
        self.total = self._before = self.coordinates(0).clone()

    def vector(self, slot: int) -> Rows:
        return [
            buffer[:, slot, :width] for buffer, width in zip(self.buffers, self.widths, strict=True)
        ]

    def coordinates(self, slot: int) -> Tensor:
        """(y, c) of a vector: `(samples, 1 + room)`."""
        return self.buffers[0][:, slot, self.lines[0] :]

    def extend(self, image: Rows) -> tuple[Tensor, Tensor]:
        """Adds the vector made of A v, where v is the last one.

        Returns:
            What of it was left beside the other vectors, and what lay in their space: two lengths
            `(samples,)`.
        """
        last = self.length - 1
        if self.length == self.buffers[0].shape[1]:
            self._grow(room(self.length + 1, self.limit + 1))
        for work, row, width in zip(self._work, image, self.widths, strict=True):
            work[:, 0, :width] = row
        # A v = v - B v, and the coordinates say so.
        torch.sub(
            self.coordinates(last), self._units[last], out=self._work[0][:, 0, self.lines[0] :]
        )
        self.length += 1
        shadow = self._dots(self._work)
        height = self._store(self._work, shadow)
        self._before = self.total
        self._add()
        return height, length([shadow[:, 0]])

    def again(self, which: Tensor) -> None:
        """Makes the last vector of the samples `which` orthogonal to the others once more."""
        last = [buffer[:, self.length - 1 : self.length] for buffer in self.buffers]
        shadow = self._dots(last) * which[:, None, None]
        shadow[:, :, self.length - 1 :] = 0  # its product with itself
        self._store(last, shadow, which)
        self._add()

    def _add(self) -> None:
        last = self.coordinates(self.length - 1)
        self.total = torch.addcmul(self._before, last, last[:, :1])

    def _dots(self, rows: Rows) -> Tensor:
        """Products with all vectors but the last: `(samples, 1, vectors)`."""
        return sum_of(
            [
                row[:, :, :line] @ buffer[:, : self.length - 1, :line].transpose(1, 2)
                for row, buffer, line in zip(rows, self.buffers, self.lines, strict=True)
            ]
        )

    def _store(self, rows: Rows, shadow: Tensor, which: Tensor | None = None) -> Tensor:
        """rows - shadow, at length 1, becomes the last vector; returns the length it had."""
        end = shadow.shape[2]
        rest = [
            torch.baddbmm(row, shadow, buffer[:, :end], alpha=-1)
            for row, buffer in zip(rows, self.buffers, strict=True)
        ]
        height = length([row[:, 0, :width] for row, width in zip(rest, self.widths, strict=True)])
        # Nothing but rounding is left where the space is exhausted.
        divisor = height.clamp_min(self.eps)
        if which is not None:
            divisor = torch.where(which, divisor, 1.0)
        for row, buffer in zip(rest, self.buffers, strict=True):
            torch.div(row, divisor[:, None, None], out=buffer[:, self.length - 1 : self.length])
        return height

    def combine(self, coefficients: Tensor) -> Rows:
        """The sum of the first vectors with `coefficients` `(samples, number)`."""
        number = coefficients.shape[1]
        left = coefficients.unsqueeze(1)
        return [
            (left @ buffer[:, :number, :line])[:, 0, :width]
            for buffer, line, width in zip(self.buffers, self.lines, self.widths, strict=True)
        ]

    def table(self) -> Tensor:
        """The coordinates of all vectors: `(samples, length, 1 + room)`."""
        return self.buffers[0][:, : self.length, self.lines[0] :]

    def forget(self, kept: Tensor) -> Tensor:
        """Sets vectors to zero that are not `kept` `(samples, length)`; says whose are finite."""
        for buffer in self.buffers:
            vectors = buffer[:, : self.length]
            vectors.masked_fill_(~kept.unsqueeze(2), 0.0)
        return torch.stack(
            [
                torch.isfinite(buffer[:, : self.length, :line]).flatten(1).all(dim=1)
                for buffer, line in zip(self.buffers, self.lines, strict=True)
            ]
        ).all(dim=0)

    def _grow(self, vectors: int) -> None:
        first = self._like[0]
        extra = _whole_lines(vectors, first)
        grown: Rows = []
        for leaf, (row, width, line) in enumerate(
            zip(self._like, self.widths, self.lines, strict=True)
        ):
            new = row.new_empty(row.shape[0], vectors, line + (extra if leaf == 0 else 0))
            new[:, :, width:] = 0
            if self.buffers:
                old = self.buffers[leaf]
                new[:, : old.shape[1], : old.shape[2]] = old
            grown.append(new)
        self.buffers = grown
        if self.length > 1:
            self.total = torch.nn.functional.pad(self.total, (0, extra - self.total.shape[1]))
        self._work = [buffer.new_zeros(buffer.shape[0], 1, buffer.shape[2]) for buffer in grown]
        self._units = torch.eye(vectors, extra, dtype=first.dtype, device=first.device).roll(1, 1)


def _whole_lines(count: int, like: Tensor) -> int:
    """So many entries of the dtype of `like`, up to whole cache lines of 64 bytes."""
    line = 64 // like.element_size()
    return -(-count // line) * line


# A cycle ends a little below the tolerance, for its residual is an estimate.
MARGIN = 0.95


@dataclass(frozen=True, kw_only=True)
class GMRES(LinearSolver):
    """GMRES on (I - A) u = g: the minimal residual over the Krylov space of the cycle.

    Converges for any nonsingular I - A when `restart` spans the space, also where the spectral
    radius of A is above 1. The basis is orthonormal to a few units of rounding.

    History: vectors of the size of u, one a product and one more, up to `restart` + 1, in room that
    doubles until it has reached that or what `max_evals` allows. Source: Saad and Schultz 1986.

    Attributes:
        restart: products in a cycle, >= 1.
    """

    restart: int = whole_field(20, 1)

    @override
    def cycle(
        self, product: Product, start: Measured, goal: Goal, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor, Tensor]:
        limit = min(self.restart, int(torch.where(active, budget, 0).max()))
        tight = bool((active & (budget < limit)).any())
        test = _Tolerance(goal, start)
        basis = Krylov(start.residual, test.size, limit)
        # After each product: who goes on, and whose newest vector is not orthogonal yet.
        flags = torch.zeros(limit, 2, *active.shape, dtype=torch.bool, device=active.device)
        going = active
        for k in range(limit):
            height, shadow = basis.extend(product(basis.vector(k)))
            if tight:
                going = going & (budget > k + 1)
            alive = torch.bitwise_and(going, test.above(basis.total), out=flags[k, 0])
            weak = torch.sub(shadow, height, alpha=CANCELLATION) > 0
            torch.bitwise_and(alive, weak, out=flags[k, 1])
            seen: Any = flags[k].any(dim=1)  # one look at the device
            some, again = seen.tolist()
            if again and k + 1 < limit:
                basis.again(flags[k, 1] & (height > basis.eps))
                alive.bitwise_and_(test.above(basis.total))
                some = bool(alive.any())
            going = alive
            if not some:
                break
        used = active + flags[: basis.length - 2, 0].sum(dim=0)
        change, size = _shortest(basis, used, test.size)
        u = change if start.zero else [a + b for a, b in zip(start.u, change, strict=True)]
        return u, used, size


class _Tolerance:
    """Says of the residual that a Krylov space allows whether it is above the tolerance.

    With total = sum_j y_j (y_j, c_j) over the vectors of the space, the residual has the length
    size / sqrt(total[0]) and its solution the length size |total[1:]| / total[0].
    """

    def __init__(self, goal: Goal, start: Measured) -> None:
        self.size = start.size.clamp_min(torch.finfo(start.size.dtype).tiny)
        self.zero = start.zero
        self.rtol = goal.criterion.loosest * MARGIN
        # A cycle that has won all digits there are is done, whatever the tolerance.
        floor = torch.full_like(self.size, torch.finfo(self.size.dtype).eps)
        if not start.zero:  # the change of u is taken to be small beside it
            limit = goal.limit(start.scale, start.u).clamp_min(0.0)
            floor = floor + MARGIN * limit / self.size
        elif goal.absolute:
            floor = floor + MARGIN * goal.absolute / self.size
        self.floor = floor

    def above(self, total: Tensor) -> Tensor:
        squares = total[:, 0]
        excess = squares.sqrt()
        if self.zero:
            u = length([total[:, 1:]])
            if isinstance(self.rtol, Tensor):
                u, scale = u * self.rtol, 1.0
            else:
                scale = self.rtol
            excess = torch.sub(excess, u, alpha=scale)
        return torch.addcmul(excess, squares, self.floor, value=-1) > 0  # not NaN either


def _shortest(basis: Krylov, used: Tensor, size: Tensor) -> tuple[Rows, Tensor]:
    """The change of u that leaves the minimal residual, of each sample after its own products.

    Returns:
        The change, and the length of the residual.
    """
    count = basis.length - 1
    slots = torch.arange(count + 1, device=used.device)
    kept = slots <= used.unsqueeze(1)

    def weigh(coordinates: Tensor) -> tuple[Tensor, Tensor]:
        total = (coordinates[:, :, :1].transpose(1, 2) @ coordinates).squeeze(1)
        squares = total[:, 0]
        weights = total[:, 1 : count + 1] * (-size / squares).unsqueeze(1)
        return weights, size * squares.rsqrt()

    weights, left = weigh(basis.table() * kept.unsqueeze(2))
    change = basis.combine(weights)
    if bool(torch.isfinite(length(change)).all()):
        return change, left
    # A sample's vectors may have become NaN after it had finished; or they are finite, and its
    # space was exhausted without a solution in it, which leaves no digit of the weights.
    healthy = basis.forget(kept)
    weights, left = weigh(basis.table())
    lost = healthy & ~torch.isfinite(weights).all(dim=1)
    return basis.combine(torch.where(lost.unsqueeze(1), 0.0, weights)), left
