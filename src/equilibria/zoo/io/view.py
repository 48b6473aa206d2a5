"""How images are shown: which part of each, at which size, in which colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from equilibria.zoo.io import crops, decode
from equilibria.zoo.io.decode import Box


@dataclass(frozen=True, kw_only=True)
class View:
    """How images are shown.

    Attributes:
        shape: Channels, height and width of an image as it is given out.
        fits: Whether files have that height and width already, and are shown as a whole.
        share: The part of an image's shorter side that is shown otherwise, its middle.
        area: Images are brought to `shape` as `resized` does, by means over areas.
    """

    shape: tuple[int, int, int]
    fits: bool
    share: float = 1.0
    area: bool = False

    def pixels(
        self, content: bytes, name: str | Path, drawn: Tensor | None = None, smallest: float = 1.0
    ) -> np.ndarray:
        """Decode an image.

        Args:
            content: Of its file.
            name: Of its file, for messages.
            drawn: Numbers that decide which part is shown, a row of `crops.draw`; None for the
                middle.
            smallest: Least share of the image's area that such a part has.

        Returns:
            uint8, ``shape``.

        Raises:
            DataError: If it is damaged, or should fit and does not; the message has the name.
        """
        channels, height, width = self.shape
        part = None if self.fits else self._middle
        if drawn is not None:
            part = partial(_drawn, drawn, smallest)
        mode = "RGB" if channels == 3 else "L"
        return decode.pixels(content, name, mode, (height, width), part, self.area)

    def _middle(self, height: int, width: int) -> Box:
        """The largest part in the middle that has the ratio of `shape`, times `share`."""
        scale = self.share * min(height / self.shape[1], width / self.shape[2])
        high, wide = scale * self.shape[1], scale * self.shape[2]
        return (height - high) / 2, (width - wide) / 2, high, wide


def _drawn(numbers: Tensor, smallest: float, height: int, width: int) -> Box:
    """The part of an image that some numbers decide."""
    top, left, high, wide = crops.boxes(numbers[None], smallest, height, width)[0].tolist()
    return top, left, high, wide
