"""Generated pairs: photographs cut into layers that move, with the exact flow between them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from equilibria.zoo.flow.data import drawn, rendered
from equilibria.zoo.flow.data.drawn import Motion, PhotographDetail, Scenes
from equilibria.zoo.flow.data.pairs import FlowPair, FlowSet, Size
from equilibria.zoo.flow.data.photographs import find as _photographs
from equilibria.zoo.flow.data.rendered import Rendered
from equilibria.zoo.io.remote import Entry, Files, Remote

SIZE = (96, 128)
SMALLEST = 16
COUNT, TEST = 8_000, 200
"""Pairs to learn from and to test on, where nobody says how many."""

# A part of the checksum: pairs change with the way they are drawn.
_FORMAT = 2

_BLOCK = 1 << 17
"""Pixels of the images that are made at once, but of one pair at least: it bounds the memory, a few
hundred bytes for each."""


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Pairs of images of flat layers, made when they are asked for.

    A background and a few smooth random shapes in front of it each show a part of a photograph,
    and each moves by an affine map of its own. Edges are antialiased. The flow of the first image
    is exact, of pixels that are hidden in the second too, so all pixels are valid.

    A pair is a function of the seed, the part and its number, up to rounding, whatever batch it is
    in. The idea is that of FlyingChairs (Dosovitskiy et al. 2015, sec. 4).

    Attributes:
        photographs: What layers show, uint8, ``(3, height, width)``, of any sizes.
        shape: Height and width of the images.
        motion: How layers move.
        seed: Of all pairs.
        part: A number that tells pairs to test on from those to learn from.
        numbers: The number of each pair.

    Raises:
        ValueError: If there are no photographs, or the images are below 16 x 16 pixels.
    """

    photographs: Sequence[Tensor] = field(repr=False)
    shape: Size = SIZE
    motion: Motion = field(default_factory=Motion)
    seed: int = 0
    part: int = 0
    numbers: Sequence[int] = field(default=range(COUNT), repr=False)

    def __post_init__(self) -> None:
        if not self.photographs:
            raise ValueError("layers need at least one photograph")
        if len(self.shape) != 2 or min(self.shape) < SMALLEST:
            raise ValueError(
                f"size is {list(self.shape)}: expected a height and a width of {SMALLEST} pixels "
                "or more"
            )
        if self.seed < 0:
            raise ValueError(f"seed must not be negative; got {self.seed}")

    def __len__(self) -> int:
        return len(self.numbers)

    def size(self, place: int) -> Size:
        """Height and width of a pair."""
        del place  # all have one size
        return self.shape[0], self.shape[1]

    def pair(self, place: int) -> FlowPair:
        """Make one pair."""
        return FlowPair(*(part[0] for part in self.batch(torch.tensor([place]))))

    def batch(self, places: Tensor) -> FlowPair:
        """Make the pairs at some places, ``(count,)``."""
        made = list(self._render(places))
        first = torch.cat([_pixels(each.first) for each in made])
        second = torch.cat([_pixels(each.second) for each in made])
        flow = torch.cat([each.flow for each in made])
        return FlowPair(first, second, flow, torch.ones_like(flow[:, 0], dtype=torch.bool))

    def find_occluded(self, places: Tensor) -> Tensor:
        """Tell which pixels of the first images are hidden in the second, or leave it.

        Returns:
            bool, ``(count, height, width)``.
        """
        blocks = self._scenes(places)
        return torch.cat([rendered.find_occluded(scenes, self.size(0)) for scenes in blocks])

    def select(self, index: Tensor) -> Layers:
        """The pairs at some places, in that order."""
        return replace(self, numbers=[self.numbers[k] for k in index.tolist()])

    def _render(self, places: Tensor) -> Iterator[Rendered]:
        for scenes in self._scenes(places):
            yield rendered.render(scenes, self.size(0), self.photographs)

    def _scenes(self, places: Tensor) -> Iterator[Scenes]:
        """The scenes of some places, as many at once as `_BLOCK` allows."""
        height, width = self.size(0)
        for block in places.split(max(1, _BLOCK // (height * width))):
            seeds = [(self.seed, self.part, self.numbers[k]) for k in block.tolist()]
            yield drawn.draw(seeds, (height, width), self.motion, self._surfaces)

    @cached_property
    def _surfaces(self) -> list[PhotographDetail]:
        return [PhotographDetail.of(photograph.numpy()) for photograph in self.photographs]


def _pixels(image: Tensor) -> Tensor:
    return image.round().to(torch.uint8)


def read(
    files: Files,
    *,
    size: Size = SIZE,
    count: int = COUNT,
    test: int = TEST,
    seed: int = 0,
    photographs: str | None = None,
    shift: float = Motion.shift,
    turn: float = Motion.turn,
    zoom: float = Motion.zoom,
    shapes: tuple[int, int] = Motion.shapes,
) -> FlowSet:
    """Pairs of flat layers under affine motion: see `Layers` and `Motion`.

    Test pairs show other parts of the photographs than training pairs, or other photographs.

    Args:
        files: Where photographs of another data set are looked for.
        size: Height and width of the images.
        count: Training pairs.
        test: Test pairs.
        seed: Of all pairs.
        photographs: A folder of images, or a data set such as ``"camvid"``; None for the two
            photographs that come with scikit-learn.
        shift: Mean length of a layer's translation, in pixels.
        turn: Largest angle of its rotation, in degrees.
        zoom: Largest change of its scale, such as 0.08.
        shapes: Fewest and most shapes of an image.

    Raises:
        ValueError: If a number is impossible.
        DataError: If photographs are missing or damaged.
    """
    if count < 1 or test < 1:
        raise ValueError(f"count is {count} and test is {test}: expected 1 or more of both")
    motion = Motion(shift=shift, turn=turn, zoom=zoom, shapes=shapes)
    found = _photographs(photographs, files.data_dir, files.may_download)
    train = Layers(
        photographs=found.train, shape=size, motion=motion, seed=seed, numbers=range(count)
    )
    held = replace(train, photographs=found.test, part=1, numbers=range(test))
    numbers = [*size, count, test, seed, float(shift), float(turn), float(zoom), *shapes]
    key = f"{_FORMAT} {numbers} {found.checksum}"
    return FlowSet(
        title=f"layers ({found.title})",
        train=train,
        test=held,
        checksum=f"sha256:{hashlib.sha256(key.encode()).hexdigest()}",
    )


LAYERS = Entry(
    name="layers",
    title="layers (generated)",
    read=read,
    remotes=(
        Remote(
            files=(),
            addresses=("scikit-learn, sklearn.datasets.load_sample_images",),
            license="CC BY 2.0",
        ),
    ),
)
