"""The Transformer cell, with relative positions, memory and input injection."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn import VariationalDropout, weight_norm
from equilibria.solve import shared
from equilibria.zoo.language.model.attention import RelativeAttention
from equilibria.zoo.language.model.cell import CausalInjection, CellConfig, SequenceCell
from equilibria.zoo.language.model.initial import Ensemble, initialise, scale_of

__all__ = ["TransformerCell", "TransformerConfig"]


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
    def cell(self) -> "TransformerCell":
        return TransformerCell(self)

    @override
    def layer_injection(self) -> None:
        return None

    @override
    def injection(self) -> CausalInjection:
        rows = [self.attention_width] * 3 + [self.width] * self.direct
        injection = CausalInjection(self.width, sum(rows), self.injection_kernel)
        scale = self.scale if self.injection_scale is None else self.injection_scale
        initialise(
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
            initialise(linear, config.initial, scale)
        initialise(self.attention.qkv, config.initial, scale, rows=[self.inner] * 3)
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
