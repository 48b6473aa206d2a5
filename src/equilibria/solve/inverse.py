"""What a quasi-Newton method has learned of the Jacobian."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equilibria.solve.rows import Rows


@dataclass(frozen=True)
class Inverse:
    """Broyden's approximation of (I - J)^-1, J = df/dz, for each sample: I + S_+ R S^T.

    A sample's matrix is that of its last evaluation.

    Attributes:
        steps: s_0, s_1, ..., `(samples, k + 1, entries)` a leaf; S has all but the last of them,
            S_+ all but the first.
        matrix: R, `(samples, k, k)`, zero beyond the sample's own length.
        lengths: `(samples,)`, that length.
    """

    steps: Rows
    matrix: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, steps: Rows, found: list[tuple[Tensor, Tensor]]) -> Inverse:
        """From R of the samples as they ended: `(which samples, R)` each time."""
        samples, device = steps[0].shape[0], steps[0].device
        longest = max(matrix.shape[1] for _, matrix in found)
        whole = torch.zeros(samples, longest, longest, dtype=torch.float64, device=device)
        lengths = torch.zeros(samples, dtype=torch.int64, device=device)
        for place, matrix in found:
            k = matrix.shape[1]
            whole[place, :k, :k] = matrix.double()
            lengths[place] = k
        # Later steps of a finished sample are no steps: they may be anything.
        kept = [
            torch.nan_to_num(leaf[:, : longest + 1], nan=0.0, posinf=0.0, neginf=0.0)
            for leaf in steps
        ]
        return cls(kept, whole, lengths)

    def direct(self, c: Rows) -> Rows:
        """(I + S_+ R S^T) c."""
        return self._applied(c, self.matrix, 0, 1)

    def transposed(self, g: Rows) -> Rows:
        """(I + S R^T S_+^T) g."""
        return self._applied(g, self.matrix.transpose(1, 2), 1, 0)

    def _applied(self, rows: Rows, matrix: Tensor, right: int, left: int) -> Rows:
        k = matrix.shape[1]
        if not k:
            return list(rows)
        products = [
            torch.bmm(leaf[:, right : right + k], row.unsqueeze(2))
            for leaf, row in zip(self.steps, rows, strict=True)
        ]
        total = products[0]
        for product in products[1:]:
            total = total + product
        own = torch.arange(k, device=matrix.device) < self.lengths.unsqueeze(1)
        total = torch.where(own.unsqueeze(2), total.double(), 0.0)
        weights = torch.bmm(matrix, total).to(rows[0].dtype).transpose(1, 2)
        return [
            torch.baddbmm(row.unsqueeze(1), weights, leaf[:, left : left + k]).squeeze(1)
            for leaf, row in zip(self.steps, rows, strict=True)
        ]
