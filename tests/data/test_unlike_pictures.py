"""Images, masks and flow of unlike makes: read right, or refused by name; none wrong in silence."""

from __future__ import annotations

import io
import itertools
import lzma
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import png
import pytest
from PIL import Image

from equilibria.run.data import DataError
from equilibria.zoo.flow.data.formats import read_flow
from equilibria.zoo.io import decode, picture
from equilibria.zoo.vision.data.segmentation import VOID, folder
from equilibria.zoo.vision.predict.drawing import mask_png

# --- images --------------------------------------------------------------------------------------

RGB = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3) * 5 // 8 * 2
GREY = RGB[..., 0]
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
DEEP = ("I", "I;16", "F")
LOSSY = {"JPEG": 40, "WEBP": 60, "GIF": 60}


def image(form: str, mode: str) -> bytes:
    if mode in DEEP:
        kind = {"I": np.int32, "I;16": np.uint16, "F": np.float32}[mode]
        made = Image.fromarray(GREY.astype(kind) * 257)
    else:
        made = Image.fromarray(RGB).convert(mode)
    content = io.BytesIO()
    made.save(content, form, **({"sizes": [(8, 6)]} if form == "ICO" else {}))
    return content.getvalue()


@pytest.mark.parametrize(("form", "mode"), MADE)
def test_every_make_of_image(tmp_path: Path, form: str, mode: str) -> None:
    path = tmp_path / "image"
    path.write_bytes(image(form, mode))
    if mode in DEEP:
        with pytest.raises(DataError, match="more than 8 bits a channel"):
            picture.read(path)
        return
    found = picture.read(path).numpy().transpose(1, 2, 0)
    expected = np.array(Image.fromarray(RGB).convert(mode).convert("RGB"))
    if mode in ("1", "L", "LA") and found.shape[2] == 1:
        expected = expected[..., :1]
    error = np.abs(found.astype(int) - expected).max()
    assert found.shape == expected.shape and error <= LOSSY.get(form, 3 if mode == "LAB" else 0)


@pytest.mark.parametrize("turn", list(range(1, 9)))
def test_every_orientation_is_upright(turn: int) -> None:
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
def test_pages_are_not_dropped_in_silence(tmp_path: Path, form: str) -> None:
    path = tmp_path / "image"
    pages = [Image.fromarray(GREY), Image.fromarray(255 - GREY)]
    pages[0].save(path, form, save_all=True, append_images=pages[1:])
    for read in (picture.read, lambda path: decode.pixels(path.read_bytes(), path, "L", None)):
        with pytest.raises(DataError, match="image has 2 pages or frames, and one image is"):
            read(path)


# --- masks ---------------------------------------------------------------------------------------

CLASSES = {
    "names": ("sky\nearth\n", [0, 1], ("sky", "earth")),
    "a mark": ("\ufeffsky\r\nearth\r\n", [0, 1], ("sky", "earth")),
    "values": ("0: sky\n3: earth\n7: water\n", [0, 3, 7], ("sky", "earth", "water")),
    "void": ("0: void\n3: earth\n7: water\n", [3, 7], ("earth", "water")),
    "comments": ("# mine\nsky\n\nearth\n", [0, 1], ("sky", "earth")),
    "gaps": ("200:sky\n254 : earth\n", [200, 254], ("sky", "earth")),
}
KINDS = ("L", "P", "1", "TIFF", "BMP", "void too")


def masks(root: Path, classes: str, values: list[int], kind: str) -> Path:
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    (root / "classes.txt").write_text(classes, "utf-8")
    for k in range(10):
        mask = np.resize(np.array(values, np.uint8), (6, 7))
        if kind == "void too":
            mask[0, 0] = VOID
        Image.fromarray(RGB).resize((7, 6)).save(root / "images" / f"{k}.png")
        made = Image.fromarray(mask, "L")
        if kind == "P":
            made = Image.fromarray(mask, "P")
            made.putpalette([each for n in range(256) for each in (n, 255 - n, n * 7 % 256)])
        elif kind == "1":
            made = Image.fromarray(mask.astype(bool))
        form = kind if kind in ("TIFF", "BMP") else "PNG"
        made.save(root / "masks" / f"{k}.{form.lower()}", form)
    return root


@pytest.mark.parametrize(
    ("classes", "kind"),
    [  # one bit holds 0 and 1
        each
        for each in itertools.product(CLASSES, KINDS)
        if each[1] != "1" or CLASSES[each[0]][1] == [0, 1]
    ],
)
def test_every_make_of_mask(tmp_path: Path, cache: Path, classes: str, kind: str) -> None:
    text, values, labels = CLASSES[classes]
    root = masks(tmp_path / "own", text, values, kind)
    found = folder.load(root)
    expected = np.resize(np.arange(len(values)), (6, 7))
    if kind == "void too":
        expected[0, 0] = VOID
    assert np.array_equal(found.train.mask(0), expected)
    assert (found.labels, found.values) == (labels, tuple(values))


@pytest.mark.parametrize("classes", CLASSES)
def test_masks_that_are_predicted_are_masks(tmp_path: Path, cache: Path, classes: str) -> None:
    text, values, _ = CLASSES[classes]
    root = masks(tmp_path / "own", text, values, "P")
    before = folder.load(root)
    for path in (root / "masks").iterdir():
        told = before.train.mask(0).numpy()
        path.write_bytes(mask_png(told, before.colours, before.values))
        assert np.array_equal(np.array(Image.open(path)), np.resize(values, (6, 7)))
    after = folder.load(root)
    assert np.array_equal(after.train.mask(0), before.train.mask(0))
    assert after.colours == before.colours


def test_a_name_of_void_is_said_to_be_none(tmp_path: Path, cache: Path) -> None:
    root = masks(tmp_path / "own", "0: sky\n3: earth\n255: border\n", [0, 3, 255], "L")
    with pytest.warns(UserWarning, match="calls the value 255 'border', and it always means void"):
        assert folder.load(root).labels == ("sky", "earth")


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("sky\nearth\n", [0, 255], "255 means void: where it stands for a class, write 1"),
        ("sky\nearth\n", [0, 3, 7], r"has the value 3 .* which .*classes.txt does not list"),
        ("sky\nearth\n", [0, 0], "all pixels of the training masks .* are sky or void"),
        ("sky\nearth\n", [255, 255], "are void: there is nothing to learn.* write 1"),
        ("sky\nsky\n", [0, 1], "lists the name sky twice"),
        ("1: sky\n1: earth\n", [0, 1], "lists the value 1 twice"),
        ("0: sky\nearth\n", [0, 1], "'earth' has no value"),
        ("0: sky\n256: earth\n", [0, 1], "lists the value 256"),
    ],
)
def test_masks_that_do_not_fit(
    tmp_path: Path, cache: Path, text: str, values: list[int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        folder.load(masks(tmp_path / "own", text, values, "L"))


# --- flow ----------------------------------------------------------------------------------------

FLOW = np.array([[[1.5, -2.0], [0.25, 3.0]], [[-4.0, 0.0], [8.0, -0.5]]], np.float32)  # (2, h, w)


def flo(values: np.ndarray = FLOW, magic: bytes = b"PIEH") -> bytes:
    height, width = values.shape[1:]
    return magic + struct.pack("<ii", width, height) + values.transpose(1, 2, 0).tobytes()


def pfm(order: str = "<", head: str = "PF\n2 2\n{}\n", values: np.ndarray = FLOW) -> bytes:
    colour = np.concatenate([values, np.zeros_like(values[:1])])[:, ::-1].transpose(1, 2, 0)
    scale = "-1.0" if order == "<" else "1.0"
    return head.format(scale).encode() + colour.astype(f"{order}f4").tobytes()


def kitti(valid: int = 1, order: slice = slice(None), depth: int = 16, **kind: Any) -> bytes:
    u, v = FLOW * 64 + 2**15
    pixels = np.stack([u, v, np.full_like(u, valid)], 2).astype(np.uint16)[..., order]
    content = io.BytesIO()
    writer = png.Writer(2, 2, bitdepth=depth, greyscale=False, **kind)
    writer.write(content, (pixels >> (16 - depth)).reshape(2, -1).tolist())
    return content.getvalue()


def header(content: bytes, at: int, value: int) -> bytes:
    """A PNG file with another byte in its header, whose checksum is right."""
    head = bytearray(content[12:29])
    head[4 + at] = value
    return content[:12] + bytes(head) + struct.pack(">I", zlib.crc32(head)) + content[33:]


RIGHT = {
    "a.flo": flo(),
    "a.FLO": flo(),
    "a.flo.xz": lzma.compress(flo()),
    "little.pfm": pfm(),
    "big.pfm": pfm(">"),
    "spaces.pfm": pfm("<", "PF 2 2 {} "),
    "carriage.pfm": pfm("<", "PF\r\n2 2\r\n{}\r\n"),
    "comment.pfm": pfm("<", "PF\n# from elsewhere\n2 2\n{}\n"),
    "comments.pfm": pfm(">", "PF\n#a\n#b\n2 2\n# c\n{}\n"),
    "lines.pfm": pfm("<", "PF\n2\n2\n{}\n"),
    **{f"{valid}.png": kitti(valid) for valid in (1, 255, 65535)},
    "interlaced.png": kitti(interlace=True),
    "level.png": kitti(compression=0),
}
LOST = np.where(np.arange(8).reshape(2, 2, 2) == 7, 1e10, FLOW).astype(np.float32)
WRONG = {  # what is cut or damaged is in test_flow_files
    "bgr.png": (kitti(1, slice(None, None, -1)), "blue value .*OpenCV writes BGR"),
    "gbr.png": (kitti(7), "the blue value 7"),
    "bits.png": (kitti()[:60] + b"\0\0" + kitti()[62:], "truncated or damaged"),
    "method.png": (header(kitti(), 10, 1), "compression method"),
    "filter.png": (header(kitti(), 11, 1), "filter method"),
    "lace.png": (header(kitti(), 12, 2), "interlace"),
    "grey.png": (image("PNG", "L"), "expected 16-bit RGB"),
    "jpeg.png": (image("JPEG", "RGB"), "is no PNG file"),
    "swapped.pfm": (pfm("<", "PF\n2 2\n1.0\n"), "in the other order"),
    "swapped2.pfm": (pfm(">", "PF\n2 2\n-1.0\n"), "in the other order"),
    "far.pfm": (pfm(values=FLOW * 1e7), "in the other order"),
    "words.pfm": (b"PF two two -1\n", "is no .pfm file"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_every_make_of_flow(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(RIGHT[name])
    found = read_flow(tmp_path / name)
    assert np.array_equal(found.flow, FLOW) and found.valid.all()


@pytest.mark.parametrize(("name", "content"), [("a.flo", flo(LOST)), ("a.pfm", pfm(values=LOST))])
def test_what_is_unknown_is_not_valid(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    found = read_flow(tmp_path / name)
    assert found.valid.tolist() == [[True, True], [True, False]]
    assert found.flow[:, 1, 1].tolist() == [0, 0]


@pytest.mark.parametrize("name", WRONG)
def test_flow_that_is_refused(tmp_path: Path, name: str) -> None:
    content, message = WRONG[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_flow(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
