"""Options that name a text."""

import pytest

from equilibria.run import config
from equilibria.run import recipe as recipes
from equilibria.run.cli.parser import name_data
from equilibria.zoo.language.task.language import LanguageModeling


def test_data_are_named_by_a_file_or_by_the_name_of_a_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("a b")
    task = LanguageModeling(data="ptb")
    named = name_data("book.txt", task)
    assert named == ["--task.data=null", f"--task.file={tmp_path / 'book.txt'}"]
    assert recipes.load("lm-ptb", named).task.file == str(tmp_path / "book.txt")
    assert name_data("wikitext2", task) == ["--task.data=wikitext2"]
    assert name_data("ptb", task) == []
    with pytest.raises(
        config.ConfigError, match="no such file, nor a text of that name; those are"
    ):
        name_data("nothere", task)
    with pytest.raises(config.ConfigError, match="did you mean 'ptb'"):
        name_data("pbt", task)


def test_the_two_that_name_data_are_one_setting(tmp_path):
    folder = tmp_path / "texts.txt"
    folder.write_text("a b c")
    one = recipes.load("lm-text", ["--task.file", str(folder)]).task
    assert one == recipes.load("lm-text").task.at(folder)
