"""Learned mixing weights of an Anderson step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equilibria.solve import linalg
from equilibria.solve.rows import Layout, Rows
from equilibria.solve.solvers.neural import Seen

__all__ = ["GramMixer", "PooledMixer"]


class GramMixer(nn.Module):
    """Corrects Anderson's own weights by what the Gram matrix of the residuals shows.

    With the Cholesky factor L of the Gram matrix of the differences dg_j, and r = ||g - sum gamma_j
    dg_j|| what Anderson's weights leave of the residual,

        gamma = gamma_Anderson + r L^-T u,    u = reach * tanh(MLP(features)) / sqrt(s).

    The mixed residual grows to sqrt(1 + |u|^2) r, by 1.12 at most at the default reach: a step is
    bought that is longer in directions in which df/dz is small. The features are cosines and
    logarithms of ratios, the same for a state of any shape, size or scale. The last layer begins
    with zeros, so that untrained it is Anderson.

    Args:
        history: differences, the m of the papers; of a solver that keeps more, the older ones have
            Anderson's weights.
        hidden: units of the one hidden layer.
        reach: bound of |u|.
    """

    def __init__(self, history: int = 5, hidden: int = 16, reach: float = 0.5) -> None:
        super().__init__()
        self.sizes = {"history": history, "hidden": hidden, "reach": reach}
        self.history = history
        self.reach = reach
        self.hidden = nn.Linear(5 * history + 2, hidden)
        self.out = nn.Linear(hidden, history)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def pool(self, residual: Rows, layout: Layout | None) -> Tensor | None:
        """Nothing: the Gram matrix is all it looks at."""
        return None

    def mix(self, seen: Seen) -> tuple[Tensor, Tensor | None]:
        """Return the weights of the differences, and None: it does not damp."""
        stored = seen.gamma.shape[1]
        s = min(stored, self.history)
        diagonal = seen.factor.diagonal(dim1=1, dim2=2)
        by_slot = [
            seen.cosines,
            torch.asinh(seen.gamma),
            (seen.lengths / seen.size.unsqueeze(1)).clamp_min(1e-30).log() / 4,
            (diagonal / seen.lengths.clamp_min(1e-30)).clamp_min(1e-8).log() / 4,
            torch.ones_like(seen.gamma),
        ]
        left = (seen.left / seen.size).clamp_min(1e-8).log() / 4
        columns = [F.pad(each[:, :s], (0, self.history - s)) for each in by_slot]
        columns.append(torch.stack([left, seen.fall.to(left.dtype) / 8], 1))
        features = torch.cat(columns, 1).to(self.hidden.weight.dtype).clamp(-8, 8)
        u = self.reach * torch.tanh(self.out(F.relu(self.hidden(features))))[:, :s] / s**0.5
        u = F.pad(u, (0, stored - s))
        white = seen.left.unsqueeze(1) * u.to(seen.gamma.dtype)
        return seen.gamma + linalg.solve_lower_transposed(seen.factor, white), None


class PooledMixer(nn.Module):
    """The paper's mixer: pooled residuals, a temporal convolution of two layers, alpha and beta.

    Of each residual the mean over places is kept (eq. 6.3), of a sequence that of the last time.
    The weights of the iterates are alpha_hat + (1 - sum alpha_hat) / (s + 1): they may be negative
    and sum to 1. Beta lies between 0 and 2.

    Args:
        features: kept of each residual, all leaves together.
        hidden: channels of the convolutions, which the thesis leaves open.
        normalised: "shift" as above, "softmax", or "none": the newest iterate takes what is missing
            of 1. In Figure 6.7a nothing does, but a step made of differences has weights of sum 1.
        predicts: "both", or "alpha" or "beta" alone, the ablations of Figure 6.8: the other one is
            Anderson's, which for beta is 1.

    Source:
        Bai 2022 (thesis), Algorithm 3, with alpha^T G for the 1^T G of its line 7.
    """

    def __init__(
        self,
        features: int,
        hidden: int = 16,
        normalised: str = "shift",
        predicts: str = "both",
    ) -> None:
        super().__init__()
        if predicts not in ("both", "alpha", "beta"):
            raise ValueError(f"predicts must be both, alpha or beta; got {predicts}")
        if normalised not in ("shift", "softmax", "none"):
            raise ValueError(f"normalised must be shift, softmax or none; got {normalised}")
        self.sizes = {"features": features, "hidden": hidden, "normalised": normalised}
        self.sizes["predicts"] = predicts
        self.normalised, self.predicts = normalised, predicts
        self.first = nn.Conv1d(features, hidden, 3, padding=1)
        self.second = nn.Conv1d(hidden, 2, 3, padding=1)
        nn.init.zeros_(self.second.weight)
        assert self.second.bias is not None
        nn.init.zeros_(self.second.bias)

    def pool(self, residual: Rows, layout: Layout | None) -> Tensor | None:
        """Return the pooled residual `(samples, features)`.

        Raises:
            ValueError: the rows of the batch are coupled.
        """
        if layout is not None and layout.coupled is not False:
            raise ValueError(
                "PooledMixer is for samples of one row each, and the rows of this batch are "
                "coupled: use a GramMixer"
            )
        leaves = residual if layout is None else layout.leaves(residual)
        return torch.cat([pooled(leaf) for leaf in leaves], 1)

    def mix(self, seen: Seen) -> tuple[Tensor, Tensor | None]:
        """Return the weights of the differences, and beta."""
        assert seen.pooled is not None
        scale = linalg.lengths(seen.pooled.flatten(1)).clamp_min(1e-30)
        series = (seen.pooled / scale[:, None, None]).transpose(1, 2)
        out = self.second(F.relu(self.first(series)))
        alpha = out[:, 0]
        if self.normalised == "shift":
            alpha = alpha + (1 - alpha.sum(1, keepdim=True)) / alpha.shape[1]
        elif self.normalised == "softmax":
            alpha = alpha.softmax(1)
        beta = None if self.predicts == "alpha" else 2 * torch.sigmoid(out[:, 1, 0]).double()
        if self.predicts == "beta":
            return seen.gamma, beta
        # z_k - sum_j gamma_j (z_{k-j} - z_{k-j-1}) = sum_i alpha_i z_{k-i}
        gamma = alpha.flip(1).cumsum(1).flip(1)[:, 1:]
        return gamma.double(), beta


def pooled(leaf: Tensor) -> Tensor:
    """What is kept of one leaf of a residual: means over places, the last of times, all entries."""
    if leaf.ndim >= 4:
        return leaf.flatten(2).mean(2)
    return leaf[:, -1] if leaf.ndim == 3 else leaf
