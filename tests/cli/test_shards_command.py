"""`equilibria shards`, and runs on what it has indexed."""

import json

import pytest
import tar_shards
import torch

from equilibria.cli.main import main

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


def test_a_run_on_shards_is_trained_resumed_evaluated_and_used(shards, capsys):
    run = shards / "run"
    assert main(["train", "digits", "--data", "shards", *QUICK, "--out", str(run)]) == 0
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["samples"] for record in records] == [24, 24]  # four batches of 24 images
    assert main(["train", str(run), "--resume", "--extend", "1"]) == 0
    before = json.loads((run / "evaluation.json").read_text())
    assert main(["evaluate", str(run)]) == 0
    after = json.loads((run / "evaluation.json").read_text())
    assert after["accuracy"] == before["accuracy"] and after["samples"] == 10
    picture = shards / "one.png"
    picture.write_bytes(tar_shards.picture(3))
    capsys.readouterr()
    assert main(["predict", str(run), str(picture)]) == 0
    assert "1 of 1 images predicted" in capsys.readouterr().out
    assert main(["report", str(run), "--no-doctor"]) == 0
    assert (run / "report.html").exists()


def test_a_run_does_not_go_on_with_other_shards(shards, capsys):
    run = shards / "run"
    assert main(["train", "digits", "--data", "shards", *QUICK, "--out", str(run)]) == 0
    tar_shards.write(shards / "shards" / "train-000.tar", tar_shards.labelled(range(50, 57)))
    assert main(["shards", "shards"]) == 0
    capsys.readouterr()
    said = refused(capsys, "train", run, "--resume", "--extend", "1")
    assert "data" in said and "shards" in said


def test_a_shard_that_changed_after_it_was_indexed_ends_the_run(shards, capsys):
    tar_shards.write(shards / "shards" / "train-001.tar", tar_shards.labelled(range(3)))
    said = refused(capsys, "train", "digits", "--data", "shards", *QUICK, "--out", shards / "run")
    assert "train-001.tar has 3 samples and its index says 12: make the index anew" in said


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
    tar_shards.write(shards / "other" / "data-000.tar", tar_shards.labelled(range(4)))
    assert "does not tell whether it is to train" in refused(capsys, "shards", "other")


def test_two_processes_decode_what_one_decodes(shards):
    from equilibria.tasks import Part
    from equilibria.train import recipe as recipes

    recipe = recipes.load(
        "digits", ["--task.data", "shards", "--task.crop", "0.5", "--task.size", "8"]
    )
    feed = recipe.task.load().feed(6, 0)
    for step in range(5):
        whole = feed.batch(step)
        parts = [feed.batch(step, Part(index, 2)) for index in range(2)]
        assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
        assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
