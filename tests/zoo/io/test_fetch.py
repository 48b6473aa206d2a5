"""A download is whole and checked, or it is not there."""

import hashlib
import os
import random
import threading
from pathlib import Path

import pytest

from equilibria.run.data import DataError
from equilibria.zoo.io.download import fetch
from file_server import serving

CONTENT = random.Random(0).randbytes(700_000)
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def server():
    with serving() as server:
        server.files["file"] = CONTENT
        yield server


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "file"


def leftovers(path: Path) -> set[str]:
    """Names beside `path`, the lock excepted."""
    return {other.name for other in path.parent.iterdir()} - {f".{path.name}.lock"}


@pytest.mark.parametrize("checksum", [None, MD5, SHA256, MD5.upper().replace("MD5", "md5")])
def test_downloads_once(server, path, checksum):
    for _ in range(2):
        assert fetch(server.url("file"), path, checksum=checksum) == path
    assert path.read_bytes() == CONTENT
    assert server.requests == [("/file", None)]
    assert leftovers(path) == {"file"}


def test_goes_on_where_a_transfer_broke_off(server, path):
    server.break_next, server.broken_at = 2, 100_000
    fetch(server.url("file"), path, checksum=MD5)
    assert path.read_bytes() == CONTENT
    wanted = [range_ for _, range_ in server.requests]
    assert wanted == [None, "bytes=100000-", "bytes=200000-"]


def test_truncated_is_an_error_and_a_later_call_goes_on(server, path):
    server.break_next, server.broken_at = 2, 1000
    with pytest.raises(DataError, match="truncated: 2000 of 700000 bytes arrived"):
        fetch(server.url("file"), path, checksum=MD5, attempts=2)
    assert leftovers(path) == {"file.part"}
    fetch(server.url("file"), path, checksum=MD5)
    assert path.read_bytes() == CONTENT
    assert server.requests[-1] == ("/file", "bytes=2000-")


def test_a_server_without_ranges_begins_anew(server, path):
    server.ranges = False
    server.break_next, server.broken_at = 1, 1000
    fetch(server.url("file"), path, checksum=MD5)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("part", "checksum"),
    [(CONTENT, MD5), *((b"?" * length, MD5) for length in (10, 700_000, 800_000)), (b"?", None)],
    ids=["complete", "another", "as long", "longer", "without a checksum"],
)
def test_only_a_part_of_the_same_file_is_continued(server, path, part, checksum):
    path.parent.mkdir()
    path.with_name("file.part").write_bytes(part)
    fetch(server.url("file"), path, checksum=checksum)
    assert path.read_bytes() == CONTENT


def test_wrong_checksum(server, path):
    with pytest.raises(DataError, match=f"its md5 is {MD5[4:]}, expected 0123"):
        fetch(server.url("file"), path, checksum="md5:0123")
    assert leftovers(path) == set()
    assert len(server.requests) == 1  # the same bytes would come again


def test_a_damaged_file_in_place_is_named_and_kept(server, path):
    path.parent.mkdir()
    path.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"file is damaged .*delete it"):
        fetch(server.url("file"), path, checksum=MD5)
    assert path.read_bytes() == b"mine"
    assert server.requests == []


def test_not_found_is_not_asked_again(server, path):
    with pytest.raises(DataError, match="HTTP 404") as caught:
        fetch(server.url("other"), path)
    assert len(server.requests) == 1
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert leftovers(path) == set()


def test_the_next_address_is_tried(server, path):
    fetch([server.url("other"), server.url("file")], path, checksum=MD5)
    assert path.read_bytes() == CONTENT
    assert [name for name, _ in server.requests] == ["/other", "/file"]


def test_a_busy_server_is_asked_again(server, path):
    server.failures = 2
    fetch(server.url("file"), path, checksum=MD5)
    assert path.read_bytes() == CONTENT


def test_nobody_answers(path):
    with serving() as server:
        url = server.url("file")
    with pytest.raises(DataError, match="no answer"):
        fetch(url, path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_full(server, path):
    path.parent.mkdir()
    path.with_name("file.part").symlink_to("/dev/full")  # every write fails as on a full disk
    with pytest.raises(DataError, match="the disk is full"):
        fetch(server.url("file"), path, checksum=MD5)
    assert not path.exists()


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "folder").write_text("a file is in the way")
    with pytest.raises(DataError, match="cannot be written"):
        fetch(server.url("file"), tmp_path / "folder" / "file")


def test_two_at_once_download_once(server, path):
    threads = [
        threading.Thread(target=fetch, args=(server.url("file"), path), kwargs={"checksum": MD5})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() == CONTENT
    assert len(server.requests) == 1
    assert os.listdir(path.parent).count("file") == 1
