"""Daily and sports activities: the archive or its folders, the split by persons, and damage."""

import io

import numpy as np
import pytest

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.recurrent.data import SequenceSet, dsa
from file_server import serve_entry, serving
from packed import zip_of

SEGMENTS = 2


def values(activity: int, person: int, segment: int) -> np.ndarray:
    """125 x 45 numbers, other ones in each file."""
    rows = np.arange(dsa.STEPS)[:, None] + np.arange(len(dsa.CHANNELS)) / 100
    return rows + 1000 * activity - 100 * person + segment / 8


def text(*which: int) -> bytes:
    content = io.StringIO()
    np.savetxt(content, values(*which), "%.5g", delimiter=",")
    return content.getvalue().encode()


@pytest.fixture(scope="module")
def files():
    return {
        f"a{activity:02}/p{person}/s{segment:02}.txt": text(activity, person, segment)
        for activity in range(1, 20)
        for person in range(1, 9)
        for segment in range(1, SEGMENTS + 1)
    }


@pytest.fixture(scope="module")
def archive(files):
    return zip_of({"": b"", **files}, "data/")


@pytest.fixture
def server(cache, archive, monkeypatch):
    """A server with a small archive, of two segments for each person and activity."""
    monkeypatch.setattr(dsa, "SEGMENTS", SEGMENTS)
    with serving() as server:
        server.files["daily+and+sports+activities.zip"] = archive
        serve_entry(monkeypatch, server, dsa, "DSA19")
        yield server


def check(found: SequenceSet) -> None:
    assert (found.title, found.labels, found.channels) == ("DSA-19", dsa.ACTIVITIES, dsa.CHANNELS)
    for split, persons in ((found.train, (1, 2, 3, 4)), (found.test, (5, 6, 7, 8))):
        assert split.inputs.shape == (19 * 4 * SEGMENTS, 125, 45)
        assert split.targets.bincount().tolist() == [4 * SEGMENTS] * 19
        assert set(split.groups.tolist()) == set(persons)
        for inputs, target, group in zip(split.inputs, split.targets, split.groups, strict=True):
            near = [values(int(target) + 1, int(group), segment) for segment in (1, 2)]
            # The files have five digits, 20,000 the largest number.
            assert min(abs(inputs.numpy() - each).max() for each in near) < 1


def test_segments_are_downloaded_once_and_kept(server, monkeypatch):
    check(data.load("dsa19", kind=SequenceSet))
    assert server.requests == [("/daily+and+sports+activities.zip", None)]
    monkeypatch.setattr(dsa, "_parse", None)  # they are in the cache
    check(data.load("dsa19", kind=SequenceSet))
    assert len(server.requests) == 1


@pytest.mark.parametrize("folder", ["dsa19", "dsa19/data", "."])
def test_the_unpacked_archive_is_found(server, files, tmp_path, folder):
    root = tmp_path / folder
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    first = data.load("dsa19", tmp_path, download=False)
    check(first)
    # Another content is not taken from the cache.
    (root / "a19/p8/s01.txt").write_bytes(text(19, 8, 2) + b"\n")
    assert data.load("dsa19", tmp_path, download=False).checksum != first.checksum
    (root / "a19/p8/s02.txt").unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        data.load("dsa19", tmp_path, download=False)
    assert server.requests == []


def test_the_papers_numbers_of_segments_come_out():
    persons = len(dsa.TESTED), dsa.PERSONS - len(dsa.TESTED)
    assert [len(dsa.ACTIVITIES) * each * dsa.SEGMENTS for each in persons] == [4560, 4560]
    assert len(dsa.CHANNELS) == 45 and dsa.CHANNELS[9] == "right arm acc_x"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a03/p2/s01\.txt of DSA-19 is damaged \(it is empty\)"),
        (b"1,2,x\n", r"s01\.txt of DSA-19 is damaged \(could not convert string 'x'"),
        (text(1, 1, 1)[:-900], r"s01\.txt of DSA-19 (has|is damaged)"),
        (b"1,2,3\n" * 125, r"has 125 lines of 3 numbers, .* expected 125 of 45"),
        (text(1, 1, 1).replace(b"1020.1,", b"nan,"), "or one that is not finite"),
        (None, r"does not contain a03/p2/s01\.txt: it is a different file"),
    ],
)
def test_a_damaged_segment_is_named(server, files, content, message):
    broken = {**files, "a03/p2/s01.txt": content or b""}
    if content is None:
        del broken["a03/p2/s01.txt"]
    server.files["daily+and+sports+activities.zip"] = zip_of(broken, "data/")
    with pytest.raises(DataError, match=message):
        data.load("dsa19")


@pytest.mark.parametrize("damage", ["cut off", "no archive", "overwritten"])
def test_a_damaged_archive_is_named(server, archive, damage):
    server.files["daily+and+sports+activities.zip"] = {
        "cut off": archive[:-500],
        "no archive": b"<html>",
        "overwritten": archive[:200] + bytes(200) + archive[400:],
    }[damage]
    with pytest.raises(DataError, match=r"(no \.zip file, or is cut|sent a page)"):
        data.load("dsa19")
