"""From pair to pair of frames: how many evaluations fit into a time, and where a solve starts."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

# --- deadline -------------------------------------------------------------------------------------

# How many evaluations fit into a time.


SPENT = 0.9
"""Share of the time that is planned with."""

REMEMBERED = 5
"""Solves of which an evaluation's time is the median."""


class Deadline:
    """Chooses the limit of evaluations by what evaluations have taken so far.

    A solve is not interrupted, so its limit is set beforehand: the time that everything else
    leaves, divided by that of an evaluation, each the median over the last five pairs. A tenth of
    the deadline is held in reserve, since evaluations vary. At least one is made.

    Args:
        seconds: for a pair.

    Raises:
        ValueError: it is not positive.
    """

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"a deadline must be positive; got {1000 * seconds:g} ms")
        self.seconds = seconds
        self._size: tuple[int, ...] = ()
        self._other: deque[float] = deque(maxlen=REMEMBERED)
        self._each: deque[float] = deque(maxlen=REMEMBERED)

    def knows(self, size: tuple[int, ...]) -> bool:
        """Return whether images of a size have been timed; others are forgotten."""
        if size != self._size:
            self._size = size
            self._other.clear()
            self._each.clear()
        return bool(self._each)

    def add(self, other: float, solving: float, evaluations: int) -> None:
        """Record a pair.

        Args:
            other: seconds that it took outside its solve.
            solving: seconds of the solve.
            evaluations: in it, at least 1.
        """
        self._other.append(other)
        self._each.append(solving / evaluations)

    def limit(self) -> int:
        """Return how many evaluations the next pair may take."""
        left = SPENT * self.seconds - median(self._other)
        return max(1, int(left / max(median(self._each), 1e-9)))


# --- following ------------------------------------------------------------------------------------

# Where the solve of a pair of frames starts: from the previous pair's equilibrium, if any.


Start = Literal["zero", "last", "cut"]
"""Where a solve started: without motion; from the last solution; without motion again, since the
scene was cut."""

CUT = 0.25
"""Mismatch below which no scene has been cut. In drives through streets, consecutive frames have up
to .12 and other scenes of the same drive .29 to .58."""

JUMP = 3.0
"""By how many times the mismatch of a cut exceeds the usual one, where that is small."""

REMEMBERED_PAIRS = 10
"""Pairs of which the usual mismatch is the median."""

STRIDE = 8
"""Pixels of an image, a side, that are one pixel of the state."""


class Follower:
    """Hands the equilibrium of a pair of frames on to the next one, unless the scene was cut.

    A cut is detected before anything is solved: if the last flow continued, the second image would
    be the first one warped by it. The mean difference from that, or from no motion if that is less,
    at an eighth of the images' size and relative to the difference between unrelated pixels, is a
    mismatch m, about 0 in a steady scene. With M its median over the last ten pairs, a pair is
    taken to lie across a cut where

        m > max(1/4, min(3 M, (1 + M) / 2)).

    It starts without motion, and so does the pair after it.
    """

    def __init__(self) -> None:
        self._state: tuple[Tensor, Tensor] | None = None
        self._size: tuple[int, ...] = ()
        self._usual: deque[float] = deque(maxlen=REMEMBERED_PAIRS)
        self._across = False

    def start(
        self, first: Tensor, second: Tensor, *, follows: bool
    ) -> tuple[tuple[Tensor, Tensor] | None, Start]:
        """Return the state to begin with, None for no motion, and why.

        Args:
            first, second: images, (3, height, width).
            follows: whether `first` is the second image of the pair before.
        """
        state, size = self._state, tuple(first.shape)
        if not follows or state is None or size != self._size:
            self._across = False
            self._usual.clear()
            self._size = size
            return None, "zero"
        # Where the flow before was wrong, no motion may explain the images better.
        still = torch.zeros_like(state[1][0])
        found = min(mismatch(first, second, flow) for flow in (state[1][0], still))
        usual = median(self._usual) if self._usual else 0.0
        self._usual.append(found)
        after, self._across = self._across, found > max(CUT, min(JUMP * usual, (1 + usual) / 2))
        if self._across:
            return None, "cut"
        return (None, "zero") if after else (state, "last")

    def keep(self, state: tuple[Tensor, Tensor] | None) -> None:
        """Remember the equilibrium of a pair; None where there is none that could help."""
        self._state = state


def mismatch(first: Tensor, second: Tensor, flow: Tensor) -> float:
    """Return how badly a flow explains the second image, relative to unrelated images.

        mean |second(p + flow(p)) - first(p)| / mean |second(p') - first(p)|

    over pixels p that stay in the image, of images averaged over squares of 8 pixels; p' is half
    the height and the width away.

    Args:
        first, second: images, (3, height, width).
        flow: (2, h, w) at an eighth of their height and width, in pixels of that size.
    """
    height, width = flow.shape[1:]
    size = height, width
    ours, theirs = (
        functional.adaptive_avg_pool2d(each[None].to(flow), size) for each in (first, second)
    )
    rows = torch.arange(height, device=flow.device, dtype=flow.dtype)[:, None]
    columns = torch.arange(width, device=flow.device, dtype=flow.dtype)
    x, y = columns + flow[0], rows + flow[1]
    inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    if not inside.any():
        inside = torch.ones_like(inside)
    places = torch.stack([2 * x / max(1, width - 1) - 1, 2 * y / max(1, height - 1) - 1], -1)
    moved = functional.grid_sample(theirs, places[None], padding_mode="border", align_corners=True)
    unrelated = (theirs.roll((height // 2, width // 2), (2, 3)) - ours).abs().mean()
    found = (moved - ours).abs().mean(1)[0][inside].mean()
    # Images of one colour have no unrelated pixels: they fit as they are, or not at all.
    return float(found / unrelated) if unrelated > 0 else float(found > 0)
