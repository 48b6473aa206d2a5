"""A file is the old one or the new one, also when the disk is full."""

import errno
import os

import pytest

from applications import needs
from equilibria import files
from equilibria.run.data import DataError
from equilibria.zoo.io.vocabulary import Vocabulary


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"x": 1})
    files.write_text(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    files.write_text(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, where):
    path = tmp_path / "a"
    files.write_text(path, "old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save(file):
        file.write(b"half")
        if where == "write":
            full()

    if where == "fsync":
        monkeypatch.setattr(files.os, "fsync", full)
    if where == "replace":
        monkeypatch.setattr(files.Path, "replace", full)
    with pytest.raises(OSError, match="No space left on device; nothing was changed") as caught:
        files.write(path, save)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def images(folder):
    from equilibria.zoo.vision.task.classification import ImageClassification

    ImageClassification(data="digits").load().save(folder)
    return "images.json"


def graphs(folder):
    from equilibria.zoo.graph.task.graphs import Known

    Known(level="node", source="Mine", labels=("a", "b"), features=3).save(folder)
    return "graphs.json"


def vocabulary(folder):
    Vocabulary(("<unk>",), (1,), "characters").save(folder / "vocabulary.json")
    return "vocabulary.json"


def index(folder):
    from equilibria.zoo.vision.data import shards

    shards.write_index(folder / "index.json", [shards.Shard("a.tar", 1)])
    return "index.json"


@pytest.mark.parametrize(
    "save",
    [
        *(pytest.param(each, marks=needs("vision")) for each in (images, index)),
        pytest.param(graphs, marks=needs("graph")),
        vocabulary,
    ],
)
def test_what_describes_the_data_is_whole_or_not_there(save, tmp_path, monkeypatch):
    path = tmp_path / save(tmp_path)
    path.write_text("old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises((OSError, DataError)):
        save(tmp_path)
    assert path.read_text() == "old"
