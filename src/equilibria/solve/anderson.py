"""Anderson acceleration, at every evaluation or between plain steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.options import damping_field, nonnegative_field, whole_field
from equilibria.solve.rows import Memory, Rows, add_scaled, keep_samples, length
from equilibria.solve.solvers import Point, Solver, Stepper

_linalg: Any = torch.linalg  # whose stubs leave functions untyped
ROOM = 2  # the slots in front of the differences: the newest residual and the one before it


@dataclass(frozen=True, kw_only=True)
class Anderson(Solver):
    """Anderson acceleration (type II), in difference form; with a period, alternating with plain
    steps.

    With g_k = f(z_k) - z_k and the differences dz_j, dg_j of successive iterates and residuals,

        gamma = argmin || g_k - sum_j gamma_j dg_j ||^2
        z_{k+1} = z_k + beta g_k - sum_j gamma_j (dz_j + beta dg_j),

    which is the constrained form of Bai 2022 (thesis), Alg. 2 and eq. 6.1, without its bordered
    system. Only the newest row of the Gram matrix of the dg_j is computed; the small systems are
    solved in float64.

    With a period of 3 it takes about as many evaluations, and a third of the work beside them.
    Where plain steps lead astray, as on stiff maps, it then converges less often.

    History: 2 x `history` + 2 vectors of the size of z, and where the period is not 1, as it
    extrapolates, up to `history` + 1 more.

    Attributes:
        history: differences kept, the m of the papers, best a multiple of `period`; None keeps all.
        damping: beta, of the plain steps too, between 0 and 2, exclusive; 1 is undamped.
        ridge: Tikhonov term, each difference's relative to its own squared length, so that scaling
            a problem changes nothing. None: 8 times the rounding of the state's dtype.
        period: extrapolate at every `period`-th evaluation, from 2 x `period` on, with plain steps
            between; 1 is the method of the papers.

    Source: Anderson 1965; Walker and Ni 2011; the period: Pratapa, Suryanarayana and Pask 2016
        (alternating Anderson-Jacobi), Banerjee, Suryanarayana and Pask 2016 (periodic Pulay).
    """

    history: int | None = whole_field(6, 1)
    damping: float = damping_field(1.0)
    ridge: float | None = nonnegative_field(None)
    period: int = whole_field(1, 1)

    @override
    def start(self, tracked: bool, jacobian: object = None) -> Stepper:
        return AndersonStepper(self, tracked)


class AndersonStepper(Stepper):
    """The differences, and the step that they give. `Auto` drives its two halves by itself."""

    PER_SAMPLE = ("gram", "base")
    glances = True

    def __init__(self, solver: Anderson, tracked: bool) -> None:
        self.solver = solver
        self.tracked = tracked
        differences = solver.history or solver.max_evals
        self.residuals = Memory(differences + ROOM, tracked)  # g_k, g_{k-1}, then the dg_j
        self.moves = Memory(differences, tracked)  # dz_j + beta dg_j
        self.gram: Tensor | None = None  # of the dg_j, its diagonal times 1 + ridge
        self.waiting: list[int] = []  # differences whose row of the Gram matrix is missing
        self.base: Rows | None = None  # the last f where beta is 1, else the last z
        self.evals = 0
        self.stored = 0
        self.dtype = torch.float32

    @override
    def residual(self, f: Rows, z: Rows) -> Rows:
        return self.residuals.store(self.evals % ROOM, f, z)

    @override
    def places(self, z: Rows) -> Rows:
        return self.residuals.place(self.evals % ROOM, z)

    @override
    def step(self, now: Point) -> Rows:
        plain, period = self.store(now), self.solver.period
        if self.evals % period or self.evals < 2 * period:
            return plain
        return self.extrapolate(plain)

    def store(self, now: Point) -> Rows:
        """Keeps the newest differences; returns the plain step."""
        solver, beta = self.solver, self.solver.damping
        base = now.f if beta == 1 else now.z
        if self.base is not None:
            slot = (self.evals - 1) % (solver.history or self.evals)
            if not (self.fused and beta == 1 and self._store_at_once(slot, base)):
                change = self.residuals.store(
                    ROOM + slot, now.residual, self.residuals.at((self.evals - 1) % ROOM)
                )
                # dz + dg is the difference of the images
                move = self.moves.store(slot, base, self.base)
                if beta != 1:
                    self.moves.store(slot, move, change, beta)
            self.stored = max(self.stored, slot + 1)
            self.waiting.append(slot)
        self.base = base
        self.evals += 1
        return now.f if beta == 1 else add_scaled(now.z, beta, now.residual)

    def extrapolate(self, plain: Rows, where: Tensor | None = None) -> Rows:
        """The accelerated step in place of the plain one, for the samples `where`; None: all."""
        if not self.stored:
            return plain
        if self.fused and (out := self._extrapolate_at_once(plain, where)) is not None:
            return out
        # Zero, which is the plain step, for a sample whose system cannot be factorised.
        gamma = minimizer(*self.system())[0].to(self.dtype)
        if where is not None:
            gamma = gamma.masked_fill(~where.unsqueeze(1), 0.0)
        return self.moves.combine(gamma, 0, onto=plain, scale=-1.0)

    def _store_at_once(self, slot: int, f: Rows) -> bool:
        """The same by an operator; False where it does not serve."""
        assert self.base is not None
        self.residuals.place(ROOM + slot, f)
        self.moves.place(slot, f)
        histories = zip(self.residuals.rows(), self.moves.rows(), strict=True)
        return all(
            torch.ops.equilibria.store.default(row, before, *both, self.evals % ROOM, slot)
            for row, before, both in zip(f, self.base, histories, strict=True)
        )

    def _extrapolate_at_once(self, plain: Rows, where: Tensor | None) -> Rows | None:
        """The same by an operator; None where it does not serve."""
        newest, waiting = (self.evals - 1) % ROOM, self.waiting[-(self.solver.history or 0) :]
        out = [torch.empty_like(row) for row in plain]
        served: bool = torch.ops.equilibria.extrapolate.default(
            *(plain, self.residuals.rows(), self.moves.rows(), self._gram_of(plain[0])),
            *(waiting, newest, self.stored, 1 + self._ridge(plain[0].dtype), where, out),
        )
        if not served:
            return None
        self.waiting = []
        return out

    def system(self) -> tuple[Tensor, Tensor]:
        """The normal equations in float64: the Gram matrix of the dg_j, slot by slot, with the
        ridge `(samples, stored, stored)`, and the products with g_k `(samples, stored)`."""
        newest = (self.evals - 1) % ROOM
        waiting = self.waiting[-(self.solver.history or len(self.waiting)) :]
        self.waiting = []
        slots = [newest, *[ROOM + slot for slot in waiting]]
        if self.tracked:  # no writing in place: take the whole matrix anew
            slots = [newest, *range(ROOM, ROOM + self.stored)]
        products = self.residuals.dots(slots, ROOM, ROOM + self.stored)
        self.dtype = products.dtype
        ridge = self._ridge(self.dtype)
        if self.tracked:
            gram = products[:, 1:].double()
            square = gram.diagonal(dim1=1, dim2=2)
            # A sample at rest has differences zero; what is to be differentiated must be solvable.
            gram = gram + torch.diag_embed(torch.where(square > 0, ridge * square, 1.0))
        else:
            gram = self._update_gram(products[:, 1:], waiting, 1 + ridge)
        return gram, products[:, 0].double()

    def _ridge(self, dtype: torch.dtype) -> float:
        ridge = self.solver.ridge
        return 8 * torch.finfo(dtype).eps if ridge is None else ridge

    def _update_gram(self, rows: Tensor, waiting: list[int], scale: float) -> Tensor:
        gram, length = self._gram_of(rows), self.stored
        for row, slot in enumerate(waiting):
            gram[:, slot, :length] = rows[:, row]
            gram[:, :length, slot] = rows[:, row]
            gram[:, slot, slot].mul_(scale)
        return gram[:, :length, :length]

    def _gram_of(self, rows: Tensor) -> Tensor:
        """The Gram matrix, with room for what is stored of so many samples."""
        length = self.stored
        if self.gram is None or self.gram.shape[1] < length:
            grows = 2 * max(4, length)  # room for what there is: `history` may be any number
            room = min(self.solver.history or grows, grows)
            grown = rows.new_zeros(rows.shape[0], room, room, dtype=torch.float64)
            if self.gram is not None:
                known = self.gram.shape[1]
                grown[:, :known, :known] = self.gram
            self.gram = grown
        return self.gram

    @override
    def select(self, index: Tensor) -> None:
        self.residuals.select(index)
        self.moves.select(index)
        keep_samples(self, index)

    @override
    def ritz(self, here: Tensor) -> Tensor | None:
        """The eigenvalues of H with df_j = sum_i dz_i H_ij in the least-squares sense: J, seen in
        the space of the dz_j."""
        if self.tracked or not self.stored:
            return None
        beta, found = self.solver.damping, self.stored
        change = torch.cat(
            [leaf[here, ROOM : ROOM + found] for leaf in self.residuals.rows()], dim=2
        ).double()
        move = torch.cat([leaf[here, :found] for leaf in self.moves.rows()], dim=2).double()
        step = move - beta * change
        return ritz_values(step, step + change)


def minimizer(gram: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The solution of the normal equations, zero where they cannot be factorised; and the Cholesky
    factor."""
    factor, failed = _linalg.cholesky_ex(gram)  # which never raises
    gamma = torch.cholesky_solve(right.unsqueeze(2), factor).squeeze(2)
    if not private.known_zero(failed):
        gamma = gamma.masked_fill(failed.bool().unsqueeze(1), 0.0)
    return gamma, factor


def ritz_values(step: Tensor, image: Tensor) -> Tensor:
    """Eigenvalues of the H that makes ||image^T - step^T H|| least, `(samples, k)` complex.

    Args:
        step: dz_j, `(samples, k, entries)`.
        image: J dz_j, of the same shape.

    Directions that hardly differ from others are left out; NaN stands in their place.
    """
    lengths = length([step.flatten(0, 1)]).view(step.shape[:2])
    finite = torch.isfinite(length([image.flatten(1)])) & torch.isfinite(lengths).all(dim=1)
    step = torch.where(finite[:, None, None], step, 0.0)
    image = torch.where(finite[:, None, None], image, 0.0)
    lengths = torch.where(finite.unsqueeze(1), lengths, 0.0)
    scale = torch.where(lengths > 0, lengths.reciprocal(), 0.0).unsqueeze(2)
    step, image = step * scale, image * scale
    left, values, right = _linalg.svd(step.transpose(1, 2), full_matrices=False)
    kept = values > 1e-6 * values[:, :1].clamp_min(1e-300)
    inverse = torch.where(kept, values.reciprocal(), 0.0)
    small = left.transpose(1, 2) @ (image.transpose(1, 2) @ right.transpose(1, 2))
    small = small * inverse.unsqueeze(1) * kept.unsqueeze(2)
    found = _linalg.eigvals(small)
    # Each direction left out adds an eigenvalue zero; those of the smallest size are they.
    order = found.abs().argsort(dim=1, descending=True)
    found = found.gather(1, order)
    return torch.where(kept, found, torch.nan)
