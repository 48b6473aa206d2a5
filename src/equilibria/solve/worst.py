"""The worst row of a sample: a tolerance that every node of a graph has to meet.

Over all rows together a relative residual of 1e-3 is met when nine hops out of ten of a signal that
fades have not been made yet; what is still to come is small beside what is there. By rows it is
not: where a signal arrives f(z) is all residual.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equilibria.solve.rows import Layout, Rows


@dataclass(frozen=True)
class Worst:
    """Of each sample, over its rows.

    Attributes:
        relative: `(samples,)`, the largest ||f(z) - z|| / ||f(z)||; 0 / 0 is 0.
        merit: `(samples,)`, the largest ||f(z) - z|| / (atol + rtol ||f(z)||), in the RMS norm.
        arriving: `(samples,)`, is a row of z zero where that of f(z) is not?
    """

    relative: Tensor
    merit: Tensor
    arriving: Tensor

    @classmethod
    def of(
        cls, layout: Layout, residual: Rows, f: Rows, rtol: float | Tensor, atol: float
    ) -> Worst | None:
        """Measures f(z) and f(z) - z; None where a sample is a single row of the state."""
        gaps = layout.parts([row.detach() for row in residual])
        images = layout.parts([row.detach() for row in f])
        if gaps is None or images is None:
            return None
        # Far out, a signal is smaller than what can be squared: each row has a unit of its own.
        largest = torch.stack([part.abs().amax(2) for part in (*gaps, *images)]).amax(0)
        unit = torch.where(largest > 0, largest, 1.0)
        size, scale = (_length([part / unit[..., None] for part in x]) for x in (gaps, images))
        count = sum(part.shape[2] for part in images)
        goal = rtol[:, None] if isinstance(rtol, Tensor) else rtol
        tolerated = goal * scale + atol * math.sqrt(count) / unit
        at_zero = torch.stack([(a == b).all(2) for a, b in zip(gaps, images, strict=True)]).all(0)
        return cls(
            torch.where(size == 0, 0.0, size / scale).amax(1),
            torch.where(size == 0, 0.0, size / tolerated).amax(1),
            (at_zero & (scale > 0)).any(1),
        )


def _length(parts: Rows) -> Tensor:
    """`(samples, rows)`."""
    squares = [part.square().sum(2) for part in parts]
    return torch.stack(squares).sum(0).sqrt()
