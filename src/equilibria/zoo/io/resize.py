"""Images in another size, without aliasing."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Images that are resized at once: bounds the float32 copy of them.
_BLOCK = 2048


def resized(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Return images in another size.

    A side that shrinks is averaged over areas: each new pixel is the mean of what it covers of the
    old ones, by the share of each that it covers. A side that grows is interpolated linearly.

    Args:
        images: ``(count, channels, height, width)``, float or uint8; uint8 is rounded.
        size: Height and width, or pixels of both, 1 or more.

    Returns:
        ``(count, channels, *size)`` of the same dtype; `images` itself if it has that size.

    Raises:
        ValueError: If `size` is below one.
    """
    high, wide = (size, size) if isinstance(size, int) else size
    if min(high, wide) < 1:
        raise ValueError(f"size is {size}: expected at least 1 pixel per side")
    if tuple(images.shape[2:]) == (high, wide):
        return images
    down = weights(images.shape[2], high)
    across = weights(images.shape[3], wide)
    blocks = [down @ block.float() @ across.T for block in images.split(_BLOCK)]
    if images.dtype == torch.uint8:
        return torch.cat([block.round().clamp(0, 255).byte() for block in blocks])
    return torch.cat(blocks).to(images.dtype)


def weights(old: int, new: int) -> Tensor:
    """Return the matrix ``(new, old)`` that takes a line of pixels to one of another length."""
    if new > old:
        line = torch.eye(old).unsqueeze(0)
        return functional.interpolate(line, new, mode="linear", align_corners=False)[0].T
    edges = torch.arange(new + 1, dtype=torch.float64) * (old / new)
    pixels = torch.arange(old, dtype=torch.float64)
    begin = torch.maximum(edges[:-1, None], pixels)
    end = torch.minimum(edges[1:, None], pixels + 1)
    return ((end - begin).clamp(min=0) * (new / old)).float()
