"""Images of unlike makes: read right, or refused by name; none is wrong in silence."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from equilibria.run.data import DataError
from equilibria.zoo.io import decode, image_files
from unlike_pictures import DEEP, GRAY, RGB, image

# --- images --------------------------------------------------------------------------------------

FORMATS = {
    "PNG": ("RGB", "L", "P", "1", "RGBA", "LA", "I;16"),
    "TIFF": ("RGB", "L", "P", "1", "RGBA", "LA", "CMYK", "YCbCr", "LAB", "I;16", "I", "F"),
    "BMP": ("RGB", "L", "P", "1", "RGBA"),
    "GIF": ("RGB", "L", "P", "1"),
    "WEBP": ("RGB", "RGBA"),
    "JPEG": ("RGB", "L", "CMYK"),
    "PPM": ("RGB", "L", "1"),
    "TGA": ("RGB", "L", "P", "RGBA"),
    "PCX": ("RGB", "L", "P", "1"),
    "SGI": ("RGB", "L"),
    "JPEG2000": ("RGB", "L"),
    "ICO": ("RGBA",),
    "DDS": ("RGB", "L"),
}
MADE = [(form, mode) for form, modes in FORMATS.items() for mode in modes]
LOSSY = {"JPEG": 40, "WEBP": 60, "GIF": 60}


@pytest.mark.parametrize(("form", "mode"), MADE)
def test_every_make_of_image(tmp_path, form, mode):
    path = tmp_path / "image"
    path.write_bytes(image(form, mode))
    if mode in DEEP:
        with pytest.raises(DataError, match="more than 8 bits a channel"):
            image_files.read(path)
        return
    found = image_files.read(path).numpy().transpose(1, 2, 0)
    expected = np.array(Image.fromarray(RGB).convert(mode).convert("RGB"))
    if mode in ("1", "L", "LA") and found.shape[2] == 1:
        expected = expected[..., :1]
    error = np.abs(found.astype(int) - expected).max()
    assert found.shape == expected.shape and error <= LOSSY.get(form, 3 if mode == "LAB" else 0)


@pytest.mark.parametrize("turn", list(range(1, 9)))
def test_every_orientation_is_upright(turn):
    content, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = turn
    flat = {2: lambda x: x[:, ::-1], 3: lambda x: x[::-1, ::-1], 4: lambda x: x[::-1]}
    side = {5: lambda x: x.swapaxes(0, 1), 6: lambda x: np.rot90(x, 1)}
    side |= {7: lambda x: np.rot90(x, 2).swapaxes(0, 1), 8: lambda x: np.rot90(x, -1)}
    stored = (flat | side).get(turn, lambda x: x)(RGB)
    Image.fromarray(np.ascontiguousarray(stored)).save(content, "PNG", exif=exif)
    found = decode.pixels(content.getvalue(), "image", "RGB", None)
    assert np.array_equal(found.transpose(1, 2, 0), RGB)


@pytest.mark.parametrize("form", ["TIFF", "GIF", "WEBP", "PNG"])
def test_pages_are_not_dropped_in_silence(tmp_path, form):
    path = tmp_path / "image"
    pages = [Image.fromarray(GRAY), Image.fromarray(255 - GRAY)]
    pages[0].save(path, form, save_all=True, append_images=pages[1:])
    for read in (image_files.read, lambda path: decode.pixels(path.read_bytes(), path, "L", None)):
        with pytest.raises(DataError, match="image has 2 pages or frames, and one image is"):
            read(path)
