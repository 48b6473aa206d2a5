"""`equilibria shards`, and runs on what it has indexed."""

import pytest
import tar_shards

from equilibria.run.cli.main import main

QUICK = (
    *("--epochs", "2", "--batch-size", "6", "--probes", "2", "--model.width", "8"),
    *("--model.shape", "[3, 8, 8]", "--model.classes", "2"),
)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tar_shards.folder(tmp_path / "shards")
    assert main(["shards", "shards"]) == 0
    return tmp_path


def refused(capsys, *words):
    assert main([*map(str, words)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_shard_that_changed_after_it_was_indexed_ends_the_run(shards, capsys):
    tar_shards.write(shards / "shards" / "train-001.tar", tar_shards.labeled(range(3)))
    said = refused(capsys, "train", "digits", "--data", "shards", *QUICK, "--out", shards / "run")
    assert "train-001.tar has 3 samples and its index says 12: rebuild the index" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there are no archives (*.tar) in nowhere"),
        (["out", "--train", "none-*.tar"], "no file matches none-*.tar"),
        (["out", "--train", "a-{3..1}.tar"], "the range {3..1} is empty"),
        (["out", "--train", "shards/train-000.tar", "shards/train-000.tar"], "is named twice"),
        (["out", "--train", "missing.tar"], "missing.tar"),
    ],
)
def test_what_cannot_be_indexed_is_named(shards, capsys, words, said):
    assert said in refused(capsys, "shards", *words)
    assert not list(shards.glob("out/*.json"))


def test_names_that_tell_no_split_are_asked_for(shards, capsys):
    tar_shards.write(shards / "other" / "data-000.tar", tar_shards.labeled(range(4)))
    assert "does not tell whether it is to train" in refused(capsys, "shards", "other")
