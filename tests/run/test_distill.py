"""`equilibria distill`, and `--solver` of the commands that solve."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import equilibria as eq
from equilibria.learned import Learned
from equilibria.run import neural, run
from equilibria.run.cli.main import main
from equilibria.run.weights import checksum, save_weights
from tiny_run import train

QUICK = ["--batches", "16", "--batch-size", "32", "--start-steps", "500", "--steps", "10"]
QUICK += ["--horizon", "5", "--budget", "4000"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = train(
        tmp_path_factory.mktemp("distil") / "run", "--solver.rtol", "1e-4", "--batch-size", "64"
    )
    assert main(["distil", str(folder), *QUICK]) == 0
    return folder


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_it_says_what_it_saves_and_is_used(trained, capsys):
    about = json.loads((trained / "neural.json").read_text())
    assert about["distillation"]["steps"] == 10
    assert {"the layer's own", "start", "Picard"} <= set(about["contest"])
    assert about["samples"] == 16 * 32 and about["dropped"] == 0
    assert main(["evaluate", str(trained)]) == 0
    assert main(["evaluate", str(trained), "--solver", "neural"]) == 0
    usual, learned = (
        json.loads((trained / name).read_text())
        for name in ("evaluation.json", "evaluation-changed.json")
    )
    assert learned["solver"] == "neural" and "solver" not in usual
    evals = [each["forward"]["evals"]["mean"] for each in (usual, learned)]
    assert evals[1] <= 0.95 * evals[0]
    assert learned["accuracy"] == pytest.approx(usual["accuracy"], abs=0.01)
    capsys.readouterr()


def test_the_sentence_at_the_end(copied, prints):
    shown = prints("distil", copied, *QUICK, "--overwrite", flat=True)
    assert "The learned solver takes" in shown and "evaluations per sample, against" in shown
    assert "% of the run's training time" in shown and "--solver neural" in shown


def test_what_is_not_worth_it_writes_nothing(copied, prints):
    """And keeps what there was."""
    path = copied / "neural.json"
    words = ["--start-steps", "0", "--steps", "0", "--batches", "2", "--batch-size", "8"]
    before = path.read_bytes()
    shown = prints("distil", copied, *words, "--overwrite", flat=True)
    assert "the previous learned solver is kept" in shown and path.read_bytes() == before
    for each in (path, copied / "neural.safetensors"):
        each.unlink()
    assert "Not worth it" in prints("distil", copied, *words)
    assert not path.exists()


def test_any_solver_by_name(trained, capsys):
    assert main(["evaluate", str(trained), "--solver", "picard"]) == 0
    assert json.loads((trained / "evaluation-changed.json").read_text())["solver"] == "Picard"
    assert main(["doctor", str(trained), "--solver", "neural", "--samples", "8"]) in (0, 3)
    assert "NeuralSolver" in capsys.readouterr().out


def test_it_is_not_replaced_unasked_and_can_be_tuned(copied, fails):
    assert "already has a learned solver" in fails("distil", copied, *QUICK)
    before = load_file(copied / "neural.safetensors")
    words = [*QUICK[:-2], "--tune"]
    words[words.index("--start-steps") + 1] = "10"
    assert main(["distil", str(copied), *words]) == 0
    after = load_file(copied / "neural.safetensors")
    assert before.keys() == after.keys()
    assert any((before[key] != after[key]).any() for key in before)


def test_it_is_tuned_on_images_without_labels(copied, tmp_path, capsys):
    folder = tmp_path / "images" / "deep"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(24):
        Image.fromarray(generator.integers(0, 255, (8, 8), np.uint8)).save(folder / f"{number}.png")
    (folder / "bad.png").write_text("no image")
    words = ["--tune", "--data", str(folder.parent), "--start-steps", "3", "--steps", "1"]
    assert main(["distil", str(copied), *words, "--batch-size", "5"]) == 0
    shown = capsys.readouterr()
    assert "1 of 25 images are left out: " in shown.err and "bad.png" in shown.err
    assert "Held-out batches" in shown.out


def test_predictions_by_another_learned_solver_are_not_continued(copied, tmp_path, fails):
    image, out = tmp_path / "image.png", tmp_path / "predictions"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(image)
    words = ["predict", str(copied), str(image), "--out", str(out), "--solver", "neural"]
    assert main(words) == 0
    before = (out / "predictions.jsonl").read_bytes()
    assert main(words) == 0  # the same solver: nothing is left to do

    weights, path = copied / "neural.safetensors", copied / "neural.json"
    own, about = path.read_text(), json.loads(path.read_text())
    path.write_text(json.dumps({**about, "solver": {**about["solver"], "horizon": 4}}))
    assert "by another learned solver of this run" in fails(*words)
    path.write_text(own)
    assert main(words) == 0

    other = Learned.of(about["learned"])
    other.load_state_dict({name: 0.9 * x for name, x in load_file(weights).items()})
    save_weights(weights, other)
    path.write_text(json.dumps({**about, "weights": checksum(weights)}))
    message = fails(*words)
    assert "by another learned solver of this run" in message and "--overwrite" in message
    assert (out / "predictions.jsonl").read_bytes() == before
    assert main([*words, "--overwrite"]) == 0


def test_weights_of_another_run_are_refused(copied, tmp_path, fails):
    other = train(tmp_path / "other", "--seed", "5")
    for name in ("neural.json", "neural.safetensors"):
        shutil.copy(copied / name, other / name)
    message = fails("evaluate", other, "--solver", "neural")
    assert "distilled from other weights than those the run has now" in message


def test_damaged_files_are_refused(copied, fails):
    weights, about = copied / "neural.safetensors", copied / "neural.json"

    def changed(before, after):
        assert before in about.read_text()
        return about.read_text().replace(before, after).encode()

    for path, content, said in (
        (weights, weights.read_bytes()[:-7], "is damaged or not a safetensors file"),
        (weights, b"", "is damaged or not a safetensors file"),
        (about, b"{", "is damaged"),
        (about, b"null", "is damaged"),
        (about, changed('"format": 1', '"format": 9'), "is of format 9"),
        (about, changed('"dense"', '"denser"'), "is damaged"),
        (about, changed('"horizon": 5', '"horizon": 0'), "is damaged (NeuralSolver(horizon=...)"),
        (about, changed('"rank": ', '"rank": -'), "is damaged"),
        (about, changed('"rank": ', '"rank": 100000000'), "does not fit"),
    ):
        whole = path.read_bytes()
        path.write_bytes(content)
        message = fails("evaluate", copied, "--solver", "neural")
        assert said in message
        assert "is of format" in said or f"`equilibria distill {copied} --overwrite`" in message
        path.write_bytes(whole)
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights)
    assert "belong to different solvers" in fails("evaluate", copied, "--solver", "neural")
    known = json.loads(about.read_text())
    spoilt = Learned.of(known["learned"])
    with torch.no_grad():
        next(spoilt.parameters()).fill_(torch.nan)
    save_weights(weights, spoilt)
    about.write_bytes(changed(known["weights"], checksum(weights)))
    message = fails("evaluate", copied, "--solver", "neural")
    assert "has weights that are not finite: train a new one" in message


def test_a_model_in_python(trained):
    loaded = run.load(trained)
    model = neural.attach(run.Folder(trained), loaded.model)
    solver = model.deq.eval_solver
    assert isinstance(solver, eq.NeuralSolver) and solver.rtol == 1e-4
    assert not any(p.requires_grad for p in model.deq.neural.parameters())


def test_a_run_without_an_equilibrium_is_refused(tmp_path, fails):
    folder = tmp_path / "explicit"
    words = ["train", "digits", "--model.name", "resnet", "--epochs", "1"]
    words += ["--task.samples", "100", "--model.widths", "[4,4]", "--model.blocks", "[1,1]"]
    words += ["--solver.name", "null", "--adjoint.name", "null"]
    assert main([*words, "--out", str(folder)]) == 0
    assert "there is no equilibrium to solve for" in fails("distil", folder)
