"""`equilibria export`, as a user meets it."""

import re
import shutil

import pytest
import torch
import yaml

from equilibria import files
from equilibria.run.cli import export as command
from equilibria.run.cli.main import main

DATA = {"name": "image_classification", "data": "digits", "valid": 200}
RECIPES = {
    "dense": {
        "model": {"name": "dense", "width": 16},
        "solver": {"name": "Picard", "rtol": 1e-3, "max_evals": 30},
    },
    "resnet": {"model": {"name": "resnet", "widths": [8], "blocks": [1]}},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    for name, own in RECIPES.items():
        recipe = {"task": DATA, **own, "epochs": 1, "batch_size": 256, "probes": 4}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
        assert main(["train", str(folder / f"{name}.yaml"), "--out", str(folder / name)]) == 0
    return folder


def test_a_run_becomes_a_file_that_is_run_without_it(runs, tmp_path, prints):
    out = tmp_path / "net.pt2"
    shown = prints("export", runs / "dense", "--out", out, "--evals", 9)
    assert f"{out.stat().st_size / 1000:.1f} KB" in shown
    assert "9, anderson" in shown and "(chosen)" not in shown
    assert "relative residual after them" in shown
    assert "accuracy on 200 valid samples: file, PyTorch" in shown
    assert "batch x 1 x 8 x 8" in shown
    logits = torch.export.load(out).module()(torch.rand(7, 1, 8, 8))
    assert logits.shape == (7, 10)


def test_both_differences_are_printed_where_there_is_a_solve(runs, tmp_path, prints, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # a row is a line

    def shown(run, *argv):
        out = prints("export", runs / run, "--out", tmp_path / f"{run}{len(argv)}.pt2", *argv)
        row = r"difference of a logit from ([\w' ]+): absolute, relative[ │]+([\d.e+-]+),"
        return {k: float(v) for k, v in re.findall(row, out)}

    few = shown("dense", "--evals", "2", "--method", "picard")
    assert few.keys() == {"the same evaluations in PyTorch", "the run's own solves"}
    assert few["the same evaluations in PyTorch"] < 1e-4 < few["the run's own solves"]
    many = shown("dense", "--evals", "25", "--method", "picard", "--tolerance", "0.1")
    assert many["the run's own solves"] < 0.3 * few["the run's own solves"]
    assert shown("resnet").keys() == {"PyTorch"}  # nothing is solved


def test_evaluations_are_chosen_where_none_are_named(runs, tmp_path, prints):
    argv = ["--out", tmp_path / "net.pt2", "--method", "picard", "--split", "test"]
    shown = prints("export", runs / "dense", *argv, "--samples", 64)
    assert ", picard (chosen)" in shown
    assert "on 64 test samples" in shown
    assert "predictions other than the run's" in shown


def test_quiet_prints_the_file_alone(runs, tmp_path, prints):
    out = tmp_path / "net.pt2"
    assert prints("export", runs / "resnet", "--out", out, "--quiet") == f"{out}\n"


def test_nothing_is_replaced_without_being_told(runs, tmp_path, fails):
    run = shutil.copytree(runs / "resnet", tmp_path / "run")
    (run / "model.pt2").write_text("mine")
    assert "--fresh" in fails("export", run, "--format", "pt2")
    assert (run / "model.pt2").read_text() == "mine"
    assert main(["export", str(run), "--format", "pt2", "--fresh"]) == 0
    assert (run / "model.pt2").read_bytes() != b"mine"


@pytest.mark.parametrize("words", ["--evals 3", "--method picard"])
def test_what_is_for_equilibria_is_refused_for_others(runs, words, fails, tmp_path):
    option = words.split()[0]
    message = fails("export", runs / "resnet", "--out", tmp_path / "net.pt2", *words.split())
    assert f"{option} is for equilibrium networks: ResNetConfig" in message
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_finished_run_is_refused(runs, tmp_path, fails):
    fails("export", tmp_path, "--format", "pt2")  # it has no recipe
    run = shutil.copytree(runs / "resnet", tmp_path / "run")
    (run / "model.safetensors").unlink()
    assert "model.safetensors" in fails("export", run, "--format", "pt2")
    assert not (run / "model.pt2").exists()


def test_a_file_that_differs_is_not_written(runs, tmp_path, fails, prints, monkeypatch):
    whole = command.export

    def wrong(*args, **options):
        made = whole(*args, **options)
        with torch.no_grad():
            made.model.get_parameter("head.bias")[0] += 0.01
        return made

    monkeypatch.setattr(command, "export", wrong)
    out = tmp_path / "net.pt2"
    message = fails("export", runs / "resnet", "--out", out)
    assert "does not do what PyTorch does" in message and "nothing was written" in message
    assert "rounding grows" not in message  # there is no iteration
    assert list(tmp_path.iterdir()) == []
    argv = ["export", runs / "dense", "--out", out, "--evals", 1]
    assert "Take fewer --evals" in fails(*argv)
    prints(*argv, "--tolerance", ".99")
    assert out.is_file()


def test_a_full_disk_leaves_nothing(runs, tmp_path, fails, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    message = fails("export", runs / "resnet", "--out", tmp_path / "net.pt2")
    assert "No space left on device" in message
    assert list(tmp_path.iterdir()) == []


def test_what_onnx_lacks_is_named_before_anything_is_read(fails, monkeypatch, runs):
    monkeypatch.setattr(command, "list_absent", lambda: ["onnxruntime"])
    monkeypatch.setattr("equilibria.run.cli.errors.find_missing", lambda extra: ["onnxruntime"])
    message = fails("export", runs / "dense")
    assert "equilibria export needs packages that are not installed (onnxruntime)" in message
    assert "[export]" in message and "--format pt2 needs none of them" in message


def test_onnx_is_what_is_written_by_default(runs, tmp_path, prints):
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} of the extra `export` is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    run = shutil.copytree(runs / "resnet", tmp_path / "run")
    assert "opset 18" in prints("export", run)
    assert main(["export", str(run), "--weights", "int8"]) == 0
    sizes = [(run / name).stat().st_size for name in ("model-int8.onnx", "model.onnx")]
    assert sizes == sorted(sizes)
    session = runtime.InferenceSession(run / "model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"x": torch.rand(3, 1, 8, 8).numpy()})
    assert logits.shape == (3, 10)
