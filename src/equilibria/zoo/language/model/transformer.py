"""The Transformer cell, with relative positions, memory and input injection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from equilibria import draws
from equilibria.checks import check_fields
from equilibria.nn import VariationalDropout, weight_norm
from equilibria.nn.init import Maps
from equilibria.solve import shared
from equilibria.zoo.language.model.cell import (
    CausalInjection,
    CellConfig,
    Ensemble,
    SequenceCell,
    initialize,
    scale_of,
)

# --- attention ------------------------------------------------------------------------------------

# Self-attention over a segment and its memory, with relative positions.


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
            mask = draws.for_batch(sines.new_empty(self.width), draws.keep_mask(drop))
            sines = sines * mask / (1 - drop)
        table = self.positions(sines).view(span, self.heads, self.head_width).permute(1, 2, 0)
        table = F.pad(table, (1, 0)) / math.sqrt(self.head_width)
        difference = (self.position_bias - self.content_bias).to(table.dtype)
        constant = torch.matmul(difference[:, None], table)  # (heads, 1, span + 1)
        constant = shift_rows(constant.expand(-1, time, -1)[:, None])
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
        scores = shift_rows(scores) + bias.to(scores.dtype)
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


def shift_rows(scores: Tensor) -> Tensor:
    """Turn columns that stand for distances into columns that stand for times.

    (..., time, span + 1), whose column c > 0 is of distance span - c, becomes (..., time, span),
    whose entry (i, j) is of distance span - time + i - j where that is not negative, and of no
    meaning elsewhere. It is a view: each row begins one entry earlier than the one before.
    """
    *front, time, columns = scores.shape
    flat = scores.reshape(*front, time * columns)
    return flat[..., time:].view(*front, time, columns - 1)


# --- transformer ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(CellConfig):
    """The architecture of a Transformer, explicit or at its equilibrium.

    Args:
        width: features of a state and of the embeddings.
        heads: attention heads.
        head_width: features of a head; None for width / heads.
        inner: features inside the position-wise feed-forward block.
        memory: times before a segment that it sees, in training; 0 for none.
        eval_memory: the same in eval mode; None for `memory`.
        window: times that each time sees, itself included; None for all of memory and segment. A
            window of at most `memory` + 1 makes the output independent of where segments end, at
            equilibrium and of untied layers.
        pre_norm: LayerNorm stands before the attention instead of behind the feed-forward block.
        affine: LayerNorm has a gain and a bias for each feature.
        weight_norm: the cell's weights are under weight normalisation.
        dropout: share of features that is dropped in the cell, at all times and in all evaluations
            of a solve alike: behind the attention, inside and behind the feed-forward block, and of
            the positions.
        attention_dropout: share of the attention weights that is dropped.
        injection_kernel: times that the injection of the input reads, the last being the present;
            1, as in the papers, is a linear map.
        direct: the injection has a fourth part, which is added to what the attention gathers: each
            time then sees its own token other than through an average over all times. The papers
            have none.
        initial: ensemble of the cell's weights at the start: `normal`, of standard deviation
            `scale`, or one of `equilibria.nn.init` (see there), of which query, key, value and
            the other maps are members one by one. A map that is not square is Gaussian in place of
            `goe` and `antisymmetric`.
        scale: see `initial`; None for 0.01, the papers', or an ensemble's critical value. With a
            small one, f(z) is nearly z / |z|: few iterations converge by the residual, though far
            from the equilibrium.
        injection_scale: the same for the injection; None for `scale`.
    """

    heads: int = 4
    head_width: int | None = None
    inner: int = 512
    memory: int = 0
    eval_memory: int | None = None
    window: int | None = None
    pre_norm: bool = False
    affine: bool = False
    weight_norm: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    injection_kernel: int = 1
    direct: bool = False
    initial: Ensemble = "normal"
    scale: float | None = None
    injection_scale: float | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("width", "heads", "head_width", "inner", "window", "injection_kernel")
        check_fields(self, "(0, inf)", *counts)
        if self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"heads must divide width where head_width is not given; got {self.heads} heads "
                f"for a width of {self.width}"
            )
        for name in ("memory", "eval_memory"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is a number of times and not negative, got {value}")
        check_fields(self, "[0, 1)", "dropout")
        check_fields(self, "[0, 1)", "attention_dropout")
        scale_of(self.initial, self.scale)
        scale_of(self.initial, self.injection_scale)

    @override
    def cell(self) -> TransformerCell:
        return TransformerCell(self)

    @override
    def layer_injection(self) -> None:
        return None

    @override
    def injection(self) -> CausalInjection:
        rows = [self.attention_width] * 3 + [self.width] * self.direct
        injection = CausalInjection(self.width, sum(rows), self.injection_kernel)
        scale = self.scale if self.injection_scale is None else self.injection_scale
        initialize(
            injection.linear,
            self.initial,
            scale_of(self.initial, scale),
            rows=rows,
            columns=self.injection_kernel,
        )
        return injection

    @property
    def attention_width(self) -> int:
        """Features of all heads together."""
        return self.heads * (self.head_width or self.width // self.heads)


class TransformerCell(SequenceCell):
    """f(z) = LN(a + FFN(a)), a = LN(z + attention(z; u, memory)), on states (batch, time, width).

    FFN(a) = W_2 relu(W_1 a + b_1) + b_2. The injection u is added to query, key and value, and its
    fourth part, where there is one, inside the first LN. The memory holds equilibria of the times
    before and the keys' and values' part of their injection. Pre-norm, the last LN stands before
    the attention: f(z) = a + FFN(a), a = LN(z + attention(LN(z))).

    Source:
        Bai et al. 2019, sec. 4; Bai et al. 2021, sec. 3 and 5 (pre- and post-norm).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.width = self.features = config.width
        self.inner = config.attention_width
        self.units = 3 * self.inner + config.width * config.direct
        self.memory = config.memory
        self.eval_memory = config.memory if config.eval_memory is None else config.eval_memory
        self.pre_norm = config.pre_norm
        self.direct = config.direct
        self.attention = RelativeAttention(
            config.width,
            config.heads,
            self.inner // config.heads,
            window=config.window,
            dropout=config.attention_dropout,
            position_dropout=config.dropout,
        )
        self.attention_norm = nn.LayerNorm(config.width, elementwise_affine=config.affine)
        self.expand = nn.Linear(config.width, config.inner)
        self.contract = nn.Linear(config.inner, config.width)
        self.norm = nn.LayerNorm(config.width, elementwise_affine=config.affine)
        self.attention_dropout = VariationalDropout(config.dropout, shared=(1,))
        self.inner_dropout = VariationalDropout(config.dropout, shared=(1,))
        self.dropout = VariationalDropout(config.dropout, shared=(1,))
        scale = scale_of(config.initial, config.scale)
        for linear in (self.attention.positions, self.attention.out, self.expand, self.contract):
            initialize(linear, config.initial, scale)
        initialize(self.attention.qkv, config.initial, scale, rows=[self.inner] * 3)
        if config.weight_norm:
            weight_norm(self)

    @override
    def inject(
        self, u: Tensor | None, memory: dict[str, Tensor] | None, like: Tensor | None = None
    ) -> tuple[Any, ...]:
        if u is None:
            assert like is not None
            u = like.new_zeros(*like.shape[:2], self.units)
        if memory is None:
            past = u.new_zeros(u.shape[0], 0, 2 * self.inner)
        else:
            states = self.norm(memory["z"]) if self.pre_norm else memory["z"]
            past = self.attention.past(states, memory.get("u"))
        u, *direct = u.split([3 * self.inner, *([self.width] if self.direct else [])], -1)
        u, table, bias = self.attention.prepare(u, past.shape[1])
        return u, past, shared(table), shared(bias), *direct

    @override
    def forward(
        self, z: Tensor, u: Tensor, past: Tensor, table: Tensor, bias: Tensor, *direct: Tensor
    ) -> Tensor:
        x = self.norm(z) if self.pre_norm else z
        gathered = self.attention_dropout(self.attention(x, u, past, table, bias))
        a = self.attention_norm(sum(direct, z + gathered))
        inner = self.inner_dropout(F.relu(self.expand(a), inplace=True))
        out = a + self.dropout(self.contract(inner))
        return out if self.pre_norm else self.norm(out)

    @override
    def start(self, u: Tensor, *operands: Any) -> Tensor:
        return u.new_zeros(*u.shape[:2], self.width)

    @override
    def read(self, z: Tensor) -> Tensor:
        return z

    @override
    def remember(
        self, z: Tensor, u: Tensor | None, memory: dict[str, Tensor] | None
    ) -> dict[str, Tensor]:
        new = {"z": z}
        if u is not None:
            new["u"] = u[..., self.inner : 3 * self.inner]
        if memory is None:
            return new
        return {key: torch.cat([memory[key], new[key]], 1) for key in new}

    @override
    def keep(self, memory: dict[str, Tensor]) -> dict[str, Tensor] | None:
        times = self.memory if self.training else self.eval_memory
        if not times:
            return None
        return {key: value[:, -times:] for key, value in memory.items()}
