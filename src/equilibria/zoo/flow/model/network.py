"""Networks for optical flow, whose refinement is unrolled or solved for its equilibrium."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from equilibria import draws
from equilibria.nn import DEQ, weight_norm
from equilibria.run.models.base import EquilibriumModel, Model, Prediction
from equilibria.zoo.flow.model.cell import ContextAttention, Operands, State, UpdateCell
from equilibria.zoo.flow.model.encoders import STRIDE, Encoder

if TYPE_CHECKING:
    from equilibria.zoo.flow.model.configs import (
        EquilibriumFlowConfig,
        FlowConfig,
        UnrolledFlowConfig,
    )


class Scene(nn.Module):
    """What is computed once per pair of images: context, correlation, attention.

    Images are scaled to 2 x / 255 - 1 and padded to multiples of 8 pixels by repeating their edges,
    equally on both sides.

    papers: Teed and Deng 2020, sec. 3.1, 3.2; Jiang et al. 2021, sec. 3.2.
    """

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.correlation = config.lookup()
        context, hidden = config.widths.context, config.widths.hidden
        encoder = partial(Encoder, kind=config.encoder, widths=config.stages)
        self.features = encoder(config.features, norm="instance")
        self.context = encoder(
            context + (hidden if config.starts_from_context else 0),
            norm=config.context_norm or ("batch" if config.encoder == "basic" else "none"),
            frozen=config.freeze_norm,
        )
        self.attention = ContextAttention(context) if config.attention else None

    @override
    def forward(self, x: Any) -> dict[str, Any]:
        """Return the operands of an `UpdateCell` for a pair of batches of images.

        Raises:
            TypeError, ValueError: it is none; see `FlowConfig.check`.
        """
        first, second = self.config.check(x)
        dtype = self.features.stem.weight.dtype
        first, second = (_pad(2.0 * (each.to(dtype) / 255.0) - 1.0) for each in (first, second))
        ours, theirs = self.features(torch.cat([first, second])).chunk(2)
        operands: dict[str, Any] = {"correlation": self.correlation.pyramid(ours, theirs)}
        context = _wide(self.context(first))
        if self.config.starts_from_context:
            widths = self.config.widths
            start, context = context.split([widths.hidden, widths.context], 1)
            operands["start"] = start.tanh()
        operands["context"] = context = context.relu()
        if self.attention is not None:
            operands["attention"] = self.attention(context)
        return operands


class UnrolledFlow(Model):
    """A flow refined a fixed number of times: RAFT, or GMA with attention.

    Gradients reach earlier refinements through the hidden state alone: the flow is detached before
    each, as in the source. In training, the flows after earlier refinements, the first one first,
    are the prediction's `auxiliary`, each with a loss of its own.

    papers: Teed and Deng 2020; Jiang et al. 2021.
    """

    def __init__(self, config: UnrolledFlowConfig) -> None:
        super().__init__()
        self.config = config
        self.scene = Scene(config)
        self.cell = UpdateCell(config.lookup(), config.widths, attention=config.attention)
        self.upsampling = config.upsampler()

    @override
    def forward(self, x: Any, *, carry: Any = None, flow: Tensor | None = None) -> Prediction:
        """Return the flow (batch, 2, height, width) in pixels, after the last refinement.

        Args:
            x: first and second images, (batch, 3, height, width) each, RGB from 0 to 255.
            carry: None, since the model has no memory.
            flow: to begin with, (batch, 2, h, w) in units of 8 pixels; None for no motion.
        """
        self.refuse_carry(carry)
        operands = self.scene(x)
        hidden, now = self.cell.start(operands)
        now = now if flow is None else flow
        steps = self.config.steps
        if not self.training:
            steps = self.config.eval_steps or steps
        size = x[0].shape[2:]
        earlier: list[Tensor] = []
        for step in range(1, steps + 1):
            hidden, now = self.cell((hidden, now.detach()), operands)
            if self.training and step < steps:
                earlier.append(_crop(self.upsampling(hidden, now), size))
        output = _crop(self.upsampling(hidden, now), size)
        return Prediction(output, (), auxiliary=tuple(earlier))


class DEQFlow(EquilibriumModel):
    """A flow that is the equilibrium of its refinement, (h, f)* = cell((h, f)*; images).

    The state is a tuple of the hidden state (batch, hidden, h, w) and the flow (batch, 2, h, w), at
    an eighth of the images' height and width and in pixels of that size. Images are given as a pair
    (first, second) of (batch, 3, height, width) each, RGB from 0 to 255; the output is the flow
    (batch, 2, height, width) in pixels. On consecutive frames, a solve starts from the previous
    solution: pass its value as `z0`, or the solution as `warm`, which starts the backward too.

    papers: Bai 2022 (thesis), eq. 7.4 (with attention eq. 7.5).

    Example:
        >>> model = eq.models.create("deq-raft", hidden=48, encoder="small", levels=3, radius=3)
        >>> now = model((frames[0], frames[1]))
        >>> after = model((frames[1], frames[2]), z0=now.solution.value)
    """

    def __init__(self, config: EquilibriumFlowConfig, **layer: Any) -> None:
        super().__init__()
        self.config = config
        self.scene = Scene(config)
        cell = UpdateCell(
            config.lookup(),
            config.widths,
            attention=config.attention,
            detach_lookup=config.detach_lookup,
        )
        if config.weight_norm:
            weight_norm(cell)
        self.deq = DEQ(cell, init=self._start, **layer)
        self.upsampling = config.upsampler()

    def _start(self, operands: Operands) -> State:
        """Where a solve begins; in training, every second sample anywhere if the config says so."""
        cell: Any = self.deq.cell
        hidden, flow = cell.start(operands)
        if not (self.training and self.config.start_noise):
            return hidden, flow
        far = self.config.start_noise / STRIDE
        chosen = (draws.rows(len(flow), flow.device) % 2 == 1)[:, None, None, None]
        everywhere = draws.for_samples(flow.new_empty(*flow.shape[:2], 1, 1), Tensor.normal_)
        noise = far * (everywhere + draws.for_samples(torch.empty_like(flow), Tensor.normal_))
        anything = draws.for_samples(torch.empty_like(hidden), Tensor.uniform_)
        return (torch.where(chosen, 2 * anything - 1, hidden), torch.where(chosen, noise, flow))

    @override
    def inject(self, x: Any) -> tuple[Operands]:
        """Return context, correlation and attention of a pair of batches of images."""
        return (self.scene(x),)

    @override
    def readout(self, z: State) -> Tensor:
        """Return the flow at a state in pixels, (batch, 2, 8 h, 8 w), that of the padding included.

        Args:
            z: hidden state and flow.
        """
        return self.upsampling(*z)

    @override
    def answer(self, z: State, x: Any) -> Tensor:
        """Return the flow of a pair of images in pixels at a state, (batch, 2, height, width)."""
        return _crop(self.readout(z), x[0].shape[2:])

    def moves(self, z: State, x: Any, operands: Operands | None = None) -> Tensor:
        """Return by how many pixels one more evaluation moves the flow, (batch, height, width).

        ||answer(f(z)) - answer(z)|| at each pixel, which is 0 at an equilibrium.

        Args:
            z: hidden state and flow.
            x: pair of batches of images.
            operands: what `inject` returns for them, where that is known.
        """
        if operands is None:
            (operands,) = self.inject(x)
        now, after = (self.answer(at, x).float() for at in (z, self.deq.cell(z, operands)))
        return (after - now).norm(dim=1)


def _wide(x: Tensor) -> Tensor:
    """At least float32, which autocast has not: the state begins like it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _margins(size: int) -> tuple[int, int]:
    """Pixels that are added before and behind, up to a multiple of 8."""
    missing = -size % STRIDE
    return missing // 2, missing - missing // 2


def _pad(x: Tensor) -> Tensor:
    height, width = x.shape[2:]
    return functional.pad(x, (*_margins(width), *_margins(height)), mode="replicate")


def _crop(fine: Tensor, size: Sequence[int]) -> Tensor:
    """What of a flow lies on the images themselves, of that height and width."""
    height, width = size
    top, left = _margins(height)[0], _margins(width)[0]
    return fine[:, :, top : top + height, left : left + width]
