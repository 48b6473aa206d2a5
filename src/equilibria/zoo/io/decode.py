"""Images from their files: pixels, or an error that names the file."""

from __future__ import annotations

import io
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from equilibria.run.data.storage import DataError, open_file, read_errors

if TYPE_CHECKING:
    from PIL.Image import Image


# --- resize ---------------------------------------------------------------------------------------

# Images in another size, without aliasing.


# Images that are resized at once: bounds the float32 copy of them.
_BLOCK = 2048


def resize(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Return images in another size.

    A side that shrinks is averaged over areas: each new pixel is the mean of what it covers of the
    old ones, by the share of each that it covers. A side that grows is interpolated linearly.

    Args:
        images: ``(count, channels, height, width)``, float or uint8; uint8 is rounded.
        size: Height and width, or pixels of both, 1 or more.

    Returns:
        ``(count, channels, *size)`` of the same dtype; `images` itself if it has that size.

    Raises:
        ValueError: If `size` is below one.
    """
    high, wide = (size, size) if isinstance(size, int) else size
    if min(high, wide) < 1:
        raise ValueError(f"size is {size}: expected at least 1 pixel per side")
    if tuple(images.shape[2:]) == (high, wide):
        return images
    down = weights(images.shape[2], high)
    across = weights(images.shape[3], wide)
    blocks = [down @ block.float() @ across.T for block in images.split(_BLOCK)]
    if images.dtype == torch.uint8:
        return torch.cat([block.round().clamp(0, 255).byte() for block in blocks])
    return torch.cat(blocks).to(images.dtype)


def weights(old: int, new: int) -> Tensor:
    """Return the matrix ``(new, old)`` that takes a line of pixels to one of another length."""
    if new > old:
        line = torch.eye(old).unsqueeze(0)
        return functional.interpolate(line, new, mode="linear", align_corners=False)[0].T
    edges = torch.arange(new + 1, dtype=torch.float64) * (old / new)
    pixels = torch.arange(old, dtype=torch.float64)
    begin = torch.maximum(edges[:-1, None], pixels)
    end = torch.minimum(edges[1:, None], pixels + 1)
    return ((end - begin).clamp(min=0) * (new / old)).float()


# --- decode ---------------------------------------------------------------------------------------


_From = TypeVar("_From")
_To = TypeVar("_To")

MEGAPIXELS = 64
"""Maximum size of an image, in millions of pixels: 192 MB as RGB, in each of the threads."""

BYTES = 4_000_000 * MEGAPIXELS
"""Maximum size of its file."""

Box = tuple[float, float, float, float]
"""Top, left, height and width of a part of an image, in its pixels."""

_ORIENTATION = 0x0112  # the tag of Exif

# What makes an image upright, by its orientation.
_UPRIGHT = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


def open_image(path: Path) -> io.BufferedReader:
    """Open the file of an image.

    Raises:
        DataError: If there is none, it cannot be read, is not a regular file, or is larger than
            `BYTES`.
    """
    with read_errors(path):
        file = open_file(path)
        if (size := path.stat().st_size) > BYTES:
            file.close()
            raise DataError(
                f"{path} has {size:,} bytes, and the file of an image at most {BYTES:,}: remove or "
                "replace it"
            )
    return file


def read_image(path: Path) -> bytes:
    """The content of the file of an image; see `open_image`."""
    with open_image(path) as file, read_errors(path):
        return file.read()


@contextmanager
def refuse_damage(name: str | Path) -> Iterator[None]:
    """Turn what a damaged image raises, which depends on its format, into a DataError."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name} is damaged ({reason}): remove or replace it") from None


def identify_image(file: BinaryIO, name: str | Path) -> Image:
    """Open an image without decoding it.

    Raises:
        DataError: If it is none, or has more than `MEGAPIXELS`; the message names the file.
    """
    from PIL import Image, UnidentifiedImageError

    with refuse_damage(name):
        try:
            image = Image.open(file)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise DataError(_too_large(name)) from None
        except UnidentifiedImageError:
            raise DataError(
                f"{name} is not an image that Pillow can read, or its header is damaged: remove or "
                "replace it"
            ) from None
    if image.width * image.height > 1_000_000 * MEGAPIXELS:
        raise DataError(_too_large(name, f"{image.height} x {image.width} pixels, "))
    return image


def refuse_pages(image: Image, name: str | Path) -> None:
    """Raise DataError if the file of an image has more than one page or frame.

    Those of a camera's .mpo are the same picture in other sizes: its first is taken.
    """
    with refuse_damage(name):
        more = getattr(image, "is_animated", False) and image.format != "MPO"
        pages = getattr(image, "n_frames", 2) if more else 1
    if pages > 1:
        raise DataError(
            f"{name} has {pages} pages or frames, and one image is expected: extract those that "
            "you want, for example with ImageMagick: magick FILE PAGE-%03d.png"
        )


def _too_large(name: str | Path, size: str = "") -> str:
    return (
        f"{name} has {size}more than the {MEGAPIXELS} megapixels that are decoded: make it "
        "smaller, for example with ImageMagick: magick FILE -resize 2000x2000 FILE"
    )


def orientation(image: Image) -> int:
    """How the image is stored, by Exif before its pixels: 1 is upright, 5 to 8 on its side."""
    from PIL import Image

    try:
        # The method of PNG images would decode them, in case Exif stands after the pixels.
        found = Image.Image.getexif(image).get(_ORIENTATION, 1)
    except Exception:  # Exif that is damaged says nothing
        return 1
    return found if found in _UPRIGHT else 1


def is_on_side(image: Image) -> bool:
    """Whether the image is stored on its side."""
    return orientation(image) in (5, 6, 7, 8)


def load_upright(image: Image) -> Image:
    """Decode an image, and turn it as a viewer shows it."""
    from PIL import Image

    stored = orientation(image)
    image.load()
    return image.transpose(Image.Transpose[_UPRIGHT[stored]]) if stored in _UPRIGHT else image


def pixels(
    content: bytes,
    name: str | Path,
    mode: str,
    size: tuple[int, int] | None,
    part: Callable[[int, int], Box] | None = None,
    area: bool = False,
) -> np.ndarray:
    """Decode an image, upright, and bring a part of it to a size.

    Args:
        content: Of its file.
        name: Of its file, for messages.
        mode: ``"RGB"`` or ``"L"``; another is converted, an alpha channel left out, and 16-bit grey
            scaled so that 65535 becomes 255.
        size: Height and width of the result; None for the image's own, without a `part`.
        part: Given height and width of the image, the part that is shown. It is interpolated
            linearly, over as many pixels as one of the result covers. None: the image has the size
            already.
        area: the part is brought to the size as `resize` does, by means over areas.

    Returns:
        uint8, ``(channels, height, width)``.

    Raises:
        DataError: If it is damaged, or `part` is None and it has another size.
    """
    from PIL import Image

    image = identify_image(io.BytesIO(content), name)
    refuse_pages(image, name)
    with refuse_damage(name):
        width, height = image.size[::-1] if is_on_side(image) else image.size
        box = None if part is None else part(height, width)
        if box is not None and size is not None:
            # A JPEG can be decoded at a half, a quarter or an eighth of its size; twice the
            # size that is needed leaves the smoothing to the interpolation below.
            shrink = max(size[0] / box[2], size[1] / box[3])
            draft = (math.ceil(2 * shrink * image.width), math.ceil(2 * shrink * image.height))
            image.draft(None, draft)
        image = load_upright(image)
        image = image if image.mode == mode else _in_eight_bits(image).convert(mode)
        if box is not None and size is not None:
            top, left, high, wide = box
            x, y = image.width / width, image.height / height
            right, bottom = (left + wide) * x, (top + high) * y
            # Rounding must not lead out of the image.
            corners = (left * x, top * y, min(right, image.width), min(bottom, image.height))
            if area:
                return _average(np.array(image.crop(_whole(corners))), size)
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=corners)
        found = np.array(image)
    size = found.shape[:2] if size is None else size
    if found.shape[:2] != size:
        raise DataError(
            f"{name} has {found.shape[0]} x {found.shape[1]} pixels: expected {size[0]} x {size[1]}"
        )
    return found.reshape(*size, -1).transpose(2, 0, 1)


def _whole(corners: Box) -> tuple[int, int, int, int]:
    """The corners of whole pixels that are next to those given."""
    left, top, right, bottom = (round(each) for each in corners)
    return left, top, right, bottom


def _average(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """An image, (height, width) or with channels behind, at another size, channels first."""
    channels = torch.from_numpy(image).reshape(*image.shape[:2], -1).permute(2, 0, 1)
    return resize(channels[None], size)[0].numpy()


def _in_eight_bits(image: Image) -> Image:
    """An image of 16-bit grey with 8 bits, so that white stays white; others as they are.

    Pillow itself cuts what is above 255.
    """
    if image.mode == "F":
        raise ValueError("its values are floating-point numbers, and their white is unknown")
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65_535:
        raise ValueError(f"its values reach from {values.min()} to {values.max()}, not 0 to 65535")
    from PIL import Image

    # Rounded without a copy in a wider type.
    return Image.fromarray((values // 257 + (values % 257 > 128)).astype(np.uint8))


def in_threads(
    function: Callable[[_From], _To],
    items: Iterable[_From],
    threads: int | None = None,
    ahead: int = 8,
) -> Iterator[_To]:
    """Call a function for each item, several at once, and give the answers in order.

    Pillow decodes without Python's lock, so that threads are enough. No more than a few answers
    wait to be taken.

    Args:
        function: What to call.
        items: What it is called with.
        threads: How many at once; None for one a core, 16 at most.
        ahead: Answers of each thread that may wait.
    """
    threads = threads or min(16, _cores())
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_To]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= ahead * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()


def _cores() -> int:
    if sys.platform == "linux":  # a container may be given fewer than the machine has
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
