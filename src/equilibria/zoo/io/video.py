"""Videos of results: animated images by Pillow, other files by PyAV, the extra `video`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equilibria import files
from equilibria.run.data.storage import DataError
from equilibria.zoo.io import decode

# --- film -----------------------------------------------------------------------------------------

# Videos: animated images by Pillow, other files by PyAV, the extra `video`.


ENDINGS = {".mpg", ".mpeg"}
"""Of videos that Pillow has a name for, of which it reads nothing."""

ANIMATED = (".gif", ".png", ".apng", ".webp")
"""Endings of images of which some move."""


def import_av(path: Path, what: str) -> Any:
    """PyAV.

    Raises:
        DataError: it is not installed.
    """
    try:
        return importlib.import_module("av")
    except ImportError:
        raise DataError(
            f"{what} {path} needs the extra 'video': pip install 'equilibria[video]'. Without it, "
            + (
                "extract its frames into a folder, for example with: ffmpeg -i FILE FOLDER/%06d.png"
                if what == "reading"
                else "name a file that ends with .gif"
            )
        ) from None


def frames_in(path: Path) -> int:
    """Return how many frames an image has.

    Raises:
        DataError: it cannot be read or is no image.
    """
    with decode.open_image(path) as file:
        return getattr(decode.identify_image(file, path), "n_frames", 1)


def read(path: Path) -> Iterator[Tensor]:
    """Go through the frames of a video, uint8 RGB, (3, height, width).

    Raises:
        DataError: it cannot be read, is no video or damaged; or it is no animated image, and the
            extra `video` is not installed.
    """
    if path.suffix.lower() in ANIMATED:
        yield from _animation(path)
        return
    with _open(path) as container:
        if not container.streams.video:
            raise DataError(f"{path} holds no video")
        for frame in container.decode(video=0):
            yield _channels_first(frame.to_ndarray(format="rgb24"))


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    module = import_av(path, "reading")
    try:
        with module.open(str(path)) as container:
            yield container
    except (OSError, ValueError, module.error.FFmpegError) as error:
        raise DataError(f"{path} cannot be read as a video: {error}") from None


def _animation(path: Path) -> Iterator[Tensor]:
    from PIL import ImageSequence

    with decode.open_image(path) as file:
        image = decode.identify_image(file, path)
        with decode.refuse_damage(path):
            for frame in ImageSequence.Iterator(image):
                yield _channels_first(np.array(frame.convert("RGB")))


def _channels_first(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def rate_of(path: Path) -> float | None:
    """Return the frames per second of a video; None where its file does not say.

    Raises:
        DataError: as `read`.
    """
    if path.suffix.lower() in ANIMATED:
        with decode.open_image(path) as file:
            duration = decode.identify_image(file, path).info.get("duration")
        return 1000 / duration if duration else None
    with _open(path) as container:
        rate = container.streams.video[0].average_rate if container.streams.video else None
        return float(rate) if rate else None


def gif(file: Any, frames: Iterator[np.ndarray], rate: float) -> None:
    """Write an animation that repeats for ever.

    Args:
        file: open for writing bytes.
        frames: uint8 RGB, (3, height, width), of one size, at least one.
        rate: frames per second.
    """
    from PIL import Image

    def image(pixels: np.ndarray) -> Image.Image:
        return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).quantize(256)

    first = image(next(frames))
    rest = map(image, frames)
    # Time is counted in hundredths of a second, and viewers slow down what is under two.
    duration = max(20, round(100 / rate) * 10)
    first.save(file, "GIF", save_all=True, append_images=rest, duration=duration, loop=0)


# --- video ----------------------------------------------------------------------------------------


WRITTEN = (".gif", ".mp4")
"""Endings of videos that are written."""


def check_written(path: Path) -> None:
    """Refuse a video that could not be written, before there are any frames of it.

    Raises:
        ValueError: it ends with none of `WRITTEN`.
        DataError: the extra `video` is not installed, which all but .gif need.
    """
    if path.suffix.lower() not in WRITTEN:
        raise ValueError(f"a video is written to {' or '.join(WRITTEN)} files; got {path.name}")
    if path.suffix.lower() != ".gif":
        import_av(path, "writing")


def write(path: Path, frames: Iterable[np.ndarray], rate: float = 15.0) -> int:
    """Write a video, whole or not at all, and return how many frames it has.

    Args:
        path: ends with .gif, which repeats for ever, or with .mp4 (H.264).
        frames: uint8, (3, height, width), of one size: those of another size than the first are
            left out.
        rate: frames per second.

    Raises:
        ValueError, DataError: see `check_written`; or there is no frame.
    """
    check_written(path)
    given = iter(frames)
    if (first := next(given, None)) is None:
        raise ValueError(f"there is no frame to write to {path}")
    count = 0

    def alike() -> Iterator[np.ndarray]:
        nonlocal count
        count = 1
        yield first
        for each in given:
            if each.shape == first.shape:
                count += 1
                yield each

    if path.suffix.lower() == ".gif":
        files.write(path, lambda file: gif(file, alike(), rate))
    else:
        av = import_av(path, "writing")
        files.write(path, lambda file: _mp4(av, file, alike(), rate))
    return count


def _mp4(av: Any, file: Any, frames: Iterator[np.ndarray], rate: float) -> None:
    with av.open(file, "w", format="mp4") as container:
        stream: Any = None
        for pixels in frames:
            # H.264 in 4:2:0 has an even height and width.
            height, width = (side - side % 2 for side in pixels.shape[1:])
            if stream is None:
                stream = container.add_stream(
                    "libx264", rate=Fraction(rate).limit_denominator(1000)
                )
                stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            picture = np.ascontiguousarray(pixels[:, :height, :width].transpose(1, 2, 0))
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
