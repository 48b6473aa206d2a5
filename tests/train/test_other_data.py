"""A run's model on data that are not those of its training."""

from pathlib import Path

import pytest

from equilibria.tasks import CopyMemory, ImageClassification, LanguageModelling


def test_a_task_on_other_data_names_a_path_in_full_or_a_data_set(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    images, language = ImageClassification(valid=10), LanguageModelling(data="ptb", length=9)
    assert images.at("photos") == ImageClassification(data=str(tmp_path / "photos"), valid=10)
    assert images.at("mnist").data == images.at("digits").at("mnist").data == "mnist"
    assert images.at(Path("mnist")).data == str(tmp_path / "mnist")
    book = language.at("book.txt")
    assert book == LanguageModelling(file=str(tmp_path / "book.txt"), length=9)
    assert book.at("wikitext2") == LanguageModelling(data="wikitext2", length=9)
    with pytest.raises(ValueError, match="CopyMemory generates its own data"):
        CopyMemory().at("book.txt")
