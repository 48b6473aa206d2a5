"""Digits and MNIST as tensors, where they are looked for, and what damage is told."""

import gzip
import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.io.remote import data_folders
from equilibria.zoo.vision.data import mnist
from equilibria.zoo.vision.data.mnist import MNIST
from file_server import serving

# --- digits --------------------------------------------------------------------------------------


def test_digits():
    digits = data.load("digits")
    assert digits.train.inputs.shape == (1347, 1, 8, 8)
    assert digits.test.inputs.shape == (450, 1, 8, 8)
    assert digits.shape == (1, 8, 8)
    assert digits.train.inputs.dtype == torch.float32
    assert digits.train.targets.dtype == torch.int64
    assert (digits.train.inputs.min(), digits.train.inputs.max()) == (0, 1)
    # Stratified: each class has its quarter in the test split.
    every = torch.cat([digits.train.targets, digits.test.targets]).bincount()
    assert ((digits.test.targets.bincount() - every / 4).abs() < 1).all()
    assert digits.checksum == data.load("digits").checksum


# --- idx -----------------------------------------------------------------------------------------


def header(*shape):
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)


def as_idx(array):
    return header(*array.shape) + array.tobytes()


ARRAY = np.random.default_rng(0).integers(0, 256, (3, 4, 5), dtype=np.uint8)


@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_idx_round_trip(tmp_path, name):
    content = as_idx(ARRAY)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    read = mnist.read_idx(tmp_path / name)
    assert read.dtype == np.uint8
    assert (read == ARRAY).all()


BAD = {
    "nothing": (b"", "begins with nothing"),
    "page": (b"<html>", "begins with 3c 68 74 6d"),
    "half a header": (as_idx(ARRAY)[:7], "header ends after 7 bytes"),
    "less": (as_idx(ARRAY)[:-1], "holds 59 entries, but its header says 60"),
    "more": (as_idx(ARRAY) + b"\0", "holds more entries, but its header says 60"),
    "huge": (header(*[2**32 - 1] * 3), "0 entries, but its header says 792281624589"),
    "overflow": (header(2**32 - 1, 2**31, 2), "holds 0 entries"),  # 0 in 64 bits
    "axes": (header(*[1] * 40) + b"\0", "its header says 40 axes"),
    "empty": (header(0, 2**32 - 1, 2**32 - 1), "is empty"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_what_is_no_idx_file(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(DataError, match=message):
        mnist.read_idx(tmp_path / name)


PACKED = gzip.compress(as_idx(ARRAY))
BOMB = gzip.compress(header(2, 3) + bytes(1 << 26))


@pytest.mark.parametrize(
    "content",
    [b"no gzip", PACKED[:-20], PACKED[:20] + b"\xff" * 40],
    ids=["no gzip", "cut off", "overwritten"],  # the bytes have the time in them
)
def test_a_damaged_gzip(tmp_path, content):
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"file\.gz is damaged"):
        mnist.read_idx(tmp_path / "file.gz")


def test_no_more_of_an_idx_file_is_unpacked_than_its_header_says(tmp_path, unpacked):
    (tmp_path / "file.gz").write_bytes(BOMB)
    with pytest.raises(DataError, match="holds more entries, but its header says 6"):
        mnist.read_idx(tmp_path / "file.gz")
    assert unpacked() < 100


# --- mnist ---------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A server with four small files in place of MNIST's, and neither cache nor environment."""
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (count, 28, 28), dtype=np.uint8) for count in (6, 4)]
    labels = [random.integers(0, 10, count, dtype=np.uint8) for count in (6, 4)]
    arrays = (images[0], labels[0], images[1], labels[1])
    checksums = {}
    with serving() as server:
        for name, array in zip(MNIST.remotes[0].files, arrays, strict=True):
            raw = as_idx(array)
            server.files[name] = gz = gzip.compress(raw)
            checksums[name] = f"md5:{hashlib.md5(gz).hexdigest()}"
            checksums[name.removesuffix(".gz")] = f"md5:{hashlib.md5(raw).hexdigest()}"
        remote = replace(MNIST.remotes[0], addresses=(server.url(""),), checksums=checksums)
        entry = replace(MNIST, remotes=(remote,))
        monkeypatch.setattr(mnist, "MNIST", entry)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("EQUILIBRIA_DATA", raising=False)
        yield server


def check_small(dataset):
    assert dataset.train.inputs.shape == (6, 1, 28, 28)
    assert dataset.test.targets.shape == (4,)
    assert dataset.train.inputs.dtype == torch.float32
    assert 0 <= dataset.train.inputs.min() < dataset.train.inputs.max() <= 1


def test_mnist_is_downloaded_once_to_the_first_place(small, tmp_path):
    for _ in range(2):
        check_small(data.load("mnist", tmp_path / "mine"))
    assert len(small.requests) == 4
    assert (tmp_path / "mine" / "mnist" / "t10k-labels-idx1-ubyte.gz").is_file()


def test_mnist_goes_to_the_cache_where_nothing_is_named(small, tmp_path):
    check_small(data.load("mnist"))
    assert (tmp_path / "cache" / "equilibria" / "mnist" / "t10k-labels-idx1-ubyte.gz").is_file()


@pytest.mark.parametrize("folder", ["mnist", "."])
@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_is_found_under_the_environment(small, tmp_path, monkeypatch, folder, zipped):
    (tmp_path / "data" / folder).mkdir(parents=True)
    for name, content in small.files.items():
        raw = gzip.decompress(content)
        # Zipped anew, as by somebody else: other bytes, the same content.
        copy = gzip.compress(raw, compresslevel=1) if zipped else raw
        (tmp_path / "data" / folder / (name if zipped else name.removesuffix(".gz"))).write_bytes(
            copy
        )
    monkeypatch.setenv("EQUILIBRIA_DATA", str(tmp_path / "data"))
    check_small(data.load("mnist", tmp_path / "empty", download=False))
    assert small.requests == []


def test_the_folder_given_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUILIBRIA_DATA", str(tmp_path / "b"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert data_folders("x", tmp_path / "a") == [
        tmp_path / "a" / "x",
        tmp_path / "a",
        tmp_path / "b" / "x",
        tmp_path / "b",
        tmp_path / "c" / "equilibria" / "x",
        tmp_path / "c" / "equilibria",
    ]


def test_mnist_missing_or_out_of_reach(small, tmp_path):
    missing = r"train-images-idx3-ubyte\.gz was not found in .*--data-dir"
    with pytest.raises(DataError, match=missing):
        data.load("mnist", tmp_path, download=False)
    assert small.requests == []
    small.files.clear()
    with pytest.raises(DataError, match=r"could not download .* HTTP 404"):
        data.load("mnist", tmp_path)


def test_mnist_with_another_content(small, tmp_path):
    data.load("mnist", tmp_path)
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(as_idx(np.zeros(6, dtype=np.uint8))))
    with pytest.raises(
        DataError, match=r"train-labels-idx1-ubyte\.gz is damaged or the wrong file"
    ):
        data.load("mnist", tmp_path)


def test_the_checksum_tells_data_apart(small, tmp_path):
    assert data.load("mnist", tmp_path).checksum != data.load("digits").checksum


@pytest.mark.data
def test_the_real_mnist():
    if len(MNIST.remotes[0].find(data_folders("mnist"))) < 4:
        pytest.skip("EQUILIBRIA_DATA names no folder with MNIST")
    real = data.load("mnist", download=False)
    assert (len(real.train), len(real.test)) == (60_000, 10_000)
    assert real.test.targets.bincount().tolist() == [
        *(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
    ]
    assert abs(real.train.inputs.mean().item() - 0.1307) < 1e-4
