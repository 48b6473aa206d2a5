"""Images that stay on disk until they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.dataset import Split
from equilibria.run.data.errors import reading
from equilibria.run.data.progress import tracked
from equilibria.zoo.io import decode
from equilibria.zoo.io.view import View

MEMORY = 1 << 30
"""Bytes of pixels up to which a split is better kept in memory."""


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """Images with their classes, decoded on demand.

    Without a `crop`, a file always gives the same pixels: the middle of the image.

    Attributes:
        root: Folder of the files.
        names: Names of the files below it.
        targets: Classes, int64, ``(count,)``.
        shape: Channels, height and width of an image as it is given out.
        fits: Whether the files have that height and width already, and are shown as a whole.
        share: The part of an image's shorter side that is shown otherwise, its middle.
        area: Images are brought to `shape` as `resized` does, by means over areas.
    """

    root: Path
    names: Sequence[str] = field(repr=False)
    targets: Tensor = field(repr=False)
    shape: tuple[int, int, int]
    fits: bool
    share: float = 1.0
    area: bool = False

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Images, float32 in [0, 1], and targets of the samples at some positions.

        Raises:
            DataError: If a file cannot be read or is damaged; the message names it.
        """
        places = torch.arange(len(self))[index]
        return self.images(places) / 255, self.targets[index]

    def select(self, index: Tensor) -> ImageFiles:
        """The samples at some positions, in that order."""
        names = [self.names[place] for place in index.tolist()]
        return replace(self, names=names, targets=self.targets[index])

    def images(self, places: Tensor, drawn: Tensor | None = None, smallest: float = 1.0) -> Tensor:
        """Decode images, several at once.

        Args:
            places: Of the images, ``(count,)``.
            drawn: Numbers that decide which part of each is shown, of `crops.draw`; None for what
                the split shows.
            smallest: Least share of an image's area that such a part has.

        Returns:
            uint8, ``(count, *shape)``.

        Raises:
            DataError: If a file cannot be read or is damaged; the message names it.
        """
        count = len(places)
        rows = [None] * count if drawn is None else drawn.unbind()
        names = [self.names[int(place)] for place in places.tolist()]
        found = torch.empty(count, *self.shape, dtype=torch.uint8)
        decoded = decode.in_threads(
            lambda k: self._decoded(names[k], rows[k], smallest), range(count)
        )
        for place, image in enumerate(decoded):
            found[place] = torch.from_numpy(image)
        return found

    def decoded(self) -> Split:
        """All images in memory, as uint8.

        Raises:
            DataError: If a file cannot be read or is damaged; the message names it.
        """
        images = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        for place, image in enumerate(self._all()):
            images[place] = torch.from_numpy(image)
        return Split(images, self.targets)

    def check(self) -> None:
        """Decode every image and forget it, to find those that are damaged.

        Raises:
            DataError: If one is; the message names it.
        """
        for _ in self._all():
            pass

    @property
    def bytes(self) -> int:
        """Bytes of memory that the pixels of all images would take."""
        channels, height, width = self.shape
        return len(self) * channels * height * width

    def _all(self) -> Iterator[np.ndarray]:
        decoded = decode.in_threads(self._decoded, self.names)
        return tracked(decoded, len(self), "Reading images")

    def _decoded(self, name: str, drawn: Tensor | None = None, smallest: float = 1.0) -> np.ndarray:
        path = self.root / name
        with decode.open_image(path) as file, reading(path):
            content = file.read()
        return self._view.pixels(content, path, drawn, smallest)

    @property
    def _view(self) -> View:
        return View(shape=self.shape, fits=self.fits, share=self.share, area=self.area)
