"""Frames: sequences of images, from files, folders and videos, and their consecutive pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from equilibria import files
from equilibria.zoo.flow.data import read_flow
from equilibria.zoo.io import image_files, video
from equilibria.zoo.io.colors import Lengths, color_png, flow_colors, legend
from equilibria.zoo.io.naming import natural_key
from equilibria.zoo.io.rows import Journal

LEGEND = "legend"
"""What the picture of the colours' scale is called, beside those of frames."""

_GRAY = "grey, and the network was trained on colour"


class FramesError(ValueError):
    """There are fewer than two frames; the message says where."""


@dataclass(frozen=True)
class Frame:
    """One image of a sequence.

    Attributes:
        key: what it is called in rows, once in all: the path of its file, with a number if that was
            named before, or of its video with a number.
        name: of the files that are written of it, without an ending.
        load: gives uint8, RGB, (3, height, width), or raises a DataError that names the file.
    """

    key: str
    name: str
    load: Callable[[], Tensor]


@dataclass(frozen=True)
class FramePair:
    """Two images between which a flow is looked for.

    Attributes:
        first, second: the images.
        name: of what is written of the pair.
        follows: whether its first image is the second one of the pair before.
    """

    first: Frame
    second: Frame
    name: str
    follows: bool


def pair_frames(frames: Iterable[Frame]) -> Iterator[FramePair]:
    """Go through the pairs of consecutive frames."""
    before: Frame | None = None
    follows = False
    for frame in frames:
        if before is not None:
            yield FramePair(before, frame, before.name, follows)
            follows = True
        before = frame


def find_frames(words: Sequence[Path], *, without: Path | None = None) -> Iterator[Frame]:
    """Return the frames that paths name, in their order.

    One path is a folder, whose images are taken in natural order (9 before 10; those in its own
    folders are left out), or a video. Several are images, which keep their order.

    Args:
        words: paths.
        without: a folder whose images are left out, where results go.

    Raises:
        FramesError: a path names nothing, or there are fewer than two images.
        DataError: a video cannot be read.
    """
    for path in words:
        if not path.exists():
            raise FramesError(f"there is no file or folder {path}")
    if len(words) > 1:
        if folders := [path for path in words if path.is_dir()]:
            raise FramesError(
                f"{folders[0]} is a folder: name one folder alone, or images, at least two"
            )
        return iter(_name_frames(list(words)))
    (path,) = words
    if not path.is_dir():
        if _still(path):
            raise FramesError(
                f"{path} is a single image: optical flow is between two. Name two images, a folder "
                "of frames or a video"
            )
        return film(path)
    endings = _endings()
    images = [
        each
        for each in path.iterdir()
        if each.suffix.lower() in endings and not each.name.startswith(".") and each.is_file()
    ]
    if without is not None and without.resolve() == path.resolve():
        raise FramesError(
            f"{path} holds the frames: name another folder for the results with --out"
        )
    if len(images) < 2:
        count = "a single image" if images else "no images"
        raise FramesError(
            f"the folder {path} has {count}, and optical flow is between two: name the folder that "
            "holds the frames themselves"
        )
    return iter(_name_frames(sorted(images, key=natural_key)))


def film(path: Path) -> Iterator[Frame]:
    """Go through the frames of a video; see `zoo.io.film.read`."""
    place = path.parent.resolve() / path.name
    for number, pixels in enumerate(video.read(path), 1):
        yield Frame(f"{place}:{number}", f"{path.stem}-{number:06}", lambda pixels=pixels: pixels)


def _name_frames(paths: list[Path]) -> list[Frame]:
    """Frames of files, with names that differ in more than small and capital letters.

    The key of a file that is named again has a number: each place in the sequence is a frame.
    """
    taken = {LEGEND}
    times: Counter[str] = Counter()
    frames: list[Frame] = []
    for path in paths:
        name, number = path.stem, 1
        while name.casefold() in taken:
            number += 1
            name = f"{path.stem}-{number}"
        taken.add(name.casefold())
        key = str(path.parent.resolve() / path.name)
        times[key] += 1
        if times[key] > 1:
            key += f":{times[key]}"
        frames.append(Frame(key, name, lambda path=path: read_frame(path)))
    return frames


def _endings() -> set[str]:
    from PIL import Image

    return set(Image.registered_extensions()) - video.ENDINGS


def _still(path: Path) -> bool:
    """Whether a file is one image, not a video; what Pillow does not know is one."""
    if path.suffix.lower() not in _endings():
        return False
    frames = video.frames_in(path)
    if frames > 1 and path.suffix.lower() not in video.ANIMATED:
        raise FramesError(
            f"{path} has {frames} pages: extract them into a folder, for example with "
            "ImageMagick: magick FILE FOLDER/%06d.png, and name that"
        )
    return frames == 1


def read_frame(path: Path) -> Tensor:
    """Read an image as a network for optical flow takes it; see `picture.read`.

    Returns:
        uint8, (3, height, width).

    Raises:
        DataError: the file cannot be read, is no image or damaged; it is grey, has more than 8 bits
            a channel, or is transparent somewhere. The message names it and says what to do.
    """
    return image_files.read(path, gray=_GRAY)


# --- pictures -------------------------------------------------------------------------------------

# Flow in colours: one scale for all pictures of a folder, and a video of them.


PERCENT = 99.0
"""Of the lengths of all flow, the percentile that is the scale where none is given."""


def draw_one(path: Path, flow: np.ndarray, scale: float | None = None) -> float:
    """Write a flow in colours as PNG, and return its scale in pixels.

    Args:
        path: of the picture.
        flow: (2, height, width) in pixels.
        scale: in pixels; None for the 99th percentile of its lengths.
    """
    scale = _find_scale([flow]) if scale is None else scale
    files.write_bytes(path, color_png(flow_colors(flow, scale)))
    return scale


def draw_all(
    journal: Journal, scale: float | None = None, film: Path | None = None, rate: float = 15.0
) -> tuple[float, int, int]:
    """Write all flow of a folder in colours of one scale, and the legend.

    Args:
        journal: whose rows name the files.
        scale: in pixels; None for the 99th percentile of the lengths of all pixels of all files.
        film: video of the pictures; None for none.
        rate: its frames per second.

    Returns:
        The scale, how many pictures there are, and how many of them the film has: those of the
        size of the first.

    Raises:
        DataError: a file of flow is damaged, or PyAV is missing.
    """
    found = [Path(row["flow"]) for row in journal.read() if "flow" in row]
    if scale is None:
        scale = _find_scale(read_flow(journal.folder / path).flow.numpy() for path in found)
    folder = journal.folder / "colours"
    folder.mkdir(exist_ok=True)

    def pictures() -> Iterator[np.ndarray]:
        for path in found:
            field = read_flow(journal.folder / path)
            colors = flow_colors(field.flow.numpy(), scale, field.valid.numpy())
            content = color_png(colors)
            target = folder / f"{path.stem}.png"
            files.write(target, lambda file, content=content: file.write(content), flush=False)
            yield colors

    shown = 0
    if film is not None and found:
        shown = video.write(film, pictures(), rate)
    else:
        for _ in pictures():
            pass
    files.write_bytes(folder / f"{LEGEND}.png", color_png(legend(scale)))
    return scale, len(found), shown


def _find_scale(flows: Iterable[np.ndarray]) -> float:
    lengths = Lengths()
    for flow in flows:
        lengths.add(flow)
    return lengths.percentile(PERCENT)
