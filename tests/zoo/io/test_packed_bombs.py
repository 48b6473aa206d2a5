"""Downloads and archives made to exhaust the machine: refused, by name, at no cost."""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from equilibria.run.data import DataError
from equilibria.zoo.io import archive
from equilibria.zoo.io.remote import Remote

BOMB = gzip.compress(bytes(1 << 26))


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_file_as_published_is_known_without_unpacking_it(tmp_path, unpacked):
    content = b"as published" * 100
    packed = gzip.compress(content)
    known = {"file.gz": digest(packed), "file": digest(content)}
    remote = Remote(files=("file.gz",), checksums=known, license="none")
    path = tmp_path / "file.gz"
    path.write_bytes(packed)
    remote.check({"file.gz": path})
    assert unpacked() == 0
    path.write_bytes(gzip.compress(content, 1))  # by someone else
    remote.check({"file.gz": path})
    assert unpacked() == len(content)
    (tmp_path / "file").write_bytes(content)
    remote.check({"file.gz": tmp_path / "file"})


def test_a_bomb_in_place_of_a_file_is_not_unpacked_further_than_the_file(tmp_path, unpacked):
    known = {"file.gz": digest(b"packed"), "file": digest(b"content")}
    remote = Remote(files=("file.gz",), checksums=known, license="none", largest=1000)
    (tmp_path / "file.gz").write_bytes(BOMB)
    with pytest.raises(DataError, match=r"file\.gz unpacks to more than 1,000 bytes"):
        remote.check({"file.gz": tmp_path / "file.gz"})
    assert unpacked() <= 1 << 20


def tar(path: Path, mode: str, **sizes: int) -> Path:
    with tarfile.open(path, f"w:{mode}") as file:
        for name, size in sizes.items():
            info = tarfile.TarInfo(name)
            info.size = size
            file.addfile(info, io.BytesIO(bytes(size)))
    return path


@pytest.mark.parametrize("mode", ["", "gz", "bz2", "xz"])
def test_a_tar_archive_is_unpacked_up_to_a_limit(tmp_path, mode):
    path = tar(tmp_path / "file.tar", mode, one=100, two=200_000, three=100)
    found = dict(archive.read_tar(path, lambda name: name != "two"))
    assert {name: len(content) for name, content in found.items()} == {"one": 100, "three": 100}
    for wanted in ("two", "three"):  # whether the large member is read or skipped
        with pytest.raises(DataError, match=r"file\.tar unpacks to more than 100,000 bytes"):
            dict(archive.read_tar(path, wanted.__eq__, 100_000))


def test_a_long_name_in_a_tar_archive_counts_too(tmp_path):
    path = tmp_path / "file.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as file:
        file.addfile(tarfile.TarInfo("x" * 1_000_000))
    with pytest.raises(DataError, match="unpacks to more than 100,000 bytes"):
        dict(archive.read_tar(path, lambda name: True, 100_000))
