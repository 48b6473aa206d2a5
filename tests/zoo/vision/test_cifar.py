"""CIFAR-10 and CIFAR-100: official versions, the JPEG copy, and what is damaged."""

import gzip
import hashlib
import os
import pickle
import pickletools
from dataclasses import replace

import numpy as np
import pytest
import torch

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.io import remote
from equilibria.zoo.vision.data import cifar
from equilibria.zoo.vision.data.cifar import (
    BINARY10,
    BINARY100,
    CIFAR100,
    PYTHON10,
    PYTHON100,
    read_pickle,
    records,
)
from file_server import serving
from packed import tar_of
from pictures import content, picture

LABELS = cifar.LABELS10
VERSIONS = (BINARY10, PYTHON10)


def images(seed, count, classes=10):
    """Noise as images (count, 3072) and their labels, uint8."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (count, 3072)).astype(np.uint8)
    return pixels, (np.arange(count) % classes).astype(np.uint8)


def binary(pixels, labels, extra=0):
    columns = [np.full((len(labels), 1), 7, np.uint8)] * extra
    return np.hstack([*columns, labels[:, None], pixels]).tobytes()


def python(pixels, labels, key="labels"):
    """A batch as Python 2 pickled it: protocol 2, names and bytes as byte strings."""
    return pickle.dumps({"data": pixels, key: labels.tolist(), "batch_label": "x"}, protocol=2)


def tar(files):
    return gzip.compress(tar_of(files.items()), 1)


BATCHES = {name: images(place, 10) for place, name in enumerate("12345t")}
"""Ten images in each of the six files."""


def official(form):
    """The files of a version of CIFAR-10, by their names in the archive."""
    version, write = VERSIONS[form], (binary, python)[form]
    files = zip(version.names, BATCHES.values(), strict=True)
    return {f"{version.folder}/{name}": write(*batch) for name, batch in files}


def publish(monkeypatch, form, archive):
    """Let the small archive, and its files, be the published ones."""
    contents = {name.partition("/")[2]: content for name, content in official(form).items()}
    md5 = {n: f"md5:{hashlib.md5(contents[n]).hexdigest()}" for n in VERSIONS[form].checksums}
    versions = list(VERSIONS)
    versions[form] = replace(versions[form], md5=hashlib.md5(archive).hexdigest(), checksums=md5)
    entry = cifar.entry("cifar10", "CIFAR-10", LABELS, tuple(versions), cifar.REMOTE)
    monkeypatch.setattr(cifar, "CIFAR10", entry)
    monkeypatch.setattr(cifar, "COUNTS", {"train": 50, "test": 10})


def check(dataset):
    pixels = np.concatenate([batch[0] for batch in BATCHES.values()]).reshape(-1, 3, 32, 32)
    assert dataset.train.inputs.dtype == torch.uint8
    assert np.array_equal(dataset.train.inputs.numpy(), pixels[:50])
    assert np.array_equal(dataset.test.inputs.numpy(), pixels[50:])
    assert dataset.train.targets.tolist() == [*range(10)] * 5
    assert dataset.title == "CIFAR-10" and dataset.shape == (3, 32, 32)
    inputs, _ = dataset.train[:3]
    assert inputs.dtype == torch.float32 and torch.equal(inputs, dataset.train.inputs[:3] / 255)


@pytest.mark.parametrize("form", [0, 1], ids=["binary", "python"])
@pytest.mark.parametrize("packed", [True, False], ids=["archive", "unpacked"])
@pytest.mark.parametrize("place", ["cifar10", "."], ids=["named", "root"])
def test_official_versions_are_found(tmp_path, cache, monkeypatch, form, packed, place):
    files = official(form)
    archive = tar(files)
    if packed:
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / VERSIONS[form].archive).write_bytes(archive)
    else:
        for name, content in files.items():
            (tmp_path / place / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place / name).write_bytes(content)
    publish(monkeypatch, form, archive)
    check(data.load("cifar10", tmp_path, download=False))


def test_what_is_missing_is_downloaded_once(tmp_path, cache, monkeypatch):
    archive = tar(official(0))
    with serving() as server:
        server.files = {BINARY10.archive: archive}
        monkeypatch.setattr(cifar, "ADDRESS", server.url(""))
        publish(monkeypatch, 0, archive)
        for _ in range(2):
            check(data.load("cifar10", tmp_path))
        assert len(server.requests) == 1
    assert (tmp_path / "cifar10" / BINARY10.archive).is_file()


ARCHIVES = {
    "missing": (0, None, False, r"or cifar-10-python\.tar\.gz was not found in .*160 MB"),
    "another": (1, tar(official(1)), False, r"python\.tar\.gz is damaged or the wrong file"),
    "cut": (0, tar(official(0))[:-400], True, r"binary\.tar\.gz is damaged \("),
    "no batch": (
        *(0, tar({name: each for name, each in official(0).items() if "batch_3" not in name})),
        *(True, r"does not contain cifar-10-batches-bin/data_batch_3\.bin"),
    ),
}


@pytest.mark.parametrize(
    ("form", "archive", "published", "message"), ARCHIVES.values(), ids=ARCHIVES
)
def test_an_archive_that_is_none(tmp_path, cache, monkeypatch, form, archive, published, message):
    if archive is not None:
        (tmp_path / VERSIONS[form].archive).write_bytes(archive)
    if published:
        publish(monkeypatch, form, archive)
    with pytest.raises(DataError, match=message):
        data.load("cifar10", tmp_path, download=False)


# --- formats -------------------------------------------------------------------------------------


def test_the_label_of_cifar_100_is_the_fine_one():
    pixels, labels = images(3, 20, 100)
    found, fine = records(binary(pixels, labels, extra=1), "x", 2)
    assert np.array_equal(found.reshape(20, -1), pixels) and np.array_equal(fine, labels)
    found, fine = read_pickle(python(pixels, labels, "fine_labels"), "x", "fine_labels")
    assert np.array_equal(found.reshape(20, -1), pixels) and np.array_equal(fine, labels)


def test_cifar_100_has_a_hundred_classes(monkeypatch):
    labels = list(CIFAR100.read.keywords["labels"])
    assert len(set(labels)) == 100 and labels == sorted(labels)
    monkeypatch.setattr(cifar, "COUNTS", {"train": 20, "test": 20})
    pixels, targets = images(3, 20, 100)
    contents = {"test.bin": binary(pixels, targets, extra=1)}
    assert BINARY100.read_split("test", contents, 100).targets.tolist() == list(range(20))
    with pytest.raises(DataError, match="a label is 10, expected 0 to 9"):
        BINARY100.read_split("test", contents, 10)


def test_a_label_below_zero_is_named(monkeypatch):
    monkeypatch.setattr(cifar, "COUNTS", {"train": 20, "test": 20})
    pixels, targets = images(3, 20)
    content = python(pixels, targets.astype(np.int64) - 1, "fine_labels")
    with pytest.raises(DataError, match="a label is -1, expected 0 to 99"):
        PYTHON100.read_split("test", {"test": content}, 100)


@pytest.mark.parametrize(
    ("name", "version"), [("cifar10", BINARY10), ("cifar100", BINARY100)], ids=["10", "100"]
)
def test_unpacked_files_with_too_few_images_are_refused(tmp_path, cache, name, version):
    """Of the binary version nobody published what the checksums of its files are."""
    (tmp_path / version.folder).mkdir()
    content = binary(*images(3, 10), extra=int(version is BINARY100))
    for file in version.names:
        (tmp_path / version.folder / file).write_bytes(content)
    expected = "10,000" if version is BINARY10 else "50,000"
    match = rf"{version.folder}/{version.names[0]} has 10 images, expected {expected}"
    with pytest.raises(DataError, match=match):
        data.load(name, tmp_path, download=False)


@pytest.mark.parametrize("content", [b"", b"x" * 3072, b"x" * 6147], ids=["none", "short", "odd"])
def test_records_that_are_not_whole(content):
    with pytest.raises(DataError, match=r"a\.bin has \d+ bytes, not a multiple of the 3073"):
        records(content, "a.bin", 1)


class Evil:
    """Runs a command when it is unpickled, if it is let."""

    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize(
    "content",
    [pickle.dumps(Evil()), pickle.dumps({"data": Evil()}), b"no pickle", pickle.dumps([1])],
    ids=["function", "inside", "garbage", "list"],
)
def test_a_pickle_that_is_no_batch_does_nothing(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"data_batch_1 is damaged or not a batch of CIFAR images"):
        read_pickle(content, "data_batch_1", "labels")
    assert list(tmp_path.iterdir()) == []


def test_the_test_pickles_ask_for_arrays_alone():
    asked = [op.name for op, _, _ in pickletools.genops(python(*images(0, 2)))]
    assert "GLOBAL" in asked  # else nothing was tried


# --- the JPEG copy -------------------------------------------------------------------------------

LOSSY = pytest.mark.filterwarnings("ignore:CIFAR-10 .JPEG copy.:UserWarning")


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The files of a copy with two training images and a test image a class."""
    monkeypatch.setattr(cifar, "JPEG_COUNTS", {"train": 2, "test": 1})
    counts = {"train": 2, "test": 1}
    return {
        f"{split}/{label}/{number:04}.jpg": content(picture(10 * place + number, (32, 32)))
        for split, count in counts.items()
        for place, label in enumerate(LABELS)
        for number in range(count)
    }


def packed(root, files):
    (root / "cifar10_jpeg").mkdir(exist_ok=True)
    path = root / "cifar10_jpeg" / cifar.REMOTE.files[0]
    path.write_bytes(tar(files))
    return path


def test_the_copy_says_what_it_is_and_is_decoded_once(tmp_path, cache, copy, monkeypatch):
    packed(tmp_path, copy)
    with pytest.warns(
        UserWarning, match=r"CIFAR-10 \(JPEG copy\) is read from .*official data: https"
    ):
        first = data.load("cifar10", tmp_path, download=False)
    assert first.title == "CIFAR-10 (JPEG copy)" and first.source.endswith("cifar10_jpg.tar.xz")
    assert first.train.targets.tolist() == [*range(10)] * 2
    monkeypatch.setattr(cifar, "_decode_archive", None)
    with pytest.warns(UserWarning):
        again = data.load("cifar10", tmp_path, download=False)
    assert again.checksum == first.checksum and again.train.inputs.dtype == torch.uint8


@LOSSY
def test_a_damaged_cache_is_made_again_and_another_archive_has_its_own(tmp_path, cache, copy):
    packed(tmp_path, copy)
    first = data.load("cifar10", tmp_path, download=False)
    (file,) = (cache / "equilibria" / "images").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-5000] ^= 1
    for damaged in (bytes(content), b"", bytes(content[:200])):
        file.write_bytes(damaged)
        assert data.load("cifar10", tmp_path, download=False).checksum == first.checksum
    packed(tmp_path, {**copy, "test/cat/0000.jpg": copy["test/dog/0000.jpg"]})
    assert data.load("cifar10", tmp_path, download=False).checksum != first.checksum


def test_the_official_images_come_first(tmp_path, cache, copy, monkeypatch):
    packed(tmp_path, copy)
    archive = tar(official(1))
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(archive)
    publish(monkeypatch, 1, archive)
    check(data.load("cifar10", tmp_path))


@LOSSY
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/cat/0001.jpg", None, r"has 1 images in train/cat: expected 2"),
        ("train/cow/0001.jpg", b"x", r"train/cow/0001\.jpg in .* belongs to no known class"),
        ("train/cat/0001.jpg", b"x", r"train/cat/0001\.jpg in .* is not an image"),
        (
            "train/cat/0001.jpg",
            content(picture(0, (16, 16))),
            r"train/cat/0001\.jpg in .* has 16 x 16 pixels: expected 32 x 32",
        ),
        (
            "train/cat/0001.jpg",
            content(picture(0, (32, 32)))[:-900],
            r"train/cat/0001\.jpg in .* is damaged",
        ),
    ],
    ids=["missing", "class", "no-image", "size", "truncated"],
)
def test_another_copy_is_refused(tmp_path, cache, copy, name, content, message):
    copy.pop(name, None)
    if content is not None:
        copy[name] = content
    packed(tmp_path, copy)
    with pytest.raises(DataError, match=message):
        data.load("cifar10", tmp_path, download=False)
    assert not list((cache / "equilibria" / "images").glob("*.safetensors"))


@LOSSY
@pytest.mark.slow
@pytest.mark.data
def test_the_real_copy(real):
    if not cifar.REMOTE.find(remote.data_folders("cifar10")):
        pytest.skip("EQUILIBRIA_DATA names no folder with the JPEG copy of CIFAR-10")
    found = data.load("cifar10", download=False)
    assert (len(found.train), len(found.test)) == (50_000, 10_000)
    if found.title == "CIFAR-10 (JPEG copy)":
        mean = found.train.inputs.double().mean((0, 2, 3)) / 255
        assert mean.tolist() == pytest.approx([0.4913, 0.4821, 0.4465], abs=1e-4)
