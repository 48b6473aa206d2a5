"""A file is the old one or the new one, also when the disk is full."""

import errno
import os

import pytest

from equilibria import files


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
