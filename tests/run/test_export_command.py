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


def fails(capsys, *argv):
    capsys.readouterr()
    assert main(["export", *map(str, argv)]) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("equilibria export: error: ")
    return line


def test_a_run_becomes_a_file_that_is_run_without_it(runs, tmp_path, capsys):
    out = tmp_path / "net.pt2"
    capsys.readouterr()
    assert main(["export", str(runs / "dense"), "--out", str(out), "--evals", "9"]) == 0
    shown = capsys.readouterr().out
    assert f"{out.stat().st_size / 1000:.1f} KB" in shown
    assert "9, anderson" in shown and "(chosen)" not in shown
    assert "relative residual after them" in shown
    assert "accuracy on 200 valid samples: file, PyTorch" in shown
    assert "batch x 1 x 8 x 8" in shown
    logits = torch.export.load(out).module()(torch.rand(7, 1, 8, 8))
    assert logits.shape == (7, 10)


def test_both_differences_are_printed_where_there_is_a_solve(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # a row is a line

    def shown(run, *argv):
        capsys.readouterr()
        out = str(tmp_path / f"{run}{len(argv)}.pt2")
        assert main(["export", str(runs / run), "--out", out, *argv]) == 0
        row = r"difference of a logit from ([\w' ]+): absolute, relative[ │]+([\d.e+-]+),"
        return {k: float(v) for k, v in re.findall(row, capsys.readouterr().out)}

    few = shown("dense", "--evals", "2", "--method", "picard")
    assert few.keys() == {"the same evaluations in PyTorch", "the run's own solves"}
    assert few["the same evaluations in PyTorch"] < 1e-4 < few["the run's own solves"]
    many = shown("dense", "--evals", "25", "--method", "picard", "--tolerance", "0.1")
    assert many["the run's own solves"] < 0.3 * few["the run's own solves"]
    assert shown("resnet").keys() == {"PyTorch"}  # nothing is solved


def test_evaluations_are_chosen_where_none_are_named(runs, tmp_path, capsys):
    capsys.readouterr()
    argv = ["--out", str(tmp_path / "net.pt2"), "--method", "picard", "--split", "test"]
    assert main(["export", str(runs / "dense"), *argv, "--samples", "64"]) == 0
    shown = capsys.readouterr().out
    assert ", picard (chosen)" in shown
    assert "on 64 test samples" in shown
    assert "predictions other than the run's" in shown


def test_quiet_prints_the_file_alone(runs, tmp_path, capsys):
    capsys.readouterr()
    out = tmp_path / "net.pt2"
    assert main(["export", str(runs / "resnet"), "--out", str(out), "--quiet"]) == 0
    assert capsys.readouterr().out == f"{out}\n"


def test_nothing_is_replaced_without_being_told(runs, tmp_path, capsys):
    run = shutil.copytree(runs / "resnet", tmp_path / "run")
    (run / "model.pt2").write_text("mine")
    assert "--fresh" in fails(capsys, run, "--format", "pt2")
    assert (run / "model.pt2").read_text() == "mine"
    assert main(["export", str(run), "--format", "pt2", "--fresh"]) == 0
    assert (run / "model.pt2").read_bytes() != b"mine"


@pytest.mark.parametrize(
    ("run", "argv", "what"),
    [
        ("resnet", ["--evals", "3"], "--evals is for equilibrium networks: ResNetConfig"),
        ("resnet", ["--method", "picard"], "--method is for equilibrium networks"),
        ("dense", ["--evals", "0"], "--evals must be 1 or more; got 0"),
        ("dense", ["--evals", "x"], "--evals"),
        ("dense", ["--samples", "-1"], "--samples must be 1 or more; got -1"),
        ("dense", ["--tolerance", "-1"], "--tolerance must lie in [0, 1); got -1"),
        ("dense", ["--split", "dev"], "--split must be one of "),
        ("dense", ["--format", "tflite"], "--format must be one of onnx, pt2; got 'tflite'"),
        ("dense", ["--weights", "int4"], "--weights must be one of float32, int8"),
        ("dense", ["--weights", "int8"], "int8 weights are for ONNX"),
        ("dense", ["--form", "stream"], "Dense is no recurrent model"),
        ("dense", ["--out", "nowhere/net.pt2"], "there is no folder nowhere"),
        ("dense", ["--out", "."], "is a folder"),
        ("dense", ["--out", "net.onnx"], "--format is pt2, and --out net.onnx ends in .onnx"),
        ("nothing", [], "there is no run folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_message(runs, run, argv, what, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--format" not in argv:
        argv = [*argv, "--format", "pt2"]
    assert what in fails(capsys, runs / run, *argv)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_finished_run_is_refused(runs, tmp_path, capsys):
    fails(capsys, tmp_path, "--format", "pt2")  # it has no recipe
    run = shutil.copytree(runs / "resnet", tmp_path / "run")
    (run / "model.safetensors").unlink()
    assert "model.safetensors" in fails(capsys, run, "--format", "pt2")
    assert not (run / "model.pt2").exists()


def test_a_file_that_differs_is_not_written(runs, tmp_path, capsys, monkeypatch):
    whole = command.export

    def wrong(*args, **options):
        made = whole(*args, **options)
        with torch.no_grad():
            made.model.get_parameter("head.bias")[0] += 0.01
        return made

    monkeypatch.setattr(command, "export", wrong)
    out = tmp_path / "net.pt2"
    message = fails(capsys, runs / "resnet", "--out", out)
    assert "does not do what PyTorch does" in message and "nothing was written" in message
    assert "rounding grows" not in message  # there is no iteration
    assert list(tmp_path.iterdir()) == []
    argv = ["--out", out, "--evals", "1"]
    assert "Take fewer --evals" in fails(capsys, runs / "dense", *argv)
    assert main(["export", str(runs / "dense"), *map(str, argv), "--tolerance", ".99"]) == 0
    assert out.is_file()


def test_a_full_disk_leaves_nothing(runs, tmp_path, capsys, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    message = fails(capsys, runs / "resnet", "--out", tmp_path / "net.pt2")
    assert "No space left on device" in message
    assert list(tmp_path.iterdir()) == []


def test_what_onnx_lacks_is_named_before_anything_is_read(tmp_path, capsys, monkeypatch, runs):
    monkeypatch.setattr(command, "list_absent", lambda: ["onnxruntime"])
    monkeypatch.setattr("equilibria.run.cli.extras.find_missing", lambda extra: ["onnxruntime"])
    message = fails(capsys, runs / "dense")
    assert "equilibria export needs packages that are not installed (onnxruntime)" in message
    assert "[export]" in message and "--format pt2 needs none of them" in message


def test_onnx_is_what_is_written_by_default(runs, tmp_path, capsys):
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} of the extra `export` is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    run = shutil.copytree(runs / "resnet", tmp_path / "run")
    assert main(["export", str(run)]) == 0
    assert "opset 18" in capsys.readouterr().out
    assert main(["export", str(run), "--weights", "int8"]) == 0
    sizes = [(run / name).stat().st_size for name in ("model-int8.onnx", "model.onnx")]
    assert sizes == sorted(sizes)
    session = runtime.InferenceSession(run / "model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"x": torch.rand(3, 1, 8, 8).numpy()})
    assert logits.shape == (3, 10)
