"""Files made to exhaust the machine, and files that are none: refused, by name, at no cost."""

import io
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.io import archive, decode, download
from equilibria.zoo.vision.data import mnist
from pictures import folder, png

# --- images --------------------------------------------------------------------------------------


def large(width, height):
    """A PNG of a kilobyte that says it has so many pixels."""
    return png(bytes(100_000), width, height, kind=2)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [8_001, 10_000, 13_000, 60_000])
@pytest.mark.parametrize("options", [{}, {"size": 32}])
def test_an_image_of_too_many_pixels_is_named_and_not_decoded(tmp_path, monkeypatch, side, options):
    limit = Image.MAX_IMAGE_PIXELS
    path = folder(tmp_path, {"cat": 3, "dog": 3}) / "dog" / "001.png"
    path.write_bytes(large(side, side))
    monkeypatch.setattr(Image.Image, "load", None)
    with pytest.raises(DataError) as caught:
        data.load(str(tmp_path), **options)
    assert f"{path} has " in str(caught.value)
    assert "more than the 64 megapixels that are decoded" in str(caught.value)
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_pillows_own_warning_is_not_seen_as_an_error(tmp_path):
    with pytest.raises(DataError, match="more than the 64 megapixels"):
        decode.identify_image(io.BytesIO(large(10_000, 10_000)), "big.png")


def test_an_image_that_became_too_large_is_named_where_it_is_decoded():
    with pytest.raises(DataError, match=r"big\.png has 8001 x 8000 pixels, more than the 64 mega"):
        decode.pixels(large(8_000, 8_001), "big.png", "RGB", (8, 8), lambda h, w: (0, 0, h, w))
    found = decode.pixels(large(100, 100), "small.png", "RGB", (8, 8), lambda h, w: (0, 0, h, w))
    assert (found == np.zeros((3, 8, 8))).all()


def test_a_huge_file_is_not_read_as_an_image(tmp_path):
    path = folder(tmp_path, {"cat": 3, "dog": 3}) / "dog" / "001.png"
    os.truncate(path, 1 << 32)  # without taking room on the disk
    with pytest.raises(DataError, match=r"001\.png has 4,294,967,296 bytes, and the file of an"):
        data.load(str(tmp_path))


# --- what is no regular file ---------------------------------------------------------------------


def bound(path):
    with socket.socket(socket.AF_UNIX) as each:
        each.bind(str(path))


STRANGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("pipe", os.mkfifo, "it is a named pipe, not a regular file"),
    ("socket", bound, "it is a socket, not a regular file"),
    ("device", lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
    ("loop", lambda path: path.symlink_to(path.name), "symbolic links"),
]


@pytest.mark.parametrize(("make", "message"), [s[1:] for s in STRANGE], ids=[s[0] for s in STRANGE])
def test_only_regular_files_are_opened_as_images(tmp_path, monkeypatch, make, message):
    monkeypatch.chdir(folder(tmp_path, {"cat": 3, "dog": 3}) / "dog")  # a socket's path is short
    make(Path("odd.png"))
    with pytest.raises(DataError, match=f"odd.png cannot be read: .*{message}"):
        data.load(str(tmp_path))


def test_a_file_that_became_a_pipe_does_not_hang(tmp_path):
    images = data.load(str(folder(tmp_path, {"cat": 3, "dog": 3})))
    path = tmp_path / images.train.names[0]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="it is a named pipe"):
        images.train.decode_all()


@pytest.mark.parametrize(
    "read",
    [mnist.read_idx, download.digest, lambda path: dict(archive.read_tar(path, lambda name: True))],
    ids=["idx", "checksum", "tar"],
)
def test_a_pipe_is_not_opened_as_data(tmp_path, read):
    os.mkfifo(tmp_path / "file.gz")
    with pytest.raises(DataError, match=r"file\.gz cannot be read: it is a named pipe"):
        read(tmp_path / "file.gz")
