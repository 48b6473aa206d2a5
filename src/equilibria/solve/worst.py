"""The worst part of a sample: a tolerance that every node of a graph, or every leaf of the state,
must meet.

Over all rows together a relative residual of 1e-3 is met when nine hops out of ten of a signal that
fades have not been made yet; what is still to come is small beside what is there. By rows it is
not: where a signal arrives f(z) is all residual. And over all leaves together 128 channels of a
hidden state hide the two of a flow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equilibria.solve import tolerance
from equilibria.solve.rows import Layout, Rows
from equilibria.solve.tolerance import Flat


@dataclass(frozen=True)
class Worst:
    """Of each sample, over its parts.

    Attributes:
        relative: `(samples,)`, ||f(z) - z|| / ||f(z)|| over all leaves, of the worst row where
            rows are parts; 0 / 0 is 0.
        merit: `(samples,)`, the largest ||f(z) - z|| / (atol + rtol ||f(z)||), in the RMS norm.
        arriving: `(samples,)`, is a row of z zero where that of f(z) is not?
    """

    relative: Tensor
    merit: Tensor
    arriving: Tensor

    @classmethod
    def of(
        cls,
        layout: Layout,
        residual: Rows,
        f: Rows,
        rtol: Flat | Tensor,
        atol: Flat,
        *,
        per_row: bool = True,
    ) -> Worst | None:
        """Measures f(z) and f(z) - z; None where a sample is all one part.

        Args:
            layout: how the state lies in the rows.
            residual: f(z) - z.
            f: f(z).
            rtol: one for all leaves, or for each; or `(samples,)`.
            atol: one for all leaves, or for each.
            per_row: the rows of the state that make up a sample are parts.
        """
        by_leaf = isinstance(rtol, tuple) or isinstance(atol, tuple)
        residual, f = ([row.detach() for row in rows] for rows in (residual, f))
        gaps, images = (layout.parts(rows) if per_row else None for rows in (residual, f))
        filled = None
        if gaps is None or images is None:
            if not by_leaf:
                return None
            gaps, images = ([row.unsqueeze(1) for row in rows] for rows in (residual, f))
            filled = layout.filled
        size, scale, unit = _lengths(gaps, images)
        relative = torch.where(size == 0, 0.0, size / scale).amax(1)
        merits: list[Tensor] = []
        for leaf in range(len(gaps) if by_leaf else 1):
            here = images
            if by_leaf:
                here = images[leaf : leaf + 1]
                size, scale, unit = _lengths(gaps[leaf : leaf + 1], here)
            entries = sum(part.shape[2] for part in here)
            absolute = tolerance.of_leaf(atol, leaf) * math.sqrt(entries) / unit
            if filled is not None:
                absolute = absolute * filled[:, None]
            goal = rtol[:, None] if isinstance(rtol, Tensor) else tolerance.of_leaf(rtol, leaf)
            merits.append(torch.where(size == 0, 0.0, size / (goal * scale + absolute)).amax(1))
        at_zero = torch.stack([(a == b).all(2) for a, b in zip(gaps, images, strict=True)]).all(0)
        there = torch.stack([part.any(2) for part in images]).any(0)
        merit = merits[0] if len(merits) == 1 else torch.stack(merits).amax(0)
        return cls(relative, merit, (at_zero & there).any(1))


def _lengths(gaps: Rows, images: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """||f(z) - z|| and ||f(z)|| in a unit of each part's own, and the unit: `(samples, rows)` all.

    Far out, a signal is smaller than what can be squared.
    """
    largest = torch.stack([part.abs().amax(2) for part in (*gaps, *images)]).amax(0)
    unit = torch.where(largest > 0, largest, 1.0)
    size, scale = (_length([part / unit[..., None] for part in x]) for x in (gaps, images))
    return size, scale, unit


def _length(parts: Rows) -> Tensor:
    """`(samples, rows)`."""
    squares = [part.square().sum(2) for part in parts]
    return torch.stack(squares).sum(0).sqrt()
