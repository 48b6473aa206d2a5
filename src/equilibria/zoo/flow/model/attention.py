"""Global motion aggregation: motion features shared among pixels that look alike."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

__all__ = ["Aggregate", "ContextAttention"]


class ContextAttention(nn.Module):
    """A = softmax(q^T k / sqrt(channels)), with q and k linear in the context of each pixel.

    It does not depend on the state, and is computed once per pair of images.

    Args:
        channels: of the context, of q and of k.

    papers: Jiang et al. 2021, sec. 3.2; Bai 2022 (thesis), eq. 7.5.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query_key = nn.Conv2d(channels, 2 * channels, 1, bias=False)

    @override
    def forward(self, context: Tensor) -> Tensor:
        """Return the attention (batch, pixels, pixels) of a context (batch, channels, h, w)."""
        query, key = self.query_key(context).flatten(2).chunk(2, 1)
        scores = (query / query.shape[1] ** 0.5).transpose(1, 2) @ key
        # Thousands of terms: in half precision their sum would not be 1.
        return scores.softmax(2, dtype=torch.promote_types(scores.dtype, torch.float32))


class Aggregate(nn.Module):
    """x + gamma A v(x): motion features, and those that the attention gathers from other pixels.

    gamma is 0 at initialisation, where this is the identity.

    Args:
        channels: of the motion features.

    papers: Jiang et al. 2021, eq. 3; Bai 2022 (thesis), eq. 7.5.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.value = nn.Conv2d(channels, channels, 1, bias=False)
        self.gamma = nn.Parameter(torch.zeros(1))

    @override
    def forward(self, x: Tensor, attention: Tensor) -> Tensor:
        """Return (batch, channels, h, w) of motion features of that shape and an attention."""
        value = self.value(x).flatten(2)
        # Autocast computes the product in reduced precision; without it both have one dtype.
        brought = value @ attention.transpose(1, 2)
        return x + self.gamma * brought.unflatten(2, x.shape[2:])
