"""Two processes train as one does."""

import re
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file

from equilibria.train.loop import fit

PROGRAM = """
import os
import sys
import torch
from accelerate import Accelerator
from rich.console import Console
from equilibria.train import recipe as recipes
from equilibria.train.loop import fit
from equilibria.train.run import Folder
from equilibria.train.trainer import Trainer

recipe, folder = recipes.load(sys.argv[1]), Folder(__import__("pathlib").Path(sys.argv[2]))
accelerator = Accelerator(cpu=True)
trainer = Trainer(recipe, recipe.task.load(), accelerator)
assert accelerator.num_processes == 2
if accelerator.is_main_process:
    folder.create(trainer.recipe)
accelerator.wait_for_everyone()
fit(trainer, folder, Console(quiet=True))
if trainer.stabiliser is not None:
    print("factor", trainer.stabiliser.factor)
accelerator.end_training()
sys.stdout.flush()
os._exit(0)  # Gloo's threads may abort while the interpreter shuts down
"""


BROKEN = """
from equilibria.train.loop import Interrupted

folder = Folder(folder.path.with_name("again"))
trainer = Trainer(recipe, recipe.task.load(), accelerator)
if accelerator.is_main_process:
    folder.create(trainer.recipe)
accelerator.wait_for_everyone()
try:
    fit(trainer, folder, Console(quiet=True), stop=lambda: trainer.step == 5)
except Interrupted:
    pass
torch.manual_seed(7)
trainer = Trainer(recipe, recipe.task.load(), accelerator)
fit(trainer, folder, Console(quiet=True), resume=True)
"""


def run_two(tree, tmp_path, more=""):
    """Train with two processes into tmp_path / "two"; what they printed."""
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tree))
    whole, end = PROGRAM.rsplit("accelerator.end_training()", 1)
    (tmp_path / "program.py").write_text(f"{whole}{more}accelerator.end_training(){end}")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run(
        [*command, "program.py", "tiny.yaml", "two"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_take_the_steps_of_one(make, quiet, tree, weights, tmp_path):
    # SGD, and tight solves: Adam would blow up the rounding of small gradients
    exact = {
        "task": {"name": "image_classification", "data": "digits"},
        "optimiser": {"name": "SGD", "lr": 0.5},
        "solver": {"name": "Anderson", "rtol": 1e-6, "max_evals": 60},
        "adjoint": {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-6}},
        "epochs": 1,
        "clip": 1.0,
    }
    tree.update(exact)
    alone, folder = make("one")
    fit(alone, folder, quiet)
    run_two(tree, tmp_path)
    together = load_file(tmp_path / "two" / "model.safetensors")
    for name, value in weights(alone).items():
        torch.testing.assert_close(together[name], value, rtol=1e-3, atol=1e-5)


def test_two_processes_penalise_the_same_steps_by_the_same_gamma(make, quiet, tree, tmp_path):
    controller = {"name": "EvaluationBudget", "evals": 4, "every": 2}
    tree["regulariser"] = {
        "name": "JacobianPenalty",
        "probability": 0.5,
        "controller": controller,
    }
    tree["correction"] = {"name": "FixedPointCorrection"}
    alone, folder = make("one")
    fit(alone, folder, quiet)
    factors = re.findall(r"factor (\S+)", run_two(tree, tmp_path))
    assert len(factors) == 2 and factors[0] == factors[1] != "1.0"
    one = folder.read_metrics()
    two = type(folder)(tmp_path / "two").read_metrics()
    for epoch, (a, b) in enumerate(zip(one, two, strict=True)):
        assert a["regulariser"]["applied"] == b["regulariser"]["applied"], epoch
        # Depths of the correction, and probes of the penalty, are those of one process.
        assert a["correction"]["loss"] == pytest.approx(b["correction"]["loss"], rel=1e-3)
        penalties = [each["regulariser"]["penalty"] or 0.0 for each in (a, b)]
        assert penalties[0] == pytest.approx(penalties[1], rel=1e-3)


def test_two_processes_share_the_streams_of_a_text(make, quiet, language, weights, tmp_path):
    """Each carries over what belongs to its rows; and both can be stopped and resumed."""
    for name in ("dropout", "embedding_dropout", "output_dropout"):
        language["model"][name] = 0.0
    language |= {
        "optimiser": {"name": "SGD", "lr": 0.5},
        "solver": {"name": "Anderson", "rtol": 1e-6, "max_evals": 80},
        "adjoint": {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-6}},
        "regulariser": None,
        "epochs": 2,
    }
    alone, folder = make("one", tree=language)
    fit(alone, folder, quiet)
    run_two(language, tmp_path, more=BROKEN)
    together = load_file(tmp_path / "two" / "model.safetensors")
    for name, value in weights(alone).items():
        torch.testing.assert_close(together[name], value, rtol=1e-3, atol=1e-5)
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(value, again[name]) for name, value in together.items())
    one, two = (type(folder)(tmp_path / name).read_metrics() for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        assert a["tokens"] == b["tokens"]
        assert a["valid"]["loss"] == pytest.approx(b["valid"]["loss"], rel=1e-4)
