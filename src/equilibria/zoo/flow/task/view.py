"""How a pair of images and its flow are seen in training: scaled, mirrored, cut, recoloured."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equilibria.zoo.flow.data import Pair
from equilibria.zoo.flow.task.colours import erased, recoloured
from equilibria.zoo.flow.task.placing import Placing, placed, scattered

__all__ = ["DRAWS", "View", "seen"]

DRAWS = 28
"""Numbers that decide how one pair is seen."""

_SCALED = 0.8
"""Share of the pairs that are scaled, and of those the share that is stretched, as in RAFT's."""


@dataclass(frozen=True, kw_only=True)
class View:
    """How training pairs are seen.

    papers: RAFT's augmentation, Teed and Deng 2020, sec. 4 and appendix.

    Args:
        crop: height and width of the random crop; None for whole images.
        scale: range of the factor by which four of five pairs are scaled, log-uniform; a pair is
            made as large as the crop in any case.
        stretch: largest factor by which height and width are further scaled, each by itself and
            either way, in four of five pairs that are scaled.
        flip: probability that a pair is mirrored left to right.
        flip_down: probability that it is mirrored top to bottom.
        colour: strength of the jitter of brightness, contrast and saturation: factors within
            1 - colour and 1 + colour.
        hue: largest rotation of hues, in turns.
        asymmetric: probability that the second image gets a colour jitter of its own.
        erase: probability that one or two rectangles of the second image are covered with its mean
            colour, as if something stood in front of it.
        erased: shortest and longest side of such a rectangle, in pixels.
        sparse: the flow is sparse: each known pixel is moved to the nearest one; otherwise flows
            are interpolated.
    """

    crop: tuple[int, int] | None = None
    scale: tuple[float, float] = (1.0, 1.0)
    stretch: float = 1.0
    flip: float = 0.0
    flip_down: float = 0.0
    colour: float = 0.0
    hue: float = 0.0
    asymmetric: float = 0.0
    erase: float = 0.0
    erased: tuple[int, int] = (50, 100)
    sparse: bool = False


def seen(pair: Pair, view: View, drawn: Tensor) -> Pair:
    """Return pairs as training sees them, images as float32 from 0 to 255.

    Args:
        pair: a batch of pairs of one size, of uint8.
        view: how.
        drawn: `DRAWS` numbers in [0, 1) for each pair that decide it, (batch, DRAWS).
    """
    height, width = pair.valid.shape[1:]
    space, colour, cover = drawn.split([9, 9, 10], 1)
    placing = _placing(height, width, view, space)
    first, second = pair.first.float(), pair.second.float()
    flow, valid = pair.flow, pair.valid
    if not placing.trivial:
        if view.sparse:
            flow, valid = scattered(flow, valid, placing)
        else:
            flow, valid = placed(flow, placing, valid)
            flow = flow * placing.factors[:, :, None, None]
        first, second = placed(first, placing)[0], placed(second, placing)[0]
    if view.colour or view.hue:
        first, second = _recoloured(first, second, view, colour)
    if view.erase:
        second = _covered(second, view, cover)
    return Pair(first, second, flow, valid)


def _placing(height: int, width: int, view: View, drawn: Tensor) -> Placing:
    """Where what is shown lies in the images, by 9 numbers for each pair."""
    scaled, chance, stretched, down_by, right_by, flip, flip_down, down, right = drawn.unbind(1)
    high, wide = view.crop or (height, width)
    small, large = view.scale
    scale = torch.stack([small * (large / small) ** chance] * 2, 1)
    apart = view.stretch ** (2 * torch.stack([down_by, right_by], 1) - 1)
    scale = torch.where(stretched[:, None] < _SCALED, scale * apart, scale)
    scale = torch.where(scaled[:, None] < _SCALED, scale, 1.0)
    return Placing.drawn(
        (height, width),
        (high, wide),
        scale.clamp(min=max(high / height, wide / width)),
        torch.stack([down, right], 1),
        torch.stack([flip_down < view.flip_down, flip < view.flip], 1),
    )


def _recoloured(first: Tensor, second: Tensor, view: View, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """The images in other colours, by 9 numbers for each pair."""
    low = torch.tensor([1 - view.colour] * 3 + [-view.hue])
    high = torch.tensor([1 + view.colour] * 3 + [view.hue])
    one, other = (low + (high - low) * each for each in drawn[:, 1:].split(4, 1))
    apart = drawn[:, 0] < view.asymmetric
    return recoloured(first, second, one, torch.where(apart[:, None], other, one), apart)


def _covered(images: Tensor, view: View, drawn: Tensor) -> Tensor:
    """The images without one or two rectangles, by 10 numbers for each."""
    covered, both = drawn[:, 0] < view.erase, drawn[:, 1] < 0.5
    small, large = view.erased
    high, wide = images.shape[2:]
    sides = small + (large - small) * drawn[:, 2:6]
    corners = drawn[:, 6:] * torch.tensor([high, wide, high, wide])
    for there, columns in ((covered, slice(0, 2)), (covered & both, slice(2, 4))):
        images = erased(images, corners[:, columns], sides[:, columns], there)
    return images
