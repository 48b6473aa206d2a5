"""Weights in 8, 16 or 32 bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

__all__ = ["BITS", "Bits", "narrowed", "widened"]

Bits = Literal[8, 16, 32]
"""Of a weight in a file."""

BITS: tuple[int, ...] = get_args(Bits)

SQUARE = 16
"""Rows and columns that a matrix has at least, so that it is stored in 8 bits: a row has two
numbers of its own."""

COORDINATES = 3
"""Columns of a matrix that coordinates are multiplied by, at most."""

LOW, STEP = ".low", ".step"
"""What the numbers of the rows of a matrix in 8 bits are called after it."""

STORED = (torch.uint8, torch.float16, torch.float32)


def narrowed(state: Mapping[str, Tensor], bits: int) -> dict[str, Tensor]:
    """Return weights as a file has them.

    In 8 bits a row w of a matrix is stored as whole numbers q from 0 to 255 and two numbers,

        w = low + step q, with step = (max w - min w) / 255,

    which are rounded to within .7 step; step is in half precision, and low too where that moves it
    by no more than step / 8. Vectors, and matrices with a side below 16, have 16 bits,
    IEEE half precision. Frequencies, which coordinates are multiplied by, always have 32: they are
    few, and an error of a frequency of several hundred is one of the phase.

    Args:
        state: weights by name, floating-point.
        bits: of an entry of a large matrix: 8, 16 or 32.

    Raises:
        ValueError: other `bits`, or a weight that is not finite.
    """
    if bits not in BITS:
        raise ValueError(f"bits must be one of {', '.join(map(str, BITS))}; got {bits}")
    found: dict[str, Tensor] = {}
    for name, given in state.items():
        value = given.detach().to("cpu", torch.float32).contiguous()
        if not bool(value.isfinite().all()):
            raise ValueError(f"the weights {name} are not finite: the network cannot be stored")
        large = value.ndim == 2 and min(value.shape) >= SQUARE
        if bits == 32 or (value.ndim == 2 and value.shape[1] <= COORDINATES):
            found[name] = value
        elif bits == 8 and large:
            found |= _rows(name, value)
        else:
            found[name] = _half(value)
    return found


def widened(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights, float32, that `narrowed` gave.

    Raises:
        ValueError: it gave something else.
    """
    found: dict[str, Tensor] = {}
    for name in _names(stored):
        value = stored[name]
        if value.dtype not in STORED:
            raise ValueError(
                f"{name} is {value.dtype}: expected 8-bit integers or 16 or 32-bit floats"
            )
        if value.dtype == torch.uint8:
            low, step = (stored.get(f"{name}{end}") for end in (LOW, STEP))
            rows = value.shape[:1]
            if value.ndim != 2 or low is None or step is None or {low.shape, step.shape} != {rows}:
                raise ValueError(f"{name} is in 8 bits without two numbers for each of its rows")
            value = low.float()[:, None] + step.float()[:, None] * value
        value = value.float()
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} is not finite")
        found[name] = value
    return found


def _names(stored: Mapping[str, Tensor]) -> Iterable[str]:
    """The weights, without the numbers of rows."""
    rows = {
        f"{name}{end}"
        for name, x in stored.items()
        if x.dtype == torch.uint8
        for end in (LOW, STEP)
    }
    return (name for name in stored if name not in rows)


def _rows(name: str, value: Tensor) -> dict[str, Tensor]:
    least, most = value.aminmax(dim=1)
    # The stored numbers count, rounded as they are: q is found with them.
    step = _half((most - least) / 255, small=True)
    low = _half(least, small=True)
    if bool(((low.float() - least).abs() > step.float() / 8).any()):
        low = least  # of a row that lies far from zero the rounding would be steps
    by = step.float()[:, None]
    whole = (value - low.float()[:, None]) / torch.where(by > 0, by, 1.0)
    return {
        name: whole.round().clamp(0, 255).to(torch.uint8),
        f"{name}{LOW}": low,
        f"{name}{STEP}": step,
    }


def _half(value: Tensor, *, small: bool = False) -> Tensor:
    """In half precision, unless that cannot hold it, or where `small` counts has fewer digits."""
    limits = torch.finfo(torch.float16)
    size = value.abs()
    fits = not bool((size > limits.max).any())
    if small:
        fits = fits and not bool(((size > 0) & (size < limits.smallest_normal)).any())
    return value.half() if fits else value
