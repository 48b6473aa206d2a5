"""A run's model on texts that are not that of its training."""

from dataclasses import replace

import pytest

from equilibria.zoo.io import download
from equilibria.zoo.language import data as text
from equilibria.zoo.language.data import published
from equilibria.zoo.language.task.language import LanguageModeling


def test_a_task_on_other_data_names_a_path_in_full_or_a_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    language = LanguageModeling(data="ptb", length=9)
    book = language.at("book.txt")
    assert book == LanguageModeling(file=str(tmp_path / "book.txt"), length=9)
    assert book.at("wikitext2") == LanguageModeling(data="wikitext2", length=9)


# --- data that are read as a run's own -----------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own for encoded texts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_a_text_is_encoded_with_the_vocabulary_of_another(cache, tmp_path, unit):
    (tmp_path / "own.txt").write_text("the cat sat .\n" * 20)
    (tmp_path / "other.txt").write_text("the rat sat .\nthe cat ran .\n" * 30)
    own = text.load(file=tmp_path / "own.txt", unit=unit)
    plain = text.load(file=tmp_path / "other.txt", unit=unit)
    for _ in range(2):  # made, and from the cache
        other = text.load(file=tmp_path / "other.txt", vocabulary=own.vocabulary)
        assert other.vocabulary == own.vocabulary and list(other.splits) == ["test"]
        known = own.vocabulary.encode((tmp_path / "other.txt").read_text())
        assert other.splits["test"][:].tolist() == known
        statistics = other.statistics["test"]
        assert statistics.unknown == known.count(own.vocabulary.unknown) > 0
        assert other.checksum != plain.checksum
    assert text.load(file=tmp_path / "other.txt", unit=unit).checksum == plain.checksum
    fewer = text.load(file=tmp_path / "other.txt", unit=unit, min_count=40).vocabulary
    assert text.load(file=tmp_path / "other.txt", vocabulary=fewer).vocabulary == fewer


def test_a_named_text_keeps_its_splits(cache, tmp_path, monkeypatch):
    for split, content in {"train": "a b\n" * 9, "valid": "b c\n", "test": "c a\n"}.items():
        (tmp_path / f"ptb.{split}.txt").write_text(content)
    sums = {file.name: download.digest(file) for file in tmp_path.glob("ptb.*.txt")}
    remote = replace(published.PTB.remotes[0], checksums=sums)
    monkeypatch.setattr(published, "PTB", replace(published.PTB, remotes=(remote,)))
    (tmp_path / "own.txt").write_text("b c d\n" * 30)
    own = text.load(file=tmp_path / "own.txt", unit="words")
    own.vocabulary.save(tmp_path / "vocabulary.json")
    task = LanguageModeling(data="ptb").load_other(tmp_path, tmp_path)
    assert task.splits == ("train", "valid", "test") and task.eval_split == "valid"
    vocabulary = task.corpus.vocabulary
    assert vocabulary == own.vocabulary and task.baseline == ""
    assert vocabulary.decode(task.corpus.splits["valid"][:]) == "b c\n"
    assert vocabulary.decode(task.corpus.splits["test"][:]) == "c <unk>\n"
