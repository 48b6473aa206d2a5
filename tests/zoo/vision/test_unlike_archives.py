"""Archives of unlike makes and damaged ones, as data and as shards: read right, or refused."""

import bz2
import gzip
import io
import itertools
import lzma
import tarfile
from collections.abc import Callable

import pytest
from hypothesis import given
from mutations import FUZZ, bounded, mutated, put

from equilibria.run.data import DataError
from equilibria.run.data.storage import read_errors
from equilibria.zoo.io import archive
from equilibria.zoo.vision.data.shards.index import parse_archive
from packed import MEMBERS, flipped, tar

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


STEP = 1024
"""From one header to the next."""


def end():
    """Where the last member of `tar` ends."""
    return len(tar().rstrip(b"\0")) // 512 * 512 + 512


def read_both(content, path):
    """An archive, as a data set's and as a shard."""
    path.write_bytes(content)
    with read_errors(path, *archive.DAMAGED):
        assert dict(archive.read_tar(path, lambda name: True)) == MEMBERS
    found = parse_archive(content, str(path))
    assert [each["cls"] for each in found] == list(MEMBERS.values())


@pytest.mark.parametrize(("form", "packer"), list(itertools.product(FORMATS, PACKERS)))
def test_every_make_of_archive(tmp_path, form, packer):
    content = tar(FORMATS[form])
    read_both(PACKERS[packer](content), tmp_path / "a.tar")
    read_both(PACKERS[packer](content.rstrip(b"\0").ljust(end() + 1024, b"\0")), tmp_path / "b.tar")
    read_both(PACKERS[packer](content + bytes(99 * 512)), tmp_path / "c.tar")


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit of a header": lambda tar: flipped(tar, 5 * STEP + 20),
    "a bit of a checksum": lambda tar: flipped(tar, 5 * STEP + 150),
    "a zero header": lambda tar: tar[: 5 * STEP] + bytes(512) + tar[5 * STEP + 512 :],
    "zeros in the middle": lambda tar: tar[: 5 * STEP] + bytes(1024) + tar[5 * STEP + 1024 :],
    "cut at a member": lambda tar: tar[: 5 * STEP],
    "cut in a member": lambda tar: tar[: 5 * STEP + 700],
    "cut in a header": lambda tar: tar[: 5 * STEP + 100],
    "no end": lambda tar: tar[: end()],
    "half an end": lambda tar: tar[: end()] + bytes(512),
    "more than an end": lambda tar: tar + b"more",
    "another archive behind": lambda tar: tar + tar,
}


def refuse_both(content, path):
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar is damaged"):
        list(archive.read_tar(path, lambda name: True))
    with pytest.raises(DataError, match=r"a\.tar is damaged"):
        parse_archive(content, str(path))


@pytest.mark.parametrize(("damage", "packer"), list(itertools.product(DAMAGE, PACKERS)))
def test_an_archive_that_ends_early_is_refused(tmp_path, damage, packer):
    refuse_both(PACKERS[packer](DAMAGE[damage](tar())), tmp_path / "a.tar")


@pytest.mark.parametrize("packer", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_packing_without_its_end_is_refused(tmp_path, packer, cut):
    refuse_both(PACKERS[packer](tar())[:-cut], tmp_path / "a.tar")


# --- damaged --------------------------------------------------------------------------------------


@FUZZ
@given(content=mutated(tar(), tar(tarfile.GNU_FORMAT), archive.gzip.compress(tar(), mtime=0)))
def test_archives(root, content):
    path = put(root / "a.tar", content)
    with bounded(len(content)):
        try:
            with read_errors(path, *archive.DAMAGED):
                found = dict(archive.read_tar(path, lambda name: True))
        except DataError as error:
            assert str(path) in str(error)
            found = None
        try:
            samples = parse_archive(content, "a shard")
        except DataError as error:
            assert "a shard" in str(error)
            samples = None
    if found is not None:
        with tarfile.open(fileobj=io.BytesIO(content)) as opened:
            expected = {}
            for entry in opened:
                file = opened.extractfile(entry)
                if file is not None and entry.isfile():
                    expected[entry.name.removeprefix("./")] = file.read()
        assert found == expected
    if samples is not None:
        assert found is not None
