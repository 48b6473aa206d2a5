"""What a solve returns of each sample: its best iterate, and how it has ended."""

from __future__ import annotations

import torch
from torch import Tensor

from equilibria.solve.rows import Rows, choose, keep_samples, select


class Best:
    """Each sample's best iterate, the one with the smallest tolerance ratio.

    Args:
        z: the start.
        unknown: infinite `(samples,)`.
        wanted: the iterates are asked for; else only how good they were, which tells of a stall.
        sized: ||f - z|| is asked for, by a method that looks around.
        is_closest: the tolerance ratio is the relative residual.
        tracked: autograd follows the iteration.

    Attributes:
        z: the iterates; by reference where no sample fell back.
        error: their tolerance ratios, without the estimated error.
        relative: their relative residuals.
        size: ||f - z|| there.
    """

    PER_SAMPLE = ("z", "error", "relative", "size")

    def __init__(
        self,
        z: Rows,
        unknown: Tensor,
        *,
        wanted: bool,
        sized: bool,
        is_closest: bool,
        tracked: bool,
    ) -> None:
        self.z = z
        self.error = self.relative = self.size = unknown
        self.wanted, self.sized, self.is_closest = wanted, sized, is_closest
        self.tracked = tracked

    def take(self, z: Rows, size: Tensor, error: Tensor, relative: Tensor) -> None:
        """Takes an iterate that is the best of all samples."""
        self.z, self.size, self.error, self.relative = z, size, error, relative

    def keep(self, z: Rows, size: Tensor, error: Tensor, relative: Tensor) -> None:
        """Takes an iterate for the samples of which it is the best."""
        if not self.wanted:
            self.error = torch.minimum(error, self.error)
            return
        if self.tracked:
            better = error <= self.error
            size, relative = (
                torch.where(better, new, old)
                for new, old in ((size, self.size), (relative, self.relative))
            )
            z, error = choose(better, z, self.z), torch.where(better, error, self.error)
            return self.take(z, size, error, relative)
        back = (error > self.error).nonzero().flatten()
        if not len(back):
            return self.take(z, size, error, relative)
        self.z = _with(z, back, self.z)
        if not self.is_closest:
            self.relative = _with([relative], back, [self.relative])[0]
        if self.sized:
            self.size = _with([size], back, [self.size])[0]
        self.error = torch.minimum(error, self.error)
        if self.is_closest:
            self.relative = self.error

    def select(self, index: Tensor) -> None:
        """Keeps the samples named by `index`."""
        keep_samples(self, index)


class Outcome:
    """How samples have ended, and the answers of those that have and are still in the batch.

    A sample has two numbers: its place in the batch, which others may have left, and its place
    among all samples of the solve. `index` leads from the first to the second.

    Attributes:
        value, status, reason, evals, residual, size: see `Run`; one entry a sample, among all.
        left: how many run; not known where tracked.
        finished: who stays in the batch at its answer, by its place in the batch, and these
            answers; None: nobody.
        index: of the samples in the batch, the place among all; None: none has left, and both
            places are the same.
    """

    def __init__(self, z: Rows, unknown: Tensor) -> None:
        self.status = torch.zeros_like(unknown, dtype=torch.int8)  # CONVERGED
        self.reason = torch.zeros_like(self.status)
        self.evals = torch.zeros_like(unknown, dtype=torch.int64)
        self.residual = self.size = unknown
        self.value = z
        self.left = unknown.shape[0]
        self.finished: tuple[Tensor, Rows] | None = None
        self.index: Tensor | None = None

    def end(
        self,
        here: Tensor,
        evals: int | Tensor,
        spent: Tensor | None,
        status: Tensor | None,
        reason: Tensor | None,
        residual: Tensor,
    ) -> Tensor:
        """Notes samples that end; returns their places among all.

        Args:
            here: their places in the batch.
            evals: evaluations by now; or those of each, `(samples,)`.
            spent: `(samples,)`, more of each; None: none.
            status: `(samples,)`; None: all that end have converged.
            reason: the same; None: there is none.
            residual: `(samples,)`, relative, of what each returns.
        """
        at = here if self.index is None else self.index.index_select(0, here)
        if here.numel() == self.evals.numel() and status is not None:  # all at once
            self.evals.fill_(evals)
            self.status, self.residual = status, residual
        else:
            if isinstance(evals, Tensor):
                self.evals.index_copy_(0, at, evals.index_select(0, here))
            else:
                self.evals.index_fill_(0, at, evals)
            if status is not None:
                self.status.index_copy_(0, at, status.index_select(0, here))
            # A later evaluation of a finished sample might find it otherwise.
            self.residual = self.residual.index_copy(0, at, residual.index_select(0, here))
        if spent is not None:
            self.evals.index_add_(0, at, spent.index_select(0, here))
        if reason is not None:
            self.reason.index_copy_(0, at, reason.index_select(0, here))
        self.left -= here.numel()
        return at

    def end_tracked(
        self,
        ended: Tensor,
        evals: int | Tensor,
        status: Tensor,
        reason: Tensor | None,
        residual: Tensor,
    ) -> None:
        """The same by masks: nothing is written in place, and entries may be hidden by vmap."""
        self.status = torch.where(ended, status, self.status)
        self.evals = torch.where(ended, evals, self.evals)
        self.residual = torch.where(ended, residual, self.residual)
        if reason is not None:
            self.reason = torch.where(ended, reason, self.reason)

    def hold(self, here: Tensor, value: Rows) -> None:
        """Keeps samples that have ended in the batch, at their answers, rows of `value`."""
        rows = select(value, here)
        if self.finished is not None:
            index, before = self.finished
            here = torch.cat([index, here])
            rows = [torch.cat(pair) for pair in zip(before, rows, strict=True)]
        self.finished = (here, rows)

    def freeze(self, z: Rows, f: Rows) -> Rows:
        """The next iterate of running samples; a finished one stays at its answer.

        Args:
            z: the method's next iterate.
            f: what the function has returned. It may be somebody's, so it is never written to.
        """
        assert self.finished is not None
        index, rows = self.finished
        return [
            new.index_copy(0, index, at)
            if _same_memory(new, image)
            else new.index_copy_(0, index, at)
            for new, image, at in zip(z, f, rows, strict=True)
        ]

    def drop(self, keep: Tensor, value: Rows) -> None:
        """Drops samples from the batch, which has these values; `keep` says which stay."""
        self.value = self.among_all(value)
        self.index = keep if self.index is None else self.index.index_select(0, keep)
        self.finished = None

    def among_all(self, z: Rows) -> Rows:
        """Rows of the samples in the batch, with the values of those that have left."""
        index = self.index
        if index is None:
            return z
        return [x.index_copy(0, index, row) for x, row in zip(self.value, z, strict=True)]


def _with(rows: Rows, index: Tensor, others: Rows) -> Rows:
    """`rows` with those of `others` at `index`: on a CPU a mask would cost several passes."""
    return [
        row.index_copy(0, index, other.index_select(0, index))
        for row, other in zip(rows, others, strict=True)
    ]


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """Do two tensors, or what they are views of, lie in the same memory?"""
    return a is b or a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
