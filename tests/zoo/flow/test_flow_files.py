"""Files of optical flow: round trips, other people's bytes, and every kind of damage."""

import lzma
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equilibria.run.data import DataError
from equilibria.zoo.flow.data import FlowField, formats, read_flow, write_flow

SIZE = (5, 7)


def field(seed: int = 0, masked: bool = False) -> FlowField:
    generator = torch.Generator().manual_seed(seed)
    flow = 100 * torch.randn(2, *SIZE, generator=generator)
    valid = torch.rand(SIZE, generator=generator) < (0.6 if masked else 2.0)
    return FlowField(flow * valid, valid)


# --- round trips ---------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize(("suffix", "step"), [("flo", 0.0), ("PFM", 0.0), ("png", 1 / 64)])
def test_what_is_written_is_read(tmp_path, suffix, step, masked):
    path, given = tmp_path / f"a.{suffix}", field(masked=masked)
    write_flow(path, FlowField(given.flow.clone().requires_grad_(), given.valid))
    found = read_flow(path)
    assert torch.equal(found.valid, given.valid) and found.flow.dtype == torch.float32
    assert (found.flow - given.flow).abs().max() <= step / 2
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_flo_as_its_authors_describe_it(tmp_path):
    path = tmp_path / "a.flo"
    values = [1.0, 2.0, -3.5, 4.0, 1e10, 0.0, 7.0, 8.0, 9.0, -10.0, 2e9, 2e9]
    path.write_bytes(b"PIEH" + struct.pack("<ii12f", 3, 2, *values))
    found = read_flow(path)
    assert found.flow[:, 0, 1].tolist() == [-3.5, 4.0] and found.flow[0, 1].tolist() == [7, 9, 0]
    assert found.valid.tolist() == [[True, True, False], [True, True, False]]
    (tmp_path / "a.flo.xz").write_bytes(lzma.compress(path.read_bytes()))
    packed = read_flow(tmp_path / "a.flo.xz")
    assert torch.equal(packed.flow, found.flow) and torch.equal(packed.valid, found.valid)


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_pfm_of_either_byte_order(tmp_path, order):
    path = tmp_path / "a.pfm"
    values = np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    head = f"PF\n3 2\n{'-1.0' if order == '<' else '1'}\n"
    path.write_bytes(head.encode() + values[::-1].astype(f"{order}f4").tobytes())
    found = read_flow(path)
    assert torch.equal(found.flow, torch.from_numpy(values[..., :2]).permute(2, 0, 1))
    write_flow(path, found)
    assert torch.equal(read_flow(path).flow, found.flow)
    assert len(path.read_bytes()) == len("PF\n3 2\n-1.0\n") + values.nbytes
    path.write_bytes(b"Pf\n3 2\n-1.0\n" + bytes(24))
    with pytest.raises(DataError, match=r"a\.pfm is grey \(Pf\)"):
        read_flow(path)


def test_kitti_numbers(tmp_path):
    path = tmp_path / "a.png"
    pixels = np.zeros((1, 3, 3), np.uint16)
    pixels[0, 0], pixels[0, 1] = (32768 + 64, 32768 - 32, 1), (0, 65535, 1)
    formats.write_png16(path, pixels)
    found = read_flow(path)
    assert found.flow[:, 0].T.tolist() == [[1.0, -0.5], [-512.0, 511.984375], [0.0, 0.0]]
    assert found.valid.tolist() == [[True, True, False]]
    write_flow(path, FlowField.dense(torch.tensor([[[0.0117]], [[-0.0117]]])))
    # To the nearest, not towards zero.
    assert formats.read_png16(path).tolist() == [[[32769, 32767, 1]]]


@pytest.mark.parametrize("flow", [512.0, -512.1, 511.999])
def test_flow_that_kitti_cannot_hold(tmp_path, flow):
    path = tmp_path / "a.png"
    path.write_bytes(b"before")
    large = torch.zeros(2, 2, 2)
    large[1, 0, 1] = flow
    with pytest.raises(ValueError, match=rf"a\.png: .* -512 to 511\.98 pixels, got {flow:g}"):
        write_flow(path, FlowField.dense(large))
    assert path.read_bytes() == b"before"
    valid = torch.tensor([[True, False], [True, True]])
    write_flow(path, FlowField(large, valid))  # what is not valid need not fit
    assert torch.equal(read_flow(path).valid, valid)


# --- PNG -----------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    rows: bytes, size: tuple[int, int], depth: int = 16, color: int = 2, interlaced: int = 0
) -> bytes:
    header = struct.pack(">IIBBBBB", size[1], size[0], depth, color, 0, 0, interlaced)
    packed = zlib.compress(rows)
    parts = [chunk(b"IHDR", header), chunk(b"tEXt", b"Comment\0none")]
    parts += [chunk(b"IDAT", packed[:9]), chunk(b"IDAT", packed[9:]), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def smooth(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(1).integers(0, 300, (height, width, 3))
    return (np.stack([900 * x, 700 * y, 500 * (x + y)], 2) + noise).astype(np.uint16)


def test_png_as_another_decoder_reads_it(tmp_path):
    pixels = smooth(11, 8)
    formats.write_png16(tmp_path / "a.png", pixels)
    assert np.array_equal(formats.read_png16(tmp_path / "a.png"), pixels)
    with Image.open(tmp_path / "a.png") as image:
        assert np.array_equal(np.asarray(image), pixels >> 8)


# --- damage --------------------------------------------------------------------------------------

NONE = struct.pack("<ii2f", 1, 1, 1e10, 1e10)
ROWS = b"".join(b"\0" + row.astype(">u2").tobytes() for row in smooth(4, 3))
PNG = png(ROWS, (4, 3))

DAMAGED = {
    "flo-empty": ("a.flo", b"", r"is truncated: it has 0 bytes"),
    "flo-head": ("a.flo", b"PIEH\1\0", r"is truncated: it has 6 bytes"),
    "flo-magic": ("a.flo", b"HEIP" + NONE, r"is no \.flo file: it begins with b'HEIP', expected"),
    "flo-short": (
        "a.flo",
        b"PIEH" + struct.pack("<ii3f", 1, 2, 1, 2, 3),
        r"is truncated: 12 bytes follow its header, expected 16 for 2 x 1 pixels",
    ),
    "flo-long": ("a.flo", b"PIEH" + NONE + b"\0", r"is too long: 9 bytes or more follow .* 8"),
    "flo-size": ("a.flo", b"PIEH" + struct.pack("<ii", 0, 3), r"says that it has 3 x 0 pixels"),
    "flo-negative": ("a.flo", b"PIEH" + struct.pack("<ii", 4, -3), r"has -3 x 4 pixels"),
    "flo-huge": ("a.flo", b"PIEH" + struct.pack("<ii", 1 << 30, 1 << 30), r"at most 64,000,000"),
    "flo-nan": (
        "a.flo",
        b"PIEH" + struct.pack("<ii4f", 2, 1, 0, 0, 1, float("nan")),
        r"the flow is 1, nan at x = 1, y = 0 \(1 such pixels\): expected finite",
    ),
    "flo-infinite": (
        "a.flo",
        b"PIEH" + struct.pack("<ii2f", 1, 1, float("inf"), 0),
        r"the flow is inf, 0",
    ),
    "flo-none": ("a.flo", b"PIEH" + NONE, r"no pixel has a valid flow"),
    "xz": ("a.flo.xz", lzma.compress(b"PIEH" + NONE)[:-9], r"is damaged \(Compressed file ended"),
    "xz-else": ("a.flo.xz", b"PIEH" + NONE, r"is damaged \("),
    "pfm-magic": ("a.pfm", b"P6\n3 2\n255\n", r"is no \.pfm file: it begins with b'P6"),
    "pfm-scale": ("a.pfm", b"PF\n1 1\n0\n" + bytes(12), r"has the scale '0': expected a number"),
    "pfm-word": ("a.pfm", b"PF\n1 1\n1e-e\n" + bytes(12), r"has the scale '1e-e'"),
    "pfm-size": ("a.pfm", b"PF\n0 1\n-1\n", r"says that it has 1 x 0 pixels"),
    "pfm-short": ("a.pfm", b"PF\n1 2\n-1\n" + bytes(23), r"is truncated: 23 bytes .* expected 24"),
    "pfm-long": ("a.pfm", b"PF\n1 2\n-1\n" + bytes(25), r"is too long: 25 bytes .* expected 24"),
    "pfm-nan": (
        "a.pfm",
        b"PF\n1 1\n-1\n" + struct.pack("<3f", float("nan"), 0, 0),
        r"the flow is nan, 0 at x = 0, y = 0",
    ),
    "png-magic": ("a.png", b"GIF89a..", r"is no PNG file"),
    "png-short": ("a.png", PNG[:-40], r"is no PNG file, truncated or damaged"),
    "png-header": ("a.png", PNG[:20], r"is no PNG file, truncated or damaged"),
    "png-checksum": ("a.png", PNG[:70] + b"?" + PNG[71:], r"[Cc]hecksum"),
    "png-rows": ("a.png", png(ROWS[:-1], (4, 3)), r"is no PNG file, truncated or damaged"),
    "png-filter": ("a.png", png(b"\5" + ROWS[1:], (4, 3)), r"is no PNG file, truncated or damaged"),
    "png-8": ("a.png", png(ROWS, (4, 3), depth=8), r"3 times 8 bits: expected 16-bit RGB"),
    "png-grey": ("a.png", png(ROWS, (4, 3), color=0), r"1 times 16 bits: expected 16-bit RGB"),
    "png-none": ("a.png", png(bytes(7), (1, 1)), r"no pixel has a valid flow"),
    "png-size": ("a.png", png(b"", (0, 3)), r"says that it has 0 x 3 pixels"),
    "ending": ("a.tif", b"", r"a\.tif is no file of flow: expected one of \.flo, "),
}


@pytest.mark.parametrize(("name", "stored", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named(tmp_path, name, stored, message):
    path = tmp_path / name
    path.write_bytes(stored)
    with pytest.raises(DataError, match=message) as error:
        read_flow(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    for suffix in ("flo", "flo.xz", "pfm", "png"):
        with pytest.raises(DataError, match=r"a\.\w+.* cannot be read: No such file"):
            read_flow(tmp_path / f"a.{suffix}")
    with pytest.raises(ValueError, match=r"a\.flo\.xz: flow is written to \.flo, \.pfm, \.png"):
        write_flow(tmp_path / "a.flo.xz", field())


def test_little_that_unpacks_to_much_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "a.flo.xz"
    head = b"PIEH" + struct.pack("<ii", 2, 2)
    path.write_bytes(lzma.compress(head + bytes(5_000_000)))
    taken: list[int] = []
    known = lzma.LZMAFile.read

    def read(self: lzma.LZMAFile, size: int | None = -1) -> bytes:
        taken.append(-1 if size is None else size)
        return known(self, size)

    monkeypatch.setattr(lzma.LZMAFile, "read", read)
    with monkeypatch.context() as patch:
        patch.setattr("equilibria.zoo.flow.data.formats.LARGEST", 100)
        with pytest.raises(DataError, match=r"is too long: 801 bytes or more"):
            read_flow(path)
    assert taken and max(taken) <= 813


@pytest.mark.parametrize("suffix", ["flo", "pfm", "png"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"a.{suffix}"
    write_flow(path, field())
    before = path.read_bytes()

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(DataError, match=rf"a\.{suffix} cannot be written .*disk is full"):
            write_flow(path, field(1))
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]
    with pytest.raises(DataError, match="cannot be written"):
        write_flow(tmp_path / "none" / path.name, field())


FIELDS = {
    "shape": (torch.zeros(3, 2, 2), torch.ones(2, 2) > 0, r"shape \(3, 2, 2\)"),
    "type": (torch.zeros(2, 2, 2).double(), torch.ones(2, 2) > 0, r"float64: expected"),
    "valid": (torch.zeros(2, 2, 3), torch.ones(3, 2) > 0, r"expected \(2, 3\) of bool"),
    "mask": (torch.zeros(2, 2, 2), torch.ones(2, 2), r"float32: expected \(2, 2\) of bool"),
    "none": (torch.zeros(2, 2, 2), torch.zeros(2, 2) > 0, r"no pixel has a valid flow"),
}


@pytest.mark.parametrize(("flow", "valid", "message"), FIELDS.values(), ids=FIELDS)
def test_what_is_no_field(flow, valid, message):
    with pytest.raises(ValueError, match=message):
        FlowField(flow, valid)


def test_nan_does_not_matter_where_nothing_is_known(tmp_path):
    flow, valid = torch.zeros(2, 2, 2), torch.tensor([[True, False], [True, True]])
    flow[0, 0, 1] = float("nan")
    for suffix in ("flo", "pfm", "png"):
        write_flow(tmp_path / f"a.{suffix}", FlowField(flow, valid))
        assert torch.equal(read_flow(tmp_path / f"a.{suffix}").valid, valid)
    assert formats.LARGEST == 64_000_000
