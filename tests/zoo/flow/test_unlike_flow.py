"""Flow of unlike makes: read right, or refused by name; none is wrong in silence."""

from __future__ import annotations

import io
import lzma
import struct
import zlib
from typing import Any

import numpy as np
import png
import pytest

from equilibria.run.data import DataError
from equilibria.zoo.flow.data.formats import read_flow
from unlike_pictures import image

FLOW = np.array([[[1.5, -2.0], [0.25, 3.0]], [[-4.0, 0.0], [8.0, -0.5]]], np.float32)  # (2, h, w)


def flo(values: np.ndarray = FLOW, magic: bytes = b"PIEH") -> bytes:
    height, width = values.shape[1:]
    return magic + struct.pack("<ii", width, height) + values.transpose(1, 2, 0).tobytes()


def pfm(order: str = "<", head: str = "PF\n2 2\n{}\n", values: np.ndarray = FLOW) -> bytes:
    color = np.concatenate([values, np.zeros_like(values[:1])])[:, ::-1].transpose(1, 2, 0)
    scale = "-1.0" if order == "<" else "1.0"
    return head.format(scale).encode() + color.astype(f"{order}f4").tobytes()


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
def test_every_make_of_flow(tmp_path, name):
    (tmp_path / name).write_bytes(RIGHT[name])
    found = read_flow(tmp_path / name)
    assert np.array_equal(found.flow, FLOW) and found.valid.all()


@pytest.mark.parametrize(("name", "content"), [("a.flo", flo(LOST)), ("a.pfm", pfm(values=LOST))])
def test_what_is_unknown_is_not_valid(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    found = read_flow(tmp_path / name)
    assert found.valid.tolist() == [[True, True], [True, False]]
    assert found.flow[:, 1, 1].tolist() == [0, 0]


@pytest.mark.parametrize("name", WRONG)
def test_flow_that_is_refused(tmp_path, name):
    content, message = WRONG[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_flow(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
