"""What an index tells of its images besides where they are: classes, sizes, colours, statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["KEY", "About", "Moments"]

KEY = "images"
"""Where it stands in the index."""


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of each channel, of pixels in [0, 1]; an image counts as one."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class About:
    """What is known of the images of some shards without reading them.

    Attributes:
        labels: Names of the classes, in the order of their numbers.
        size: Height and width that all images have; None where they differ.
        shorter: Median of the shorter sides, in pixels.
        smallest: Name of the smallest image, with its height and width.
        modes: How many images have which of Pillow's modes.
        moments: Over some of the images at their own sizes: as RGB under 3, as grey under 1.
    """

    labels: tuple[str, ...]
    size: tuple[int, int] | None
    shorter: float
    smallest: str
    modes: dict[str, int]
    moments: dict[int, Moments]

    def json(self) -> dict[str, Any]:
        """What the index holds."""
        return asdict(self)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> About:
        """Read what `json` gives.

        Raises:
            ValueError, TypeError, LookupError, AttributeError: If it is something else.
        """
        labels = tuple(content["labels"])
        if not labels or not all(isinstance(label, str) for label in labels):
            raise ValueError("labels are not names of classes")
        size = content["size"]
        moments = {
            int(channels): Moments(
                tuple(map(float, each["mean"])), tuple(map(float, each["deviation"]))
            )
            for channels, each in content["moments"].items()
        }
        if any(len(each.mean) != n or len(each.deviation) != n for n, each in moments.items()):
            raise ValueError("a channel lacks its mean or its deviation")
        return cls(
            labels=labels,
            size=None if size is None else (int(size[0]), int(size[1])),
            shorter=float(content["shorter"]),
            smallest=str(content["smallest"]),
            modes={str(mode): int(count) for mode, count in content["modes"].items()},
            moments={channels: moments[channels] for channels in (3, 1)},
        )
