"""Batches of pairs of images with their flow, in an order of their own, seen at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria.run.data.storage import DataError
from equilibria.run.tasks.feed import Batch, Part
from equilibria.zoo.flow.data import FlowPair, Pairs
from equilibria.zoo.io.prefetch import AheadFeed

# --- placing --------------------------------------------------------------------------------------

# Where what is shown of images lies in them, and the pixels and flows that this gives.


@dataclass(frozen=True, kw_only=True)
class Placing:
    """The part of each image of a batch that is shown, and how large.

    All tensors are (batch, 2), first downwards and then to the right.

    Attributes:
        size: height and width of the images.
        shown: height and width of what is shown.
        scale: how many pixels one of the image becomes along each side.
        begin: where the part begins, in pixels of the scaled image.
        flip: whether it is mirrored, bool.
    """

    size: tuple[int, int]
    shown: tuple[int, int]
    scale: Tensor
    begin: Tensor
    flip: Tensor

    @property
    def trivial(self) -> bool:
        """Whether all images are shown as they are."""
        still = bool((self.scale == 1.0).all()) and not bool(self.flip.any())
        return still and self.size == self.shown

    @property
    def factors(self) -> Tensor:
        """What flows, to the right and downwards, are multiplied with, (batch, 2)."""
        return torch.where(self.flip, -self.scale, self.scale).flip(1)

    def sources(self, axis: int) -> Tensor:
        """Return the places in the images of what is shown along an axis, (batch, shown)."""
        steps = torch.arange(self.shown[axis])
        steps = torch.where(self.flip[:, axis, None], steps.flip(0), steps)
        return (self.begin[:, axis, None] + steps + 0.5) / self.scale[:, axis, None] - 0.5

    def targets(self, places: Tensor, images: Tensor, axis: int) -> Tensor:
        """Return where pixels of the images are shown along an axis, as real numbers.

        Args:
            places: of the pixels, (pixels,).
            images: which image of the batch each is in, (pixels,).
            axis: 0 downwards, 1 to the right.
        """
        scale, begin = self.scale[images, axis], self.begin[images, axis]
        shown = (places + 0.5) * scale - begin - 0.5
        return torch.where(self.flip[images, axis], self.shown[axis] - 1 - shown, shown)


def show(images: Tensor, placing: Placing, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return what is shown of images, interpolated linearly, and where it is known.

    Args:
        images: (batch, channels, height, width).
        placing: where.
        valid: pixels that are known, bool, (batch, height, width); None for all. What is shown is
            known where all that it is interpolated from is.
    """
    height, width = placing.size
    high, wide = placing.shown
    # grid_sample's -1 and 1 are the outer edges.
    rows = (2 * placing.sources(0) + 1) / height - 1
    columns = (2 * placing.sources(1) + 1) / width - 1
    shape = (len(images), high, wide)
    grid = torch.stack([columns[:, None].expand(shape), rows[:, :, None].expand(shape)], 3)
    if valid is None:
        shown = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
        return shown, torch.ones(shape, dtype=torch.bool)
    known = valid[:, None]
    # What is unknown may be anything, even no number.
    images = torch.cat([torch.where(known, images, 0.0), known.to(images)], 1)
    shown = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return shown[:, :-1], shown[:, -1] > 0.999


def scatter(flow: Tensor, valid: Tensor, placing: Placing) -> tuple[Tensor, Tensor]:
    """Return the flow that is shown where it is known at single pixels, and where that is.

    Each known pixel is moved to the nearest one that is shown; where several are, the last in the
    order of rows is taken.

    Args:
        flow: (batch, 2, height, width), in pixels of the images.
        valid: where it is known, bool, (batch, height, width).
        placing: where.

    Returns:
        Flow (batch, 2, *shown), 0 where it is not known, and where it is, (batch, *shown).
    """
    count, (high, wide) = len(flow), placing.shown
    images, rows, columns = valid.nonzero().unbind(1)
    down = placing.targets(rows, images, 0).round().long()
    right = placing.targets(columns, images, 1).round().long()
    inside = (down >= 0) & (down < high) & (right >= 0) & (right < wide)
    index = ((images * high + down) * wide + right)[inside]
    # Not by assignment, whose order is undefined where several have one index.
    order = torch.arange(len(index))
    latest = torch.full((count * high * wide,), -1).scatter_reduce_(0, index, order, "amax")
    known = latest >= 0
    values = flow[images, :, rows, columns][inside] * placing.factors[images[inside]]
    shown = torch.zeros(count * high * wide, 2, dtype=flow.dtype)
    shown[known] = values[latest[known]]
    return shown.view(count, high, wide, 2).permute(0, 3, 1, 2), known.view(count, high, wide)


# --- colours --------------------------------------------------------------------------------------

# Colours of pairs of images, changed at random, and rectangles that cover a part of one.


_GRAY = (0.299, 0.587, 0.114)  # Rec. 601: the weights of red, green and blue


def recolor(
    first: Tensor, second: Tensor, one: Tensor, other: Tensor, apart: Tensor
) -> tuple[Tensor, Tensor]:
    """Return pairs of images with other brightness, contrast, saturation and hue, in this order.

    Contrast is the distance from the mean grey, of both images where they change alike.

    Args:
        first: RGB from 0 to 255, float32, (batch, 3, height, width).
        second: the same.
        one: factors of brightness, contrast and saturation of the first images, and the angle by
            which hues are turned, in turns, (batch, 4).
        other: those of the second images.
        apart: whether both have factors of their own, bool, (batch,).
    """
    images, numbers = torch.cat([first, second]), torch.cat([one, other])
    brightness, contrast, saturation, hue = numbers[:, :, None, None, None].unbind(1)
    images = (images * brightness).clamp(0.0, 255.0)
    own = _gray(images).mean((1, 2, 3), keepdim=True)
    both = own.unflatten(0, (2, -1)).mean(0).repeat(2, 1, 1, 1)
    mean = torch.where(apart.repeat(2)[:, None, None, None], own, both)
    images = (mean + contrast * (images - mean)).clamp(0.0, 255.0)
    gray = _gray(images)
    images = (gray + saturation * (images - gray)).clamp(0.0, 255.0)
    if bool((hue != 0).any()):
        images = turn_hues(images, hue[:, 0])
    one_half, other_half = images.chunk(2)
    return one_half, other_half


def turn_hues(images: Tensor, hue: Tensor) -> Tensor:
    """Return images whose hues are turned; value and chroma stay as they are.

    Args:
        images: RGB, (batch, 3, height, width).
        hue: angles in turns, of a shape that (batch, height, width) can be combined with.
    """
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    safe = chroma.clamp(min=1e-12)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = sixth + 6 * hue
    # How far a channel is below the value, by its distance from where the hue has it largest.
    parts = []
    for offset in (5, 3, 1):
        k = (offset + sixth) % 6
        parts.append(value - chroma * torch.minimum(k, 4 - k).clamp(0.0, 1.0))
    return torch.stack(parts, 1)


def cover(images: Tensor, corners: Tensor, sides: Tensor, there: Tensor) -> Tensor:
    """Return images of which a rectangle is covered with their mean colour.

    Args:
        images: (batch, channels, height, width).
        corners: top and left of the rectangles, in pixels, (batch, 2); what is beyond the edge is
            cut off.
        sides: their heights and widths, (batch, 2).
        there: which images have one, bool, (batch,).
    """
    inside = list[Tensor]()
    for axis in (0, 1):
        places = torch.arange(images.shape[2 + axis])
        begin, side = corners[:, axis, None], sides[:, axis, None]
        inside.append((places >= begin.floor()) & (places < (begin + side).floor()))
    covered = inside[0][:, :, None] & inside[1][:, None] & there[:, None, None]
    return torch.where(covered[:, None], images.mean((2, 3), keepdim=True), images)


def _gray(images: Tensor) -> Tensor:
    weights = torch.tensor(_GRAY, dtype=images.dtype)
    return torch.einsum("nchw,c->nhw", images, weights)[:, None]


# --- view -----------------------------------------------------------------------------------------

# How a pair of images and its flow are seen in training: scaled, mirrored, cut, recoloured.


DRAWS = 28
"""Numbers that decide how one pair is seen."""

_SCALED = 0.8
"""Share of the pairs that are scaled, and of those the share that is stretched, as in RAFT's."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How training pairs are changed at random.

    papers: RAFT's augmentation, Teed and Deng 2020, sec. 4 and appendix.

    Args:
        crop: height and width of the random crop of a training pair; null for whole images, which
            must then all have one size.
        scale: range of the factor by which four of five training pairs are scaled, log-uniform. A
            pair is always made as large as the crop.
        stretch: largest factor by which height and width are further scaled, each by itself and
            either way, in four of five of those.
        flip: probability that a training pair is mirrored left to right.
        flip_down: probability that it is mirrored top to bottom.
        color: strength of the jitter of brightness, contrast and saturation: factors within
            1 - colour and 1 + colour.
        hue: largest rotation of hues, in turns, up to 0.5.
        asymmetric: probability that the second image gets a colour jitter of its own.
        erase: probability that one or two rectangles of the second image are covered with its mean
            colour, as if something stood in front of it.
        erased: shortest and longest side of these, in pixels.
    """

    crop: tuple[int, int] | None = None
    scale: tuple[float, float] = (1.0, 1.0)
    stretch: float = 1.0
    flip: float = 0.0
    flip_down: float = 0.0
    color: float = 0.0
    hue: float = 0.0
    asymmetric: float = 0.0
    erase: float = 0.0
    erased: tuple[int, int] = (50, 100)


@dataclass(frozen=True, kw_only=True)
class PairView(Augmentation):
    """How training pairs are seen.

    Args:
        sparse: the flow is sparse: each known pixel is moved to the nearest one; otherwise flows
            are interpolated.
    """

    sparse: bool = False


def view_pair(pair: FlowPair, view: PairView, drawn: Tensor) -> FlowPair:
    """Return pairs as training sees them, images as float32 from 0 to 255.

    Args:
        pair: a batch of pairs of one size, of uint8.
        view: how.
        drawn: `DRAWS` numbers in [0, 1) for each pair that decide it, (batch, DRAWS).
    """
    height, width = pair.valid.shape[1:]
    space, color, cover = drawn.split([9, 9, 10], 1)
    placing = _place(height, width, view, space)
    first, second = pair.first.float(), pair.second.float()
    flow, valid = pair.flow, pair.valid
    if not placing.trivial:
        if view.sparse:
            flow, valid = scatter(flow, valid, placing)
        else:
            flow, valid = show(flow, placing, valid)
            flow = flow * placing.factors[:, :, None, None]
        first, second = show(first, placing)[0], show(second, placing)[0]
    if view.color or view.hue:
        first, second = _recolor(first, second, view, color)
    if view.erase:
        second = _cover(second, view, cover)
    return FlowPair(first, second, flow, valid)


def _place(height: int, width: int, view: PairView, drawn: Tensor) -> Placing:
    """Where what is shown lies in the images, by 9 numbers for each pair."""
    scaled, large_by, stretched, down_by, right_by, flip, flip_down, down, right = drawn.unbind(1)
    high, wide = view.crop or (height, width)
    small, large = view.scale
    scale = torch.stack([small * (large / small) ** large_by] * 2, 1)
    apart = view.stretch ** (2 * torch.stack([down_by, right_by], 1) - 1)
    scale = torch.where(stretched[:, None] < _SCALED, scale * apart, scale)
    scale = torch.where(scaled[:, None] < _SCALED, scale, 1.0)
    scale = scale.clamp(min=max(high / height, wide / width))
    spare = (torch.tensor((height, width)) * scale - torch.tensor((high, wide))).clamp(min=0.0)
    chance = torch.stack([down, right], 1)
    # Without scaling, whole pixels: in between two of them the image would be blurred.
    whole = (chance * (spare + 1)).floor().minimum(spare)
    return Placing(
        size=(height, width),
        shown=(high, wide),
        scale=scale,
        begin=torch.where(scale == 1.0, whole, chance * spare),
        flip=torch.stack([flip_down < view.flip_down, flip < view.flip], 1),
    )


def _recolor(first: Tensor, second: Tensor, view: PairView, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """The images in other colours, by 9 numbers for each pair."""
    low = torch.tensor([1 - view.color] * 3 + [-view.hue])
    high = torch.tensor([1 + view.color] * 3 + [view.hue])
    one, other = (low + (high - low) * each for each in drawn[:, 1:].split(4, 1))
    apart = drawn[:, 0] < view.asymmetric
    return recolor(first, second, one, torch.where(apart[:, None], other, one), apart)


def _cover(images: Tensor, view: PairView, drawn: Tensor) -> Tensor:
    """The images without one or two rectangles, by 10 numbers for each."""
    covered, both = drawn[:, 0] < view.erase, drawn[:, 1] < 0.5
    small, large = view.erased
    high, wide = images.shape[2:]
    sides = small + (large - small) * drawn[:, 2:6]
    corners = drawn[:, 6:] * torch.tensor([high, wide, high, wide])
    for there, columns in ((covered, slice(0, 2)), (covered & both, slice(2, 4))):
        images = cover(images, corners[:, columns], sides[:, columns], there)
    return images


# --- feed -----------------------------------------------------------------------------------------


class FlowFeed(AheadFeed):
    """Pairs in an order of their own in each pass, seen at random.

    Args:
        pairs: what to learn from.
        batch_size: pairs a batch, of all processes together.
        seed: of the orders, and of how pairs are seen.
        view: how the pair at a place is seen.

    Raises:
        ValueError: the pairs do not fill one batch.
    """

    stream = "flow"

    def __init__(
        self, pairs: Pairs, batch_size: int, seed: int, *, view: Callable[[int], PairView]
    ) -> None:
        super().__init__(len(pairs), batch_size, seed)
        self.pairs, self.view = pairs, view

    @override
    def make_batch(self, places: Tensor, step: int, part: Part) -> Batch:
        return batch_of(self._view(places, self.draw_numbers(step, part, DRAWS)))

    def _view(self, places: Tensor, drawn: Tensor) -> FlowPair:
        alike = len({(self.view(k), self.pairs.size(k)) for k in places.tolist()}) == 1
        parts = [
            view_pair(check_flow(self.pairs.batch(each), each), self.view(int(each[0])), numbers)
            for each, numbers in zip(
                *((places[None], drawn[None]) if alike else (places[:, None], drawn[:, None])),
                strict=True,
            )
        ]
        return FlowPair(*(torch.cat(each) for each in zip(*parts, strict=True)))


def check_flow(pair: FlowPair, places: Tensor) -> FlowPair:
    """Return a batch of pairs whose flow is a number wherever it is said to be known.

    Raises:
        DataError: it is not; the message names the pair.
    """
    finite = pair.flow.isfinite().all(1) | ~pair.valid
    if not bool(finite.all()):
        place = int(places[~finite.flatten(1).all(1)][0])
        raise DataError(
            f"the flow of pair {place} (from 0) is not finite at pixels that are said to be valid: "
            "mark them as not valid, or leave the pair out"
        )
    return pair


def batch_of(pair: FlowPair) -> Batch:
    """Return a batch: both images are its inputs, flow and valid pixels its targets."""
    first, second, flow, valid = pair
    return Batch((first, second), (flow, valid))
