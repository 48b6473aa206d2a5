"""Self-attention over a segment and its memory, with relative positions."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equilibria import draws
from equilibria.nn import VariationalDropout
from equilibria.nn.init import Maps

__all__ = ["RelativeAttention"]


class RelativeAttention(nn.Module):
    """Multi-head attention whose scores depend on the distance of two times.

    With q, k, v = W_qkv z + u and the sinusoid r_d of a distance d, time i gives time j <= i the
    score

        s_ij = ((q_i + a) k_j + (q_i + b) W_r r_(i-j)) / sqrt(head_width)

    in each head, a and b being learned; softmax over j; the heads' sums of v_j pass through W_o.
    The projections of the memory and of the positions are of no iterate and are made once, by
    `prepare`. So are the terms a k_j, through a in the injection, and (b - a) W_r r.

    Args:
        width: features of a state.
        heads: attention heads.
        head_width: features of a head.
        window: times that each time sees, itself included; None for all there are.
        dropout: share of the attention weights that is dropped.
        position_dropout: share of the positions' features that is dropped.

    Source:
        Dai et al. 2019 (Transformer-XL), sec. 3.3; Bai et al. 2019, sec. 4.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        *,
        window: int | None = None,
        dropout: float = 0.0,
        position_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.width = width
        self.heads = heads
        self.head_width = head_width
        self.window = window
        self.position_dropout = position_dropout
        inner = heads * head_width
        self.qkv = nn.Linear(width, 3 * inner, bias=False)
        self.positions = nn.Linear(width, inner, bias=False)
        self.out = nn.Linear(inner, width)
        self.maps = {"qkv": Maps(rows=(inner,) * 3), "positions": None}
        self.content_bias = nn.Parameter(torch.empty(heads, head_width).normal_(0.0, 0.01))
        self.position_bias = nn.Parameter(torch.empty(heads, head_width).normal_(0.0, 0.01))
        self.dropout = VariationalDropout(dropout)

    def prepare(self, u: Tensor, past: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the scores of a segment have that is of no iterate.

        Args:
            u: injection (batch, time, 3 * heads * head_width).
            past: times of the memory.

        Returns:
            u with the bias a in its queries; the table of positions (heads, head_width,
            past + time + 1), a column of zeros first; and (heads, 1, time, past + time) to add to
            the scores, minus infinity where a time must not look.
        """
        time = u.shape[1]
        span = past + time
        inner = self.heads * self.head_width
        u = u + F.pad(self.content_bias.flatten(), (0, 2 * inner)).to(u.dtype)
        distances = torch.arange(span - 1, -1, -1, device=u.device, dtype=torch.float32)
        sines = sinusoids(distances, self.width).to(u.dtype)
        if self.training and self.position_dropout:
            drop = self.position_dropout
            mask = draws.for_batch(sines.new_empty(self.width), draws.kept(drop))
            sines = sines * mask / (1 - drop)
        table = self.positions(sines).view(span, self.heads, self.head_width).permute(1, 2, 0)
        table = F.pad(table, (1, 0)) / math.sqrt(self.head_width)
        difference = (self.position_bias - self.content_bias).to(table.dtype)
        constant = torch.matmul(difference[:, None], table)  # (heads, 1, span + 1)
        constant = shifted(constant.expand(-1, time, -1)[:, None])
        return u, table, constant + self._mask(time, span, constant)

    def past(self, x: Tensor, u: Tensor | None) -> Tensor:
        """Return keys and values (batch, times, 2 * heads * head_width) of a memory.

        Args:
            x: its states (batch, times, width), normalised where those of a segment are.
            u: the keys' and values' part of its injection, of the result's shape.
        """
        weight = self.qkv.weight[self.heads * self.head_width :]
        projected = F.linear(x, weight)
        return projected if u is None else projected + u

    def forward(self, x: Tensor, u: Tensor, past: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        """Return what each time of a segment gathers, (batch, time, width).

        Args:
            x: states (batch, time, width).
            u, table, bias: of `prepare`.
            past: keys and values of the memory.
        """
        batch, time, _ = x.shape
        heads, size = self.heads, self.head_width
        # One product for queries, keys and values, with the injection as its accumulator.
        qkv = torch.addmm(
            u.reshape(batch * time, -1), x.reshape(batch * time, -1), self.qkv.weight.t()
        )
        # Heads come first: the positions are then one product for the whole batch.
        qkv = qkv.view(batch, time, 3, heads, size).permute(2, 3, 0, 1, 4)
        queries, pairs = qkv.split([1, 2])
        queries = queries.reshape(heads * batch, time, size)
        if past.shape[1]:
            before = past.view(batch, past.shape[1], 2, heads, size).permute(2, 3, 0, 1, 4)
            pairs = torch.cat([before.to(pairs.dtype), pairs], 3)
        keys, values = pairs.reshape(2, heads * batch, -1, size).unbind(0)
        span = keys.shape[1]

        scores = torch.bmm(queries.view(heads, batch * time, size), table.to(queries.dtype))
        scores = scores.view(heads, batch, time, span + 1)
        scores = shifted(scores) + bias.to(scores.dtype)
        scores = scores.reshape(heads * batch, time, span).baddbmm_(
            queries, keys.transpose(1, 2), alpha=size**-0.5
        )
        weights = torch.softmax(scores, -1)
        if self.training and self.dropout.p:
            # The mask goes by the batch, which must be the first axis.
            by_sample = weights.view(heads, batch, time, span).transpose(0, 1)
            weights = self.dropout(by_sample).transpose(0, 1).reshape(heads * batch, time, span)
        gathered = torch.bmm(weights.to(values.dtype), values).view(heads, batch, time, size)
        return self.out(gathered.permute(1, 2, 0, 3).reshape(batch, time, heads * size))

    def _mask(self, time: int, span: int, like: Tensor) -> Tensor:
        """(time, span), minus infinity where the column is later than the row, or too early."""
        hidden = torch.ones(time, span, dtype=torch.bool, device=like.device)
        hidden = hidden.triu(1 + span - time)
        if self.window is not None:
            hidden |= torch.ones_like(hidden).tril(span - time - self.window)
        return torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, -math.inf)


def sinusoids(distances: Tensor, width: int) -> Tensor:
    """Sines and cosines of distances at frequencies 10000^(-2 i / width): (distances, width)."""
    steps = torch.arange(0, width, 2, device=distances.device, dtype=distances.dtype)
    angles = distances[:, None] * 10000.0 ** (-steps / width)
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :width]


def shifted(scores: Tensor) -> Tensor:
    """Turn columns that stand for distances into columns that stand for times.

    (..., time, span + 1), whose column c > 0 is of distance span - c, becomes (..., time, span),
    whose entry (i, j) is of distance span - time + i - j where that is not negative, and of no
    meaning elsewhere. It is a view: each row begins one entry earlier than the one before.
    """
    *front, time, columns = scores.shape
    flat = scores.reshape(*front, time * columns)
    return flat[..., time:].view(*front, time, columns - 1)
