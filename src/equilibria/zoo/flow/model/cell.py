"""The update operator of optical flow: one refinement of a hidden state and a flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.nn.init import Maps
from equilibria.zoo.flow.model.correlation import Correlation

# --- attention ------------------------------------------------------------------------------------

# Global motion aggregation: motion features shared among pixels that look alike.


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


# --- cell -----------------------------------------------------------------------------------------


State = tuple[Tensor, Tensor]
"""Hidden state (batch, hidden, h, w), and flow (batch, 2, h, w) in pixels of that size."""

Operands = Mapping[str, Any]
"""What a refinement depends on, computed once per pair of images: "context" (batch, context, h, w)
and "correlation", a pyramid; "attention" (batch, h w, h w) where there is one."""


@dataclass(frozen=True, kw_only=True)
class UpdateWidths:
    """Channels inside the update operator.

    Attributes:
        hidden: of the hidden state.
        context: of the context.
        correlation: after the 1x1 convolution of the correlation, and after the 3x3 one, if any.
        flow: after the 7x7 and after the 3x3 convolution of the flow.
        motion: of the motion features, the flow included.
        head: inside the flow head.
        kernels: heights and widths of the GRU's convolutions, pass by pass.
    """

    hidden: int
    context: int
    correlation: tuple[int, ...]
    flow: tuple[int, int]
    motion: int
    head: int
    kernels: tuple[tuple[int, int], ...]

    @classmethod
    def basic(cls, hidden: int, head: int | None = None) -> UpdateWidths:
        """Return RAFT's widths at 128 hidden channels, and widths in proportion at others.

        The larger networks of the thesis have 192 and 256.

        Args:
            hidden: channels of the hidden state, of the context and of the motion features.
            head: channels inside the flow head; None for twice `hidden`, at most 256.
        """
        return cls(
            hidden=hidden,
            context=hidden,
            correlation=(2 * hidden, 3 * hidden // 2),
            flow=(hidden, hidden // 2),
            motion=hidden,
            head=min(256, 2 * hidden) if head is None else head,
            kernels=((1, 5), (5, 1)),
        )

    @classmethod
    def small(cls) -> UpdateWidths:
        """Return the widths of the small RAFT."""
        return cls(
            hidden=96,
            context=64,
            correlation=(96,),
            flow=(64, 32),
            motion=82,
            head=128,
            kernels=((3, 3),),
        )


class MotionEncoder(nn.Module):
    """Motion features of a flow and the correlation around it, the flow itself among them.

    papers: Teed and Deng 2020, sec. 3.3.
    """

    def __init__(self, correlation: int, widths: UpdateWidths) -> None:
        super().__init__()
        self.correlation = _convolutions(correlation, widths.correlation, (1, 3))
        self.flow = _convolutions(2, widths.flow, (7, 3))
        joint = widths.correlation[-1] + widths.flow[-1]
        self.joint = _convolutions(joint, (widths.motion - 2,), (3,))

    @override
    def forward(self, flow: Tensor, correlation: Tensor) -> Tensor:
        """Return (batch, motion, h, w)."""
        parts = torch.cat([self.correlation(correlation), self.flow(flow)], 1)
        return torch.cat([self.joint(parts), flow], 1)


class ConvGRU(nn.Module):
    """h <- (1 - z) h + z q, with convolutional gates; several passes in sequence.

        z, r = sigmoid(W [h, x]),   q = tanh(W_q [r h, x])

    A pass along rows and one along columns have the receptive field of a square kernel, at less
    cost.

    Args:
        hidden: channels of h.
        inputs: channels of x.
        kernels: height and width of the convolutions of each pass.

    papers: Teed and Deng 2020, eq. 1 and appendix.
    """

    def __init__(self, hidden: int, inputs: int, kernels: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.passes = nn.ModuleList(_Pass(hidden, inputs, kernel) for kernel in kernels)

    @override
    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        """Return the next hidden state of h (batch, hidden, h, w) and x (batch, inputs, h, w)."""
        for each in self.passes:
            h = each(h, x)
        return h


class _Pass(nn.Module):
    """One pass of a `ConvGRU`."""

    def __init__(self, hidden: int, inputs: int, kernel: tuple[int, int]) -> None:
        super().__init__()
        padding = kernel[0] // 2, kernel[1] // 2
        # z and r have the same inputs: one convolution makes both.
        self.gates = nn.Conv2d(hidden + inputs, 2 * hidden, kernel, padding=padding)
        self.candidate = nn.Conv2d(hidden + inputs, hidden, kernel, padding=padding)
        self.maps = {"gates": Maps(rows=(hidden, hidden))}

    @override
    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        z, r = self.gates(torch.cat([h, x], 1)).sigmoid().chunk(2, 1)
        q = self.candidate(torch.cat([r * h, x], 1)).tanh()
        return h + z * (q - h)


class UpdateCell(nn.Module):
    """One refinement of (h, f), the f of a deep equilibrium flow network.

        x = motion(f, C(f)),   h <- GRU(h, [context, x]),   f <- f + head(h)

    With attention, the GRU is given [context, x, x^] with x^ = x + gamma A v(x).

    The state is a tuple of the hidden state and the flow, at the features' resolution: a
    displacement, not a coordinate, so that a relative tolerance is relative to the motion.

    Args:
        correlation: how C is looked up.
        widths: channels inside.
        attention: whether motion features are aggregated.
        detach_lookup: the positions at which the correlation is looked up are detached. A backward
            of more than one step is then not that of f.

    papers: Teed and Deng 2020, sec. 3.3; Bai 2022 (thesis), eq. 7.4, 7.5.
    """

    def __init__(
        self,
        correlation: Correlation,
        widths: UpdateWidths,
        *,
        attention: bool = False,
        detach_lookup: bool = False,
    ) -> None:
        super().__init__()
        self.widths = widths
        self.detach_lookup = detach_lookup
        self.lookup = correlation
        self.motion = MotionEncoder(correlation.channels, widths)
        self.aggregate = Aggregate(widths.motion) if attention else None
        inputs = widths.context + (2 if attention else 1) * widths.motion
        self.gru = ConvGRU(widths.hidden, inputs, widths.kernels)
        self.head = nn.Sequential(
            nn.Conv2d(widths.hidden, widths.head, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(widths.head, 2, 3, padding=1),
        )

    def start(self, operands: Operands) -> State:
        """Return where a solve begins: no flow, and the hidden state "start" of the operands, or
        zeros where they have none."""
        context: Tensor = operands["context"]
        batch, _, height, width = context.shape
        hidden = operands.get("start")
        if hidden is None:
            hidden = context.new_zeros(batch, self.widths.hidden, height, width)
        return hidden, context.new_zeros(batch, 2, height, width)

    @override
    def forward(self, z: State, operands: Operands) -> State:
        """Evaluate f once."""
        hidden, flow = z
        where = flow.detach() if self.detach_lookup else flow
        found = self.lookup.lookup(operands["correlation"], where)
        motion = self.motion(flow, found)
        inputs = [operands["context"], motion]
        if self.aggregate is not None:
            inputs.append(self.aggregate(motion, operands["attention"]))
        hidden = self.gru(hidden, torch.cat(inputs, 1))
        return hidden, flow + self.head(hidden)


def _convolutions(inputs: int, widths: tuple[int, ...], kernels: tuple[int, ...]) -> nn.Sequential:
    """Convolutions with ReLU, as many as there are widths."""
    layers: list[nn.Module] = []
    for width, kernel in zip(widths, kernels, strict=False):
        layers += [nn.Conv2d(inputs, width, kernel, padding=kernel // 2), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers)
