"""Scenes of flat layers as two images, the exact flow between them, and what is hidden."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from equilibria.zoo.flow.data.drawn import HARMONICS, Scenes, compose

_LARGEST = 1.5
"""Above what r, the distance of an outline from a shape's middle, can be."""


class Rendered(NamedTuple):
    """What a camera sees of some scenes."""

    first: Tensor
    """RGB, float32 in 0..255, ``(scenes, 3, height, width)``."""
    second: Tensor
    """RGB, float32 in 0..255, ``(scenes, 3, height, width)``."""
    flow: Tensor
    """Of the first image, in pixels, float32, ``(scenes, 2, height, width)``."""


def render(scenes: Scenes, size: tuple[int, int], photographs: Sequence[Tensor]) -> Rendered:
    """Render scenes from back to front.

    A pixel on the edge of a shape is a mixture, by the share of it that the shape covers; its flow
    is that of the shape where this share is a half or more.

    Args:
        scenes: Of `draw`.
        size: Height and width of the images.
        photographs: What layers show, uint8, ``(3, height, width)``.
    """
    x, y = _grid(size)
    cover = [_coverage(scenes, frame, x, y) for frame in range(2)]
    first, second = _paint(scenes, torch.cat(cover), photographs).chunk(2)
    return Rendered(first, second, _move(scenes, _frontmost(cover[0]), x, y))


def find_occluded(scenes: Scenes, size: tuple[int, int]) -> Tensor:
    """Which pixels of the first image are hidden in the second, or leave it.

    Returns:
        bool, ``(scenes, height, width)``.
    """
    height, width = size
    x, y = _grid(size)
    top = _frontmost(_coverage(scenes, 0, x, y))
    u, v = _move(scenes, top, x, y).unbind(1)
    x, y = x + u, y + v
    hidden = (x < 0) | (x > width - 1) | (y < 0) | (y > height - 1)
    for layer in range(1, scenes.there.shape[1]):
        here = torch.from_numpy(scenes.there[:, layer])
        cover = _shape(*_outlines(scenes, 1, slice(None), layer), x, y)
        hidden |= (cover >= 0.5) & (top < layer) & here[:, None, None]
    return hidden


def _grid(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The places of pixels: x, ``(width,)``, and y, ``(height, 1)``."""
    return torch.arange(float(size[1])), torch.arange(float(size[0]))[:, None]


def _float(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))


def _in_frame(maps: np.ndarray, backward: np.ndarray, frame: int) -> np.ndarray:
    """Maps from places in the first image, as maps from those in an image."""
    return compose(maps, backward) if frame else maps


def _outlines(
    scenes: Scenes, frame: int, rows: np.ndarray | slice, layers: np.ndarray | int
) -> tuple[Tensor, Tensor]:
    """What `_shape` takes, of some layers."""
    local = _in_frame(scenes.local[rows, layers], scenes.backward[rows, layers], frame)
    return _float(local), _float(scenes.outline[rows, layers])


def _coverage(scenes: Scenes, frame: int, x: Tensor, y: Tensor) -> Tensor:
    """Which share of each pixel a layer covers, ``(scenes, layers, height, width)``."""
    cover = torch.zeros(*scenes.there.shape, len(y), len(x))
    cover[:, 0] = 1.0
    rows, layers = scenes.there.nonzero()
    rows, layers = rows[layers > 0], layers[layers > 0]
    if len(rows):
        found = _shape(*_outlines(scenes, frame, rows, layers), x, y)
        cover[torch.from_numpy(rows), torch.from_numpy(layers)] = found
    return cover


def _shape(local: Tensor, outline: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which share of a pixel some shapes cover.

    It is 1/2 plus the distance of the pixel from the outline, in pixels and positive inside, within
    0 and 1. The distance is that of the level set r(angle) - radius, to first order.

    Args:
        local: Affine maps to where the outline is r(angle), ``(shapes, 2, 3)``.
        outline: Cosine and sine parts of the harmonics of r, ``(shapes, harmonics, 2)``.
        x: Places of pixels, to be broadcast with `y`: ``(width,)`` or ``(shapes, height, width)``.
        y: ``(height, 1)`` or ``(shapes, height, width)``.
    """
    a, b, c, d, e, f = local.reshape(-1, 6, 1, 1).unbind(1)
    u, v = a * x + (b * y + c), d * x + (e * y + f)
    # Only near pixels are looked at closely: of others, the nearest is a pixel away from any r.
    reach = _LARGEST + torch.stack([a, b, d, e]).norm(dim=0)
    near = torch.addcmul(u * u, v, v) < reach * reach
    cover = torch.zeros(u.shape)
    places = near.flatten().nonzero()[:, 0]
    row = near.flatten(1).sum(1)
    row = torch.arange(len(row)).repeat_interleave(row, output_size=len(places))
    u, v = u.flatten()[places], v.flatten()[places]
    a, b, d, e = torch.cat([a, b, d, e], 1)[:, :, 0].T.contiguous()[:, row]
    radius = torch.addcmul(u * u, v, v).sqrt_()
    inverse = radius.clamp(min=1e-6).reciprocal_()
    cosine, sine = u.mul_(inverse), v.mul_(inverse)
    several, other = cosine, sine  # of twice the angle, and so on
    limit, slope = 1.0 - radius, torch.zeros_like(radius)
    number = 1
    for m, parts in zip(HARMONICS, outline.unbind(1), strict=True):
        while number < m:
            several, other = several * cosine - other * sine, other * cosine + several * sine
            number += 1
        p, q = parts.T.contiguous()[:, row]
        limit.addcmul_(several, p).addcmul_(other, q)
        slope.addcmul_(several, q, value=m).addcmul_(other, p, value=-m)
    # Near the middle the angle changes fast and the outline is far: the slope there must not make
    # it look near.
    slope.div_(radius.clamp_(min=0.3))
    across, down = -slope * sine - cosine, slope * cosine - sine
    steep = (across * a + down * d).square_() + (across * b + down * e).square_()
    cover.view(-1)[places] = limit.mul_(steep.rsqrt_()).add_(0.5).clamp_(0, 1)
    return cover


def _frontmost(cover: Tensor) -> Tensor:
    """The layer that is seen at each pixel, int64, ``(scenes, height, width)``."""
    number = torch.arange(cover.shape[1], dtype=torch.uint8)[:, None, None]
    return ((cover >= 0.5) * number).amax(1).long()


def _move(scenes: Scenes, top: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """How far pixels of layers move, ``(scenes, 2, height, width)``."""
    count, layers = scenes.there.shape
    change = scenes.forward - np.eye(2, 3)  # small numbers: nothing is lost to float32
    index = top + layers * torch.arange(count)[:, None, None]
    rows = _float(change).reshape(-1, 6)[index]
    a, b, c, d, e, f = rows.unbind(-1)
    return torch.stack([a * x + b * y + c, d * x + e * y + f], 1)


def _paint(scenes: Scenes, cover: Tensor, photographs: Sequence[Tensor]) -> Tensor:
    """Both images of each scene, all first ones before all second ones.

    A photograph is only sampled where it is seen.

    Args:
        scenes: The scenes.
        cover: What the layers cover in each image, ``(2 * scenes, layers, height, width)``.
        photographs: What layers show.

    Returns:
        RGB, float32 in 0..255, ``(2 * scenes, 3, height, width)``.
    """
    count, layers, height, width = cover.shape
    seen, left = torch.empty_like(cover), torch.ones(count, height, width)
    for layer in reversed(range(layers)):
        torch.mul(cover[:, layer], left, out=seen[:, layer])
        left = left - seen[:, layer]
    pixels = height * width
    image = torch.zeros(3, count * pixels)
    texture = np.stack([_in_frame(scenes.texture, scenes.backward, frame) for frame in range(2)])
    texture = _float(texture).reshape(-1, 6)
    color = _float(scenes.color).reshape(-1, 6).repeat(2, 1)
    scene = torch.arange(count).repeat_interleave(layers)
    shown = torch.from_numpy(np.where(scenes.there, scenes.photograph, -1)).flatten().repeat(2)
    x, y = (each.expand(height, width).flatten() for each in _grid((height, width)))
    seen = seen.view(-1, pixels)
    for number in shown[shown >= 0].unique().tolist():
        mine = (shown == number).nonzero()[:, 0]
        shares = seen[mine]
        row, within = (shares > 0).nonzero().unbind(1)
        if not len(row):
            continue  # hidden, or outside both images
        photograph = photographs[number].float()[None]
        a, b, c, d, e, f = texture[mine][row].T.contiguous()
        right, down = x[within], y[within]
        high, wide = photograph.shape[2:]
        across = (a * right + b * down + c) * (2 / max(1, wide - 1)) - 1
        along = (d * right + e * down + f) * (2 / max(1, high - 1)) - 1
        found = functional.grid_sample(
            photograph,
            torch.stack([across, along], 1)[None, None],
            padding_mode="reflection",
            align_corners=True,
        )[0, :, 0]
        gains = color[mine][row].T.contiguous()
        found = (found * gains[:3] + gains[3:]).clamp_(0, 255) * shares[row, within]
        target = scene[mine][row] * pixels + within
        image.scatter_add_(1, target.expand(3, -1), found)
    return image.view(3, count, height, width).transpose(0, 1)
