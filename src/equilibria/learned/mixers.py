"""Learned mixing weights for Anderson steps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equilibria.learned.solver import MixerInputs, solve_triangular
from equilibria.solve import Layout, Rows, length


class GramMixer(nn.Module):
    """Corrects Anderson's weights, given the Gram matrix of the residuals.

    With L the Cholesky factor of the Gram matrix of the differences dg_j, and r = ||g - sum gamma_j
    dg_j|| the mixed residual under Anderson's weights,

        gamma = gamma_Anderson + r L^-T u,    u = reach * tanh(MLP(features)) / sqrt(s).

    The mixed residual grows to sqrt(1 + |u|^2) r, by a factor of at most 1.12 at the default reach;
    in return, steps may be longer in directions in which df/dz is small. The features are cosines
    and logarithms of ratios, which do not depend on the shape, size or scale of the state. The last
    layer is initialised to zero, so an untrained mixer is Anderson's method.

    Args:
        history: number of differences, m in the papers; if the solver keeps more, the older ones
            get Anderson's weights.
        hidden: units of the hidden layer.
        reach: upper bound on |u|.
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
        """Return None: this mixer uses only the Gram matrix."""
        return None

    def mix(self, seen: MixerInputs) -> tuple[Tensor, Tensor | None]:
        """Return the weights of the differences, and None for beta, since it does not damp."""
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
        return seen.gamma + solve_triangular(seen.factor, white, transposed=True), None


class PooledMixer(nn.Module):
    """The paper's mixer: two temporal convolutions on pooled residuals predict alpha and beta.

    Residuals are averaged over positions (eq. 6.3); those of sequences are taken at the last time
    step. The weights of the iterates are alpha_hat + (1 - sum alpha_hat) / (s + 1), which may be
    negative and sum to 1. Beta lies between 0 and 2.

    Args:
        features: number of pooled features per residual, over all leaves.
        hidden: channels of the convolutions, which the thesis does not specify.
        normalised: "shift" as above, "softmax", or "none", where the newest iterate gets what is
            missing from 1. In Figure 6.7a nothing makes up for it, but the weights of a step in
            difference form always sum to 1.
        predicts: "both", or only "alpha" or "beta", the ablations of Figure 6.8; the other one is
            Anderson's, which for beta is 1.

    Source:
        Bai 2022 (thesis), Algorithm 3, with alpha^T G in place of 1^T G in line 7.
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
                "PooledMixer needs independent samples, but the rows of this batch are coupled: "
                "use a GramMixer"
            )
        leaves = residual if layout is None else layout.leaves(residual)
        return torch.cat([pool_leaf(leaf) for leaf in leaves], 1)

    def mix(self, seen: MixerInputs) -> tuple[Tensor, Tensor | None]:
        """Return the weights of the differences, and beta."""
        assert seen.pooled is not None
        scale = length([seen.pooled.flatten(1)]).clamp_min(1e-30)
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


def pool_leaf(leaf: Tensor) -> Tensor:
    """Pool one leaf of a residual: mean over positions, last time step, or all entries."""
    if leaf.ndim >= 4:
        return leaf.flatten(2).mean(2)
    return leaf[:, -1] if leaf.ndim == 3 else leaf
