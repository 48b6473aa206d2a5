"""Weights in files: a run that begins with those of another, and what else they may be."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from equilibria.run import models, run
from equilibria.run.checkpoint import CheckpointError
from equilibria.run.cli.main import main
from equilibria.run.transfer import transfer
from equilibria.run.weights import save_weights

CELL = {"shape": (1, 8, 8), "channels": (4, 8), "groups": 2, "expansion": 2}
CLASSES = {**CELL, "head_channels": (2, 2), "final": 4}


@pytest.fixture
def source(tmp_path):
    torch.manual_seed(0)
    model = models.create("mdeq", **CLASSES, classes=3)
    save_weights(tmp_path / "model.safetensors", model)
    return model


def test_a_cell_goes_from_one_head_to_another(source, tmp_path):
    torch.manual_seed(1)
    model = models.create("mdeq-segmentation", **CELL, classes=5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = transfer(tmp_path, model)
    own, given = model.state_dict(), source.state_dict()
    assert {*report.taken, *report.new, *report.unlike} == set(own)
    assert set(report.taken) == {n for n in own if n.startswith(("stem.", "deq.cell."))}
    for name, value in own.items():
        assert torch.equal(value, (given if name in report.taken else before)[name])
    assert all(name.startswith("head.") for name in (*report.new, *report.left))
    said = str(report)
    assert f"Begins with {len(report.taken)} tensors of {tmp_path}" in said
    share = sum(own[name].numel() for name in report.taken) / sum(v.numel() for v in own.values())
    assert f"({100 * share:.1f} % of the weights)" in said
    assert f"{len(report.left)} left out, not in this model: head." in said


def test_shapes_that_differ_are_said(source, tmp_path):
    report = transfer(tmp_path / "model.safetensors", models.create("mdeq", **CLASSES, classes=7))
    assert set(report.unlike) == {"head.classifier.weight", "head.classifier.bias"}
    assert not report.new and not report.left
    assert "2 new, of another shape in that run: head.classifier" in str(report)


def test_an_unrolled_cell_is_the_same_cell(source, tmp_path):
    model = models.create("mdeq-unrolled", **CLASSES, classes=3, layers=2)
    report = transfer(tmp_path, model)
    assert set(report.taken) == set(model.state_dict())


def test_nothing_of_the_cell_is_an_error(source, tmp_path):
    other = models.create("mdeq", **{**CLASSES, "channels": (8, 12)}, classes=3)
    with pytest.raises(CheckpointError, match=r"none of the cell's weights .* is \(.*\) here, \("):
        transfer(tmp_path, other)
    with pytest.raises(CheckpointError, match="none of the model's weights"):
        transfer(tmp_path, models.create("unet", shape=(1, 8, 8), classes=3, widths=(4, 8)))


def test_gains_alone_are_not_the_same_cell(source, tmp_path):
    """GroupNorm's gains are of one shape, while no kernel is: a run would begin with next to
    nothing of the other."""
    other = models.create("mdeq", **{**CLASSES, "channels": (4, 12), "expansion": 3}, classes=3)
    with pytest.raises(CheckpointError, match=r"only 0\.503 % of the cell's .* \(deq\.cell\."):
        transfer(tmp_path, other)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "there is no run folder or safetensors file .*nothing$"),
        ("empty", "empty is not a run folder: it has no recipe.yaml$"),
        ("notes.txt", r"notes.txt is damaged or not a safetensors file \(.*\)$"),
    ],
)
def test_what_is_no_run_is_not_to_be_resumed(source, tmp_path, name, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no weights")
    with pytest.raises(CheckpointError, match=said):
        transfer(tmp_path / name, source)


def test_a_damaged_file_is_refused(source, tmp_path):
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        transfer(path, source)


def test_from_the_command_line(tmp_path, prints):
    small = ("--model.width", "16", "--probes", "8", "--epochs", "1")
    assert main(["train", "digits", "--out", str(tmp_path / "one"), *small]) == 0
    begins = ("--init-from", str(tmp_path / "one"), "--optimizer.lr", "1e-12")
    out = prints("train", "digits", "--out", tmp_path / "two", *small, *begins)
    assert "Begins with" in out
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        assert torch.allclose(two[name], value, atol=1e-6), name
    info = json.loads((tmp_path / "two" / "run.json").read_text())
    assert info["init_from"]["source"] == str(tmp_path / "one" / "model.safetensors")
    assert set(info["init_from"]["taken"]) == set(one)


def test_only_one_way_to_begin(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    words = ["train", "digits", "--out", str(tmp_path / "run")]
    words += ["--init-from", str(tmp_path / "x.safetensors"), "--initialization.ensemble", "goe"]
    assert main(words) == 1
    assert not (tmp_path / "run").exists()


def test_weights_that_do_not_fit_leave_no_run(tmp_path, fails):
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    words = ["train", "digits", "--out", str(tmp_path / "run"), "--init-from"]
    assert "init_from: none of the cell's weights" in fails(*words, tmp_path / "x.safetensors")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


# --- weights in files: of the dtype that they are used in, and the same bytes from save to save


def spoil(path, dtype):
    state = load_file(path)
    save_file({**state, "head.bias": state["head.bias"].to(dtype)}, path)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.int64, "int64"), (torch.complex64, "complex64"), (torch.bfloat16, "bfloat16")],
)
def test_weights_of_another_dtype_are_refused(whole, dtype, name):
    _, folder = whole
    spoil(folder.weights, dtype)
    with pytest.raises(CheckpointError, match=rf"head.bias is {name} \(10,\) .*float32 \(10,\)"):
        run.load(folder.path)


def test_a_run_may_begin_with_weights_of_less_precision_but_not_with_whole_numbers(tmp_path):
    model, path = nn.Linear(20, 2), tmp_path / "x.safetensors"
    weight = torch.randn(2, 20)
    save_file({"weight": weight.half(), "bias": torch.ones(2, dtype=torch.int64)}, path)
    found = transfer(path, model)
    assert found.taken == ("weight",) and found.unlike == ("bias",)
    assert torch.equal(model.weight, weight.half().float())


def test_a_saved_file_is_the_same_bit_for_bit(tmp_path):
    model, files = nn.Linear(3, 2), [tmp_path / str(k) for k in range(20)]
    for path in files:
        save_weights(path, model)
    assert len({path.read_bytes() for path in files}) == 1
    assert torch.equal(load_file(files[0])["weight"], model.weight)
