"""KITTI's flow in PNG files of 16-bit RGB (Geiger et al. 2012, development kit)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from equilibria.run.data.errors import DataError
from equilibria.zoo.flow.data import png16
from equilibria.zoo.flow.data.field import FlowField

__all__ = ["read", "write"]

_SCALE, _ZERO = 64.0, 1 << 15
_VALID = (0, 1, 255, 65_535)  # of blue; some programs write the maximum for "known"


def read(path: Path) -> FlowField:
    """Read flow: ``u = (red - 2^15) / 64``, v of green likewise, valid where blue is not 0.

    Raises:
        DataError: If it is no PNG file of 16-bit RGB or damaged, has no valid pixel, or has other
            values of blue, as where its channels are in another order.
    """
    pixels = png16.read(path)
    blue = np.unique(pixels[..., 2])
    if odd := [each for each in blue.tolist() if each not in _VALID]:
        raise DataError(
            f"{path} has the blue value {odd[0]}, where KITTI's flow has 0 (unknown) or 1: its "
            "channels seem to be in another order. OpenCV writes BGR: save flow[..., ::-1]"
        )
    flow = (pixels[..., :2].astype(np.float32) - _ZERO) / _SCALE
    valid = torch.from_numpy(pixels[..., 2] > 0)
    field = torch.from_numpy(np.ascontiguousarray(flow.transpose(2, 0, 1))) * valid
    try:
        return FlowField(field, valid)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def write(path: Path, field: FlowField) -> None:
    """Write flow as `read` reads it, rounded to 1/64 pixel; pixels without valid flow are black.

    Raises:
        ValueError: If the flow of a valid pixel is below -512 or above 511.98 pixels.
        DataError: If the file cannot be written.
    """
    flow = field.flow.detach().cpu().double()
    valid = field.valid.cpu()
    values = torch.where(valid, (flow * _SCALE + _ZERO).round(), 0.0)
    outside = (values < 0) | (values > 65_535)
    if outside.any():
        # The farthest of them is what the message names.
        most = float(flow[outside][flow[outside].abs().argmax()])
        raise ValueError(
            f"{path.name}: a KITTI PNG file holds flow from -512 to 511.98 pixels, got {most:g} "
            f"({int(outside.any(0).sum()):,} such pixels): write .flo or .pfm"
        )
    pixels = torch.cat([values, valid[None].double()]).permute(1, 2, 0)
    png16.write(path, pixels.numpy().astype(np.uint16))
