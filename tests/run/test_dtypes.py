"""Weights in files: of the dtype that they are used in, and the same bytes from save to save."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from equilibria.run import run
from equilibria.run.checkpoint import CheckpointError
from equilibria.run.transfer import transfer
from equilibria.run.weights import save_weights


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
