"""An encoded text is whole or not there, made once, and made anew where it is damaged."""

import json
import os
import threading
from pathlib import Path

import pytest

from equilibria.run.data import DataError
from equilibria.zoo.language import data as text
from equilibria.zoo.language.data import corpus as encode
from equilibria.zoo.language.data import corpus as reading

PROSE = "".join(f"line {i} has {i % 7} words\n" for i in range(200))


@pytest.fixture
def file(cache, tmp_path):
    path = tmp_path / "My text, 2nd.txt"
    path.write_text(PROSE)
    return path


@pytest.fixture
def made(monkeypatch):
    """The folders that are made, in order."""
    folders: list[Path] = []
    make = encode._make

    def record(folder: Path, *rest: object) -> None:
        folders.append(folder)
        make(folder, *rest)

    monkeypatch.setattr(encode, "_make", record)
    return folders


def test_encoded_once(file, made, cache):
    first = text.load(file=file, unit="words")
    again = text.load(file=file, unit="words")
    assert made == [first.folder]
    assert first.folder.parent == cache / "equilibria" / "text"
    assert first.folder.name.startswith("My-text--2nd-words-")
    assert first.checksum == again.checksum
    assert first.vocabulary == again.vocabulary
    assert first.statistics == again.statistics
    assert (first.name, first.source) == ("My text, 2nd", str(file))
    assert {path.name for path in first.folder.iterdir()} == {
        *("corpus.json", "vocabulary.json", "train.bin", "valid.bin", "test.bin")
    }


def test_what_lies_there_can_be_read_by_others(file):
    corpus = text.load(file=file, unit="words")
    info = json.loads((corpus.folder / "corpus.json").read_text())
    assert info["statistics"]["test"]["tokens"] == len(corpus.splits["test"])
    assert info["source"] == str(file)
    assert info["vocabulary"] == corpus.vocabulary.size
    assert text.Vocabulary.load(corpus.folder / "vocabulary.json") == corpus.vocabulary


@pytest.mark.parametrize(
    "other",
    [
        {"unit": "characters"},
        {"min_count": 2},
        {"max_size": 9},
        {"valid_share": 0.2},
        {"test_share": 0.2},
    ],
    ids=str,
)
def test_other_options_are_another_corpus(file, made, other):
    one = text.load(file=file, unit="words")
    two = text.load(file=file, **{"unit": "words", **other})
    assert len(set(made)) == 2
    assert one.checksum != two.checksum


def test_the_content_counts_and_not_the_name(file, made, tmp_path):
    one = text.load(file=file)
    copy = tmp_path / "copy.txt"
    copy.write_text(PROSE)
    assert text.load(file=copy).checksum == one.checksum
    file.write_text(PROSE + "more\n")
    os.utime(file, (0, 0))
    assert text.load(file=file).checksum != one.checksum
    assert len(made) == 3


@pytest.mark.parametrize(
    "name", ["corpus.json", "vocabulary.json", "train.bin", "valid.bin", "test.bin"]
)
@pytest.mark.parametrize("how", ["gone", "empty", "shorter", "other"])
def test_damaged_is_made_anew(file, made, name, how):
    whole = text.load(file=file, unit="words")
    path = whole.folder / name
    content = path.read_bytes()
    path.unlink()
    if how != "gone":
        changed = bytes([content[0] ^ 1]) + content[1:]
        path.write_bytes({"empty": b"", "shorter": content[:-2], "other": changed}[how])
    again = text.load(file=file, unit="words")
    assert made == [whole.folder] * 2
    assert path.read_bytes() == content
    assert again.checksum == whole.checksum


def test_stopped_on_the_way(file, made, monkeypatch):
    with monkeypatch.context() as patch:
        # As if killed: not even the clearing away runs.
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(encode.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            text.load(file=file)
    folder = made[0]
    assert not folder.exists()
    assert next(folder.parent.glob(f".{folder.name}.*.tmp")).is_dir()
    corpus = text.load(file=file)
    assert corpus.folder == folder
    left = {path.name for path in folder.parent.iterdir()}
    assert left == {folder.name, f".{folder.name}.lock"}


def test_several_at_once(file, made):
    found: list[text.Corpus] = []
    threads = [
        threading.Thread(target=lambda: found.append(text.load(file=file))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len({corpus.checksum for corpus in found}) == 1
    assert len(found) == 4


def test_a_text_that_changes_meanwhile(file, monkeypatch):
    texts = reading.read_texts

    def late(*arguments: object):
        with file.open("a") as end:
            end.write("more\n")
        return texts(*arguments)

    monkeypatch.setattr(reading, "read_texts", late)
    with pytest.raises(DataError, match="changed while it was read"):
        text.load(file=file)


def test_a_cache_that_cannot_be_written(file, cache):
    cache.write_text("a file is in the way")
    with pytest.raises(DataError, match=r"cannot be written to .*XDG_CACHE_HOME"):
        text.load(file=file)


def test_disk_full(file, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(encode, "_encode", full)
    with pytest.raises(DataError, match="the disk is full: free some space"):
        text.load(file=file)
