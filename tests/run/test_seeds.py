"""`equilibria train --seeds`: several runs, and the mean of what they end with."""

import json
import shutil
import statistics

import pytest

import tiny_run
from equilibria.metric import ACCURACY, LOSS
from equilibria.run.cli import seeds
from equilibria.run.cli.main import main


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "three"
    tiny_run.train(place, "--seeds", "0", "1", "2")
    return place


def accuracies(place):
    paths = sorted(place.glob("seed-*/evaluation.json"))
    return [json.loads(path.read_text())["accuracy"] for path in paths]


def test_each_seed_is_a_run_and_their_mean_is_printed(place, prints, fails):
    found, words = accuracies(place), ("train", "digits", "--out", place, "--seeds", 0)
    assert len(set(found)) == 3
    assert "already holds a run" in fails(*words)
    shown = prints(*words, 1, 2, "--resume")
    assert f"{100 * statistics.fmean(found):.2f} %" in shown
    assert f"{100 * statistics.stdev(found):.2f} %" in shown


def test_what_was_begun_is_finished_and_the_rest_is_trained(place, tmp_path):
    shutil.copytree(place, tmp_path / "again")
    before = accuracies(place)
    shutil.rmtree(tmp_path / "again" / "seed-2")
    (tmp_path / "again" / "seed-1" / "evaluation.json").unlink()
    tiny_run.train(tmp_path / "again", "--seeds", "0", "1", "2", "--resume")
    assert accuracies(tmp_path / "again") == before


def test_a_seed_that_diverged_is_in_the_table_and_in_the_status(tmp_path, capsys):
    words = ["--seeds", "0", "1", "--optimizer.lr", "1e30", "--out", str(tmp_path / "nan")]
    assert main(["train", "digits", *tiny_run.SMALL, *words]) == 3
    assert capsys.readouterr().out.count("diverged: the ") == 2
    result = {"loss": 1.0, "accuracy": 0.5, "forward": {"status": {"CONVERGED": 1.0}}}
    table = seeds.table({3: result, 4: "nan"}, [ACCURACY, LOSS])
    assert list(table.columns[1].cells) == ["50.00 %", "diverged"]
