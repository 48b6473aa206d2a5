"""Samples in shards: which a step gets, on any number of processes, and which are refused."""

import io
import itertools
import json
import sys
import time
from collections import Counter

import numpy
import pytest
import torch
from tar_shards import write

from equilibria.run.data.storage import DataError
from equilibria.run.tasks import Part
from equilibria.zoo.vision.data import shards as files
from equilibria.zoo.vision.data.shards import Shard, count, read_index, write_index
from equilibria.zoo.vision.task.streaming import Sharded

SIZES = (5, 9, 1, 7, 12, 3)
SHARDS = [Shard(f"shard-{n}", size) for n, size in enumerate(SIZES)]


def raw(url):
    """The samples of a shard that stands in for an archive."""
    number = int(url.rpartition("-")[2].partition(".")[0])
    first = sum(SIZES[:number])
    return [{"cls": str(first + n).encode()} for n in range(SIZES[number])]


def decode(sample):
    number = int(sample["cls"])
    return torch.full((2,), float(number)), number


def feed(batch_size=6, seed=0, **options):
    return Sharded(SHARDS, batch_size, seed, decode, **{"read": raw, **options})


def equal_shards(size, count=8, **options):
    """A feed of shards of a size, and how often it has asked for each."""
    asked = Counter()

    def read(url):
        asked[url] += 1
        return [{"cls": b"0"}] * size

    shards = [Shard(f"shard-{n}", size) for n in range(count)]
    return Sharded(shards, seed=0, decode=decode, read=read, **options), asked


def seen(one, step, processes):
    parts = [one.batch(step, Part(n, processes)).targets for n in range(processes)]
    return torch.cat(parts).tolist()


@pytest.mark.parametrize("lanes", [1, 2, 6])
def test_each_sample_is_seen_once_on_2_then_1_then_4_processes(lanes):
    one = feed(12, lanes=lanes) if lanes != 6 else feed(lanes=lanes)
    whole = [one.batch(step).targets.tolist() for step in range(2 * one.steps)]
    changing = []
    for step in range(2 * one.steps):  # each process is a new one, as after a restart
        processes = (2, 1, 4)[3 * step // (2 * one.steps)]
        changing.append(seen(feed(one.batch_size, lanes=lanes), step, processes))
    assert changing == whole
    for number in (0, 1):
        read = [x for batch in whole[number * one.steps :][: one.steps] for x in batch]
        assert len(read) == one.steps * one.batch_size
        assert max(Counter(read).values()) == 1


def test_passes_and_seeds_have_orders_of_their_own():
    one, other = feed(), feed(seed=1)
    first = [x for step in range(one.steps) for x in seen(one, step, 1)]
    second = [x for step in range(one.steps, 2 * one.steps) for x in seen(one, step, 1)]
    assert first != second and first[:6] != seen(other, 0, 1)
    assert first != sorted(first)
    # Within a shard too.
    single = Sharded([Shard("shard-4", 12)], 12, 0, decode, read=raw)
    assert sorted(seen(single, 0, 1)) != seen(single, 0, 1)
    assert seen(single, 0, 1) != seen(single, 1, 1)


def test_a_batch_has_inputs_targets_and_a_size():
    batch = feed().batch(0)
    assert batch.inputs.shape == (6, 2) and batch.targets.dtype == torch.int64
    assert batch.samples == 6 and batch.begins
    assert torch.equal(batch.inputs[:, 0].long(), batch.targets)


def test_with_lanes_a_process_reads_shards_of_its_own():
    feeds = [equal_shards(12, batch_size=12, lanes=2) for _ in range(2)]
    for rank, (one, _) in enumerate(feeds):
        for step in range(one.steps):
            one.batch(step, Part(rank, 2))
    first, second = (asked for _, asked in feeds)
    assert set(first) & set(second) == set()
    assert all(set(each.values()) == {1} and len(each) == 4 for each in (first, second))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 38}, "the shards have only 37 samples"),
        ({"lanes": 4}, "lanes must divide batch_size, 6,"),
        ({"lanes": 0}, "lanes must divide batch_size, 6,"),
    ],
)
def test_what_fills_no_batch_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        feed(**options)


def test_a_shard_that_is_not_what_the_index_says_is_named():
    one = Sharded([Shard("shard-0", 6)], 6, 0, decode, read=raw)
    with pytest.raises(DataError, match="shard-0 has 5 samples and its index says 6"):
        one.batch(0)


def test_an_index_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "train.json"
    write_index(path, [Shard("a.tar", 3), Shard("https://example.org/b.tar", 4)])
    first, second = read_index(path)
    assert first == Shard(str(tmp_path / "a.tar"), 3)
    assert second == Shard("https://example.org/b.tar", 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no index of shards; expected"),
        ('{"shards": []}', "is no index of shards"),
        ('{"shardlist": [{"url": "a.tar"}]}', "is no index of shards"),
        ('{"shardlist": []}', "lists no shards"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": 0}]}', "has 0 samples"),
    ],
)
def test_another_file_is_no_index(tmp_path, text, said):
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        read_index(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_index(tmp_path / "absent.json")


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "webdataset", None)
    monkeypatch.setitem(sys.modules, "webdataset.gopen", None)
    with pytest.raises(DataError, match=r"s3://.*pip install 'equilibria\[stream\]'"):
        files.samples("s3://bucket/train-0.tar")


def test_the_next_shard_of_each_lane_is_read_before_it_is_needed():
    one, asked = equal_shards(6, batch_size=4, lanes=2)
    one.batch(0)
    # Two lanes of four shards each: the first of each, and the second in the background.
    until = time.monotonic() + 60
    while len(asked) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(asked) == asked.total() == 4
    for step in range(1, one.steps):
        one.batch(step)
    assert asked == {f"shard-{n}": 1 for n in range(8)}


def test_an_error_of_a_shard_that_is_read_ahead_comes_when_it_is_needed():
    asked = []

    def read(url):
        asked.append(url)
        if asked[1:]:
            raise DataError(f"{url} is damaged")
        return [{"cls": b"0"}] * 6

    one = Sharded([Shard(f"shard-{n}", 6) for n in range(2)], 6, 0, decode, read=read)
    assert one.batch(0).samples == 6
    with pytest.raises(DataError, match=r"shard-\d is damaged"):
        one.batch(1)


def test_micro_batches_do_not_read_a_shard_again():
    one, asked = equal_shards(6, batch_size=4, lanes=2)
    for step in range(one.steps):
        for micro in range(2):
            one.batch(step, Part().divide(micro, 2))
    assert set(asked.values()) == {1}


# --- archives ------------------------------------------------------------------------------------


@pytest.fixture
def archives(tmp_path):
    """Shards of arrays with a class each."""
    paths, numbers = [], itertools.count()
    for place, size in enumerate(SIZES):
        samples = []
        for number in itertools.islice(numbers, size):
            array = io.BytesIO()
            numpy.save(array, numpy.full(3, number, dtype=numpy.float32))
            files = {"npy": array.getvalue(), "cls": str(number).encode()}
            samples.append((f"{number:06}", files))
        paths.append(write(tmp_path / f"train-{place}.tar", samples))
    return paths


def array(sample):
    inputs = numpy.load(io.BytesIO(sample["npy"]), allow_pickle=False)
    return torch.from_numpy(inputs), int(sample["cls"])


def test_tar_archives_are_read(archives, tmp_path):
    write_index(tmp_path / "train.json", count(list(map(str, archives))))
    index = read_index(tmp_path / "train.json")
    assert [shard.samples for shard in index] == list(SIZES)
    one = Sharded(index, 6, 0, array, lanes=2)
    read = []
    for step in range(one.steps):
        batch = one.batch(step)
        assert torch.equal(batch.inputs, batch.targets[:, None].float().expand(6, 3))
        read += batch.targets.tolist()
    assert len(set(read)) == len(read) == 36
    assert read == [x for step in range(one.steps) for x in seen(feed(lanes=2), step, 3)]
    assert json.loads((tmp_path / "train.json").read_text())["shardlist"][0]["nsamples"] == 5


def test_what_is_no_archive_is_named(archives, tmp_path):
    whole = archives[1].read_bytes()
    archives[1].write_bytes(whole[:700])
    with pytest.raises(DataError, match=r"train-1\.tar"):
        files.samples(str(archives[1]))
    with pytest.raises(DataError, match=r"absent\.tar"):
        files.samples(str(tmp_path / "absent.tar"))
