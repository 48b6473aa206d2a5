"""What a sample of a shard is: an image, and its class."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from equilibria.run.data.errors import DataError
from equilibria.zoo.vision.data.shards.archive import Raw

__all__ = ["checked", "class_of", "image_of", "name_of", "number_of"]

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


def number_of(sample: Raw, url: str, labels: Sequence[str], places: Mapping[str, int]) -> int:
    """The number of a sample's class; see `class_of` and `checked`."""
    return checked(class_of(sample, url), name_of(sample, url), labels, places)


def checked(given: int | str, name: str, labels: Sequence[str], places: Mapping[str, int]) -> int:
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
