"""Copy memory as a task, which makes its own data."""

import json

import pytest
import torch

from equilibria.run import config, evaluation
from equilibria.run.cli.parser import name_data
from equilibria.run.loop import fit
from equilibria.zoo.synthetic.task.copying import CopyMemory

COPYING = {
    "task": {"name": "copy_memory", "delay": 5, "train": 60, "test": 20},
    "model": {"name": "deq-trellisnet", "width": 12, "hidden": 8, "initial": "orthogonal"},
    "solver": {"name": "Anderson", "period": 3, "rtol": 1e-2, "max_evals": 20},
    "optimizer": {"name": "Adam", "lr": 0.01},
    "correction": {"name": "FixedPointCorrection"},
    "epochs": 4,
    "batch_size": 10,
    "eval_batch_size": 8,
    "probes": 2,
}


def test_copy_memory_counts_the_symbols_that_are_remembered(make, quiet):
    trainer, folder = make("copy", tree=COPYING)
    samples = trainer.task.samples
    inputs, targets = samples["train"][:4]
    output = torch.nn.functional.one_hot(targets, 10).float()

    class Sure(torch.nn.Module):
        def log_probs(self, given):
            return given.log_softmax(-1)

    found = trainer.task.sums(Sure(), output, targets)
    assert found["correct"] == found["answers"] == 40
    wrong = output.clone()
    wrong[:, -1] = 0.0  # whose likeliest is silence
    assert trainer.task.sums(Sure(), wrong, targets)["correct"] == 36
    assert not set(map(tuple, inputs.tolist())) & set(map(tuple, samples["test"][:4][0].tolist()))
    fit(trainer, folder, quiet)
    first, *_, last = folder.read_metrics()
    assert last["test"]["loss"] < 0.8 * first["test"]["loss"]
    assert 0 <= last["test"]["accuracy"] <= 1 and "perplexity" not in last["test"]
    evaluated = json.loads(folder.evaluation.read_text())
    assert list(evaluated["at"]) == ["1", "2", "3", "5", "8", "12"]
    assert evaluated["samples"] == 20
    assert evaluated["at"]["12"]["accuracy"] == pytest.approx(evaluated["accuracy"], abs=0.1)


def test_a_sequence_that_is_solved_in_pieces_is_judged_at_each_depth(make, quiet):
    options = ("--model.subsequence", "5", "--solver.rtol", "1e-5", "--solver.max_evals", "60")
    trainer, folder = make("pieces", *options, "--epochs", "1", tree=COPYING)
    fit(trainer, folder, quiet)
    evaluated = json.loads(folder.evaluation.read_text())
    assert list(evaluated["at"]) == ["1", "2", "3", "5", "8", "12"]
    assert len(trainer.model(trainer.task.samples["test"][:3][0]).solutions) == 5
    late = evaluation.evaluate(trainer.model, trainer.task, trainer.accelerator, depths=(1, 60))
    assert late["at"]["60"]["accuracy"] == late["accuracy"] == evaluated["accuracy"]


def test_data_of_a_task_of_ones_own_are_read_as_they_are(tmp_path):
    config = CopyMemory(delay=3, train=4, test=4)
    assert config.load_other(tmp_path).checksum == config.load().checksum


def test_no_other_data_are_taken():
    with pytest.raises(ValueError, match="CopyMemory generates its own data"):
        CopyMemory().at("book.txt")
    with pytest.raises(config.ConfigError, match="generates its own data: leave it out"):
        name_data("book.txt", CopyMemory())
