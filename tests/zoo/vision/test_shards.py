"""Shards of images: what a sample is, what an index tells of them, and what is refused."""

import json

import pytest
import torch

pytest.importorskip("PIL")
from tar_shards import folder, labeled, picture, write

from equilibria.run.data.storage import DataError
from equilibria.zoo.vision.data.shards import read_index
from equilibria.zoo.vision.data.shards import samples as samples_of
from equilibria.zoo.vision.data.shards.dataset import is_sharded, load, survey
from equilibria.zoo.vision.data.shards.images import class_of, image_of
from file_server import serving

PNG = picture(1)


def sample(**files):
    return {"__key__": b"007", **files}


def indexed(root, labels=None, **options):
    """A folder of shards with its indexes."""
    folder(root, **options)
    splits = {"train": sorted(map(str, root.glob("train-*"))), "test": []}
    splits["test"] = sorted(map(str, root.glob("val-*")))
    return survey(root, splits, labels)


# --- one sample ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"cls": b"3\n"}, 3),
        ({"cls": b"cat"}, "cat"),
        ({"txt": "\u00e9lan".encode()}, "\u00e9lan"),
        ({"json": b'{"label": 4}', "txt": b"a caption"}, 4),
        ({"json": b'{"label": "cat"}'}, "cat"),
        ({"json": b'{"width": 4}', "txt": b"dog"}, "dog"),
        ({"cls": b"-1"}, -1),
    ],
    ids=str,
)
def test_the_class_of_a_sample(files, found):
    assert class_of(sample(**files), "a.tar") == found


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"cls": b""}, "007 in a.tar: its file cls does not say which class"),
        ({"cls": b"\xff\xff"}, "its file cls does not say"),
        ({"json": b"{"}, "its file json does not say"),
        ({"json": b'{"label": true}'}, "its file json does not say"),
        ({"json": b'{"label": [1]}'}, "its file json does not say"),
        ({"json": b"[]"}, "its file json does not say"),
        ({"npy": b""}, "007 in a.tar has the files npy: expected one image"),
    ],
    ids=str,
)
def test_a_sample_that_does_not_say_its_class(files, said):
    with pytest.raises(DataError, match=said):
        class_of(sample(**files), "a.tar")


def test_a_sample_has_one_image():
    assert image_of(sample(webp=b"x", cls=b"1"), "a.tar") == b"x"
    for files in ({"cls": b"1"}, {"png": b"x", "jpg": b"y"}):
        with pytest.raises(DataError, match=r"007 in a\.tar has the files"):
            image_of(sample(**files), "a.tar")


def test_names_with_folders_dots_and_capitals(tmp_path):
    files = {"JPG": b"image", "seg.png": b"mask", "cls": b"1"}
    path = write(tmp_path / "a.tar", [("./n01/007", files), ("n01/008", {"jpg": b"other"})])
    write(tmp_path / "b.tar", [("__index__", {"json": b"{}"}), ("._9", {"jpg": b""})])
    found = samples_of(str(path))
    assert found[0] == {"__key__": b"n01/007", "jpg": b"image", "seg.png": b"mask", "cls": b"1"}
    assert found[1]["__key__"] == b"n01/008"
    assert samples_of(str(tmp_path / "b.tar")) == []


def test_a_file_that_is_there_twice(tmp_path):
    path = write(tmp_path / "a.tar", [("1", {"jpg": b"a"}), ("1", {"jpg": b"b"})])
    with pytest.raises(DataError, match=r"a\.tar has two files 1\.jpg"):
        samples_of(str(path))


# --- the index -----------------------------------------------------------------------------------


def test_an_index_tells_counts_classes_sizes_and_moments(tmp_path):
    found = indexed(tmp_path / "data")
    assert [shard.samples for shard in found["train"].shards] == [7, 12, 5]
    assert found["train"].counts == {"0": 12, "1": 12} and found["test"].counts["0"] == 5
    index = load(tmp_path / "data", size=None)
    assert index.labels == ("0", "1") and index.shape == (3, 8, 8) and not index.gray
    images = torch.cat([index.splits["train"][k : k + 5][0] for k in range(0, 24, 5)])
    mean, deviation = images.mean((0, 2, 3)), images.std((0, 2, 3), correction=0)
    torch.testing.assert_close(torch.tensor(index.moments.mean), mean)
    torch.testing.assert_close(torch.tensor(index.moments.deviation), deviation)
    gray = load(tmp_path / "data", channels=1)
    assert gray.shape == (1, 8, 8) and len(gray.moments.mean) == 1
    assert gray.smallest == "00000 in train-000.tar (8 x 8 pixels)".replace(
        "train", str(tmp_path / "data" / "train")
    )


def test_an_index_can_move_with_its_shards_and_has_the_same_checksum(tmp_path):
    indexed(tmp_path / "data")
    before = load(tmp_path / "data")
    (tmp_path / "data").rename(tmp_path / "moved")
    after = load(tmp_path / "moved")
    indexed(tmp_path / "other", side=9)
    assert before.checksum != load(tmp_path / "other").checksum
    assert before.checksum == after.checksum
    assert torch.equal(after.splits["test"][0:3][0], load(tmp_path / "moved").splits["test"][:3][0])


def test_shards_elsewhere_are_named_by_their_whole_path_or_address(tmp_path):
    path = write(tmp_path / "far" / "a.tar", labeled(range(4)))
    with serving() as server:
        server.files["b.tar"] = path.read_bytes()
        (tmp_path / "index").mkdir()
        survey(tmp_path / "index", {"train": [str(path)], "test": [server.url("b.tar")]})
        urls = [
            read_index(tmp_path / "index" / f"{split}.json")[0].url for split in ("train", "test")
        ]
        assert urls == [str(path), server.url("b.tar")]
        found = load(tmp_path / "index")
        assert found.splits["test"][:4][1].tolist() == [0, 1, 0, 1]


def test_classes_by_name_are_sorted_and_those_of_a_file_are_taken_as_they_are(tmp_path):
    named = [(f"{n}", {"png": picture(n), "cls": b"dog" if n % 2 else b"cat"}) for n in range(4)]
    splits = {"train": [str(write(tmp_path / "a.tar", named))], "test": [str(tmp_path / "a.tar")]}
    survey(tmp_path, splits)
    assert load(tmp_path).labels == ("cat", "dog")
    assert load(tmp_path).splits["train"][:4][1].tolist() == [0, 1, 0, 1]
    survey(tmp_path, splits, ["dog", "cow", "cat"])
    assert load(tmp_path).splits["train"][:4][1].tolist() == [2, 0, 2, 0]
    with pytest.raises(DataError, match="has the class 'cat': expected 0 to 1, or one of 2 names"):
        survey(tmp_path, splits, ["dog", "cow"])


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([("1", {"png": PNG, "cls": b"0"}), ("2", {"png": PNG, "cls": b"a"})], "--classes FILE"),
        ([("1", {"png": PNG, "cls": b"-1"})], r"1 in .*a\.tar has the class -1"),
        ([("1", {"png": b"GIF", "cls": b"0"})], r"1 in .*a\.tar is not an image that Pillow"),
        ([("1", {"png": PNG[:90], "cls": b"0"})], r"1 in .*a\.tar is damaged"),
        ([("1", {"png": picture(1, mode="I;16"), "cls": b"0"})], "has 16 bits per channel"),
        ([("1", {"cls": b"0"})], "has the files cls: expected one image"),
        ([], "has no samples"),
    ],
    ids=["mixed", "negative", "text", "cut", "deep", "none", "empty"],
)
def test_what_cannot_be_indexed(tmp_path, samples, said):
    path = write(tmp_path / "a.tar", samples)
    with pytest.raises(DataError, match=said):
        survey(tmp_path, {"train": [str(path)]})
    assert not (tmp_path / "train.json").exists()


def test_an_index_that_is_damaged_or_not_ours_is_named(tmp_path):
    indexed(tmp_path)
    path = tmp_path / "train.json"
    whole = json.loads(path.read_text())
    assert is_sharded(tmp_path)
    for key, value in (("labels", []), ("moments", {}), ("size", [1])):
        path.write_text(json.dumps({**whole, "images": {**whole["images"], key: value}}))
        with pytest.raises(DataError, match=r"train\.json is damaged .*equilibria shards"):
            load(tmp_path)
    path.write_text(json.dumps({"shardlist": whole["shardlist"]}))
    with pytest.raises(DataError, match=r"does not say which classes.*equilibria shards"):
        load(tmp_path)
    changed = {**whole["images"], "labels": ["a", "b"]}
    path.write_text(json.dumps({**whole, "images": changed}))
    with pytest.raises(DataError, match="have different classes"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"has no train\.json, .* to learn from"):
        load(tmp_path)
    assert set(load(tmp_path, whole=True).splits) == {"test"}
    (tmp_path / "test.json").write_text("{}")
    assert not is_sharded(tmp_path)


def test_images_that_differ_need_a_size_or_channels(tmp_path):
    mixed = [
        ("1", {"png": picture(1, side=9), "cls": b"0"}),
        ("2", {"jpg": picture(2, mode="L", kind="jpeg"), "cls": b"1"}),
    ]
    path = str(write(tmp_path / "a.tar", mixed))
    survey(tmp_path, {"train": [path], "test": [path]})
    with pytest.raises(DataError, match=r"not all RGB or all grey \(2 of mode RGB, 2 of mode L\)"):
        load(tmp_path, size=8)
    with pytest.raises(DataError, match=r"differ in size: .*--task.size 64"):
        load(tmp_path, channels=3)
    images, _ = load(tmp_path, size=6, channels=1).splits["train"][:2]
    assert images.shape == (2, 1, 6, 6)


# --- images of shards ----------------------------------------------------------------------------


def test_images_are_given_in_order_wherever_they_are_asked_for(tmp_path):
    indexed(tmp_path)
    images = load(tmp_path).splits["train"]
    whole, targets = images[0:24]
    assert len(images) == 24 and targets.tolist() == [n % 2 for n in range(24)]
    places = torch.tensor([20, 3, 8, 7, 23])
    some, classes = images[places]
    assert torch.equal(some, whole[places]) and torch.equal(classes, targets[places])
    first = images.first(9)
    assert torch.equal(first[0:9][0], whole[:9])
    assert images.renumber([5, 4])[0:3][1].tolist() == [5, 4, 5]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"png": PNG[:90]}, r"00002 in .*train-000\.tar is damaged"),
        ({"png": picture(2, side=9)}, r"00002 in .* has 9 x 9 pixels: expected 8 x 8"),
        ({"cls": b"2"}, r"00002 in .* has the class 2: expected 0 to 1"),
        (None, "has 5 samples and its index says 7: rebuild the index"),
    ],
    ids=["damaged", "size", "class", "fewer"],
)
def test_an_image_that_has_changed_is_named(tmp_path, change, said):
    indexed(tmp_path)
    bad = labeled(range(5 if change is None else 7))
    bad[2][1].update(change or {})
    write(tmp_path / "train-000.tar", bad)
    with pytest.raises(DataError, match=said):
        load(tmp_path).splits["train"][0:7]
