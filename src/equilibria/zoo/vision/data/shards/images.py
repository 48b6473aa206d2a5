"""Images in shards, with a class each: decoded as they are streamed."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from equilibria.run.data.dataset import Split
from equilibria.run.data.storage import DataError
from equilibria.zoo.io import decode
from equilibria.zoo.io.image_files import ImageView
from equilibria.zoo.vision.data.shards.index import Raw, Shard, samples

# --- sample ---------------------------------------------------------------------------------------

# What a sample of a shard is: an image, and its class.


IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "tif", "tiff")
"""Extensions of images."""

EXPECTED = (
    "expected one image (jpg, png, webp, ...) and its class: in cls or txt a number from 0 or a "
    'name, or in json as {"label": ...}'
)


def name_of(sample: Raw, url: str) -> str:
    """What a message calls a sample: its name, and its shard."""
    return f"{sample['__key__'].decode('utf-8', 'replace')} in {url}"


def image_of(sample: Raw, url: str) -> bytes:
    """The file of a sample that is an image.

    Raises:
        DataError: If there is none, or more than one.
    """
    found = [extension for extension in IMAGES if extension in sample]
    if len(found) != 1:
        raise _other_files(sample, url)
    return sample[found[0]]


def class_of(sample: Raw, url: str) -> int | str:
    """The class of a sample: its number, or its name.

    Raises:
        DataError: If no file says it, or one says something else.
    """
    for extension in ("cls", "json", "txt"):
        if extension not in sample:
            continue
        try:
            text = sample[extension].decode("utf-8").strip()
            found = json.loads(text)["label"] if extension == "json" else text
        except KeyError:
            continue  # the class may stand in txt
        except (ValueError, TypeError, RecursionError):
            found = None
        if isinstance(found, bool) or not isinstance(found, int | str) or found == "":
            raise DataError(
                f"{name_of(sample, url)}: its file {extension} does not say which class it has; "
                f"{EXPECTED}"
            )
        text = str(found)
        return int(text) if text.removeprefix("-").isdecimal() else text
    raise _other_files(sample, url)


def check_class(
    given: int | str, name: str, labels: Sequence[str], places: Mapping[str, int]
) -> int:
    """The number of a class that a sample gives.

    Args:
        given: Its number or its name.
        name: Of the sample, for messages.
        labels: Names of the classes.
        places: The place of each name there.

    Raises:
        DataError: If it is none of them.
    """
    number = places.get(given, -1) if isinstance(given, str) else given
    if not 0 <= number < len(labels):
        expected = "a number from 0 or a name"
        if labels:
            expected = (
                f"0 to {len(labels) - 1}, or one of {len(labels)} names, {labels[0]!r} to "
                f"{labels[-1]!r}"
            )
        raise DataError(f"{name} has the class {given!r}: expected {expected}")
    return number


def _other_files(sample: Raw, url: str) -> DataError:
    there = ", ".join(extension for extension in sample if extension != "__key__")
    return DataError(f"{name_of(sample, url)} has the files {there}: {EXPECTED}")


# --- shelf ----------------------------------------------------------------------------------------

# Shards in memory: those in use, and those that are read before they are needed.


THREADS = 4
"""Shards that are read at once."""


class Shelf:
    """Holds the shards that were asked for lately, and reads others in the background.

    Only one thread may use it.

    Args:
        shards: What there is.
        read: Gives the samples of a shard by its address.
    """

    def __init__(
        self, shards: Sequence[Shard], read: Callable[[str], Sequence[Raw]] = samples
    ) -> None:
        self.shards, self.read = shards, read
        self._held: dict[int, Future[Sequence[Raw]]] = {}
        self._asked: dict[int, int] = {}
        self._pool: ThreadPoolExecutor | None = None

    def take(
        self, wanted: Iterable[int], soon: Iterable[int], time: int
    ) -> dict[int, Sequence[Raw]]:
        """Return shards by their numbers, and begin to read those that are wanted soon.

        Args:
            wanted: Numbers of shards.
            soon: Of those to read in the background.
            time: A number that grows; shards not asked for at this time or the one before it are
                let go.

        Raises:
            DataError: If a wanted shard cannot be read, or has not as many samples as its index
                says.
        """
        wanted, soon = list(wanted), list(soon)
        self._asked |= dict.fromkeys((*wanted, *soon), time)
        for number in [each for each in self._held if self._asked[each] < time - 1]:
            self._held.pop(number).cancel()
            del self._asked[number]
        for number in (*wanted, *soon):
            if number not in self._held:
                self._pool = self._pool or ThreadPoolExecutor(THREADS)
                self._held[number] = self._pool.submit(self._read, self.shards[number])
        return {number: self._held[number].result() for number in wanted}

    def _read(self, shard: Shard) -> Sequence[Raw]:
        found = self.read(shard.url)
        if len(found) != shard.samples:
            raise DataError(
                f"{shard.url} has {len(found)} samples and its index says {shard.samples}: "
                "rebuild the index"
            )
        return found


# --- images ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardImages:
    """Images of some shards, in their order: those that lie together are best asked for together.

    The shard of the latest ones and the next one are held in memory. Only one thread may ask.

    Attributes:
        shards: Where they are.
        labels: Names of their classes.
        view: How images are shown.
        numbers: What the targets call the classes, in the order of `labels`; None for 0, 1, ...
    """

    shards: tuple[Shard, ...]
    labels: tuple[str, ...]
    view: ImageView
    numbers: tuple[int, ...] | None = None
    _shelf: Shelf = field(init=False, repr=False)
    _ends: list[int] = field(init=False, repr=False)
    _times: Iterator[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shelf", Shelf(self.shards))
        ends = list(itertools.accumulate(shard.samples for shard in self.shards))
        object.__setattr__(self, "_ends", ends)
        object.__setattr__(self, "_times", itertools.count())

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Images, float32 in [0, 1], and targets of the samples at some positions.

        Raises:
            DataError: If a shard cannot be read, or a sample is no image with its class.
        """
        images, targets = self._uint8(index)
        return images / 255, targets

    def first(self, count: int) -> Split:
        """The first samples, fewer if there are not so many, in memory."""
        return Split(*self._uint8(slice(0, min(count, len(self)))))

    def renumber(self, numbers: Sequence[int]) -> ShardImages:
        """The same images with other numbers of their classes."""
        return replace(self, numbers=tuple(numbers))

    def decode(
        self, samples: Sequence[tuple[str, Raw]], drawn: Tensor | None = None, smallest: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Decode samples, several at once.

        Args:
            samples: The address of the shard of each, and its files.
            drawn: Numbers that decide which part of each image is shown, of `crops.draw`; None for
                its middle.
            smallest: Least share of an image's area that such a part has.

        Returns:
            Images, uint8 ``(count, *shape)``, and targets, int64 ``(count,)``.

        Raises:
            DataError: If one is no image with its class; the message names it and its shard.
        """
        rows = [None] * len(samples) if drawn is None else drawn.unbind()
        places = {label: place for place, label in enumerate(self.labels)}
        images = torch.empty(len(samples), *self.view.shape, dtype=torch.uint8)
        targets = torch.empty(len(samples), dtype=torch.int64)

        def one(k: int) -> None:
            url, sample = samples[k]
            name = name_of(sample, url)
            number = check_class(class_of(sample, url), name, self.labels, places)
            targets[k] = number if self.numbers is None else self.numbers[number]
            content = image_of(sample, url)
            images[k] = torch.from_numpy(self.view.pixels(content, name, rows[k], smallest))

        for _ in decode.in_threads(one, range(len(samples))):
            pass
        return images, targets

    def _uint8(self, index: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Images and targets of the samples at some positions, shard by shard."""
        places = torch.arange(len(self))[index] if isinstance(index, slice) else index
        images = torch.empty(len(places), *self.view.shape, dtype=torch.uint8)
        targets = torch.empty(len(places), dtype=torch.int64)
        rows: dict[int, list[int]] = {}
        for row, place in enumerate(places.tolist()):
            rows.setdefault(bisect.bisect_right(self._ends, place), []).append(row)
        numbers = sorted(rows)
        # What is asked for now is likely to go on in the next shard.
        following = [*numbers[1:], *(n + 1 for n in numbers[-1:] if n + 1 < len(self.shards))]
        for number, soon in itertools.zip_longest(numbers, following):
            mine = rows[number]
            ahead = () if soon is None else (soon,)
            held = self._shelf.take((number,), ahead, next(self._times))[number]
            url, start = self.shards[number].url, self._ends[number] - len(held)
            images[mine], targets[mine] = self.decode(
                [(url, held[int(places[row]) - start]) for row in mine]
            )
        return images, targets
