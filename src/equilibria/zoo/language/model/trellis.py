"""The TrellisNet cell: a dilated temporal convolution with the gates of an LSTM."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn import VariationalDropout, weight_norm
from equilibria.nn.dropout import weight_dropout
from equilibria.nn.init import Maps
from equilibria.zoo.language.model.cell import (
    CausalInjection,
    CellConfig,
    Ensemble,
    SequenceCell,
    extend,
    initialize,
    scale_of,
    windows,
)

State = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class TrellisConfig(CellConfig):
    """The architecture of a trellis network, explicit or at its equilibrium.

    Args:
        width: features of the embeddings and of the output.
        hidden: features of a state besides those of the output; a state has `hidden + width`.
        kernel: times that the convolution reads, the last being the present.
        dilation: distance between two times that it reads.
        weight_norm: the weights of convolution and injection are under weight normalisation.
        hidden_dropout: share of a state's features that the convolution does not see, at all times
            and in all evaluations of a solve alike.
        weight_dropout: share of the entries of both weights (of their direction, under weight
            normalisation) that is dropped in a training step.
        initial: ensemble of the weights at the start: `normal`, of standard deviation `scale`, or
            one of `equilibria.nn.init` (see there), of which the map from each time to each gate is
            a member. A map that is not square is Gaussian in place of `goe` and `antisymmetric`.
        scale: see `initial`; None for 0.01, the papers', or an ensemble's critical value.
        injection_scale: the same for the injection; None for `scale`.
        embedding_scale: factor of the embeddings; None for the square root of their width.
    """

    width: int = 100
    hidden: int = 200
    kernel: int = 2
    dilation: int = 1
    weight_norm: bool = True
    hidden_dropout: float = 0.0
    weight_dropout: float = 0.0
    initial: Ensemble = "normal"
    scale: float | None = None
    injection_scale: float | None = None
    embedding_scale: float | None = 1.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "width", "dilation")
        if self.kernel < 2:
            raise ValueError(f"kernel must be 2 or more, to read another time; got {self.kernel}")
        check_fields(self, "[0, inf)", "hidden")
        check_fields(self, "[0, 1)", "hidden_dropout", "weight_dropout")
        scale_of(self.initial, self.scale)
        scale_of(self.initial, self.injection_scale)

    @property
    def state_width(self) -> int:
        """Features of c and of h."""
        return self.hidden + self.width

    @override
    def cell(self) -> "TrellisCell":
        return TrellisCell(self)

    @override
    def layer_injection(self) -> CausalInjection:
        return self.injection()

    @override
    def injection(self) -> CausalInjection:
        injection = CausalInjection(self.width, 4 * self.state_width, self.kernel, self.dilation)
        scale = self.scale if self.injection_scale is None else self.injection_scale
        self._prepare(injection.linear, scale)
        return injection

    def _prepare(self, linear: nn.Linear, scale: float | None) -> None:
        """Initialise, normalise and drop out the weight of a convolution to the gates."""
        scale = scale_of(self.initial, scale)
        initialize(linear, self.initial, scale, rows=[self.state_width] * 4, columns=self.kernel)
        if self.weight_norm:
            weight_norm(linear)
        if self.weight_dropout:
            weight_dropout(linear, self.weight_dropout)


class TrellisCell(SequenceCell):
    """One layer of a trellis network, on states (c, h), each (batch, time, hidden + width).

        i, f, o, g = W [h_(t-(k-1)s), ..., h_t] + u_t
        c'_t = sigm(f) c_(t-s) + sigm(i) tanh(g),    h'_t = sigm(o) tanh(c'_t)

    with k the kernel and s the dilation. What is read are the last `width` features of h. The
    memory is the last (k-1) s states of the segment before (history padding); of a beginning they
    are zeros.

    Source:
        Bai et al. 2019 (TrellisNet), sec. 4.2 and 5; Bai et al. 2019, sec. 4.
    """

    def __init__(self, config: TrellisConfig) -> None:
        super().__init__()
        self.state_width, self.features = config.state_width, config.width
        self.units = 4 * config.state_width
        self.kernel, self.dilation = config.kernel, config.dilation
        self.span = (config.kernel - 1) * config.dilation
        self.gates = nn.Linear(config.kernel * config.state_width, self.units, bias=False)
        self.maps = {"gates": Maps(rows=(config.state_width,) * 4, columns=config.kernel)}
        self.dropout = VariationalDropout(config.hidden_dropout, shared=(1,))
        config._prepare(self.gates, config.scale)

    @override
    def inject(
        self, u: Tensor | None, memory: dict[str, Tensor] | None, like: Tensor | None = None
    ) -> tuple[Any, ...]:
        assert u is not None
        if memory is None:
            zeros = u.new_zeros(u.shape[0], self.span, self.state_width)
            return u, zeros, zeros
        return u, memory["c"], memory["h"]

    @override
    def forward(self, z: State, u: Tensor, past_c: Tensor, past_h: Tensor) -> State:
        c, h = z
        batch, time, width = h.shape
        longer = self.dropout(torch.cat([past_h, h], 1))
        seen = windows(longer, self.kernel, self.dilation).reshape(batch * time, -1)
        gates = torch.addmm(u.reshape(batch * time, -1), seen, self.gates.weight.t())
        gates = gates.view(batch, time, self.units)
        squashed, g = gates.split([3 * width, width], -1)
        i, f, o = torch.sigmoid(squashed).split(width, -1)
        before = torch.cat([past_c, c], 1)[:, self.span - self.dilation :][:, :time]
        c = f * before + i * torch.tanh(g)
        return c, o * torch.tanh(c)

    @override
    def start(self, u: Tensor, *operands: Any) -> State:
        zeros = u.new_zeros(*u.shape[:2], self.state_width)
        return zeros, zeros.clone()

    @override
    def read(self, z: State) -> Tensor:
        return z[1][..., self.state_width - self.features :]

    @override
    def remember(
        self, z: State, u: Tensor | None, memory: dict[str, Tensor] | None
    ) -> dict[str, Tensor]:
        # No more is kept than is read: a piece of a sequence sees its neighbour's end alone.
        past = memory or {}
        longer = {k: extend(x, past.get(k), self.span) for k, x in zip("ch", z, strict=True)}
        return {key: x[:, x.shape[1] - self.span :] for key, x in longer.items()}

    @override
    def keep(self, memory: dict[str, Tensor]) -> dict[str, Tensor]:
        return memory
