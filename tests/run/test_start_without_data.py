"""Sharded models start with the weights of one process, which alone holds them whole."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, nn
from torch.distributed.tensor import DTensor

import flow_tree
import texts
from applications import present
from equilibria.run.checkpoint import CheckpointError
from equilibria.run.evaluation import accelerator
from equilibria.run.processes import Elsewhere
from equilibria.run.sharding import Sharding, without_data
from equilibria.run.start import StartingModel
from several import several, shards, trainer_of

DIGITS = {
    "task": {"name": "image_classification", "data": "digits"},
    "model": {"name": "dense", "width": 16},
    "batch_size": 64,
    "epochs": 1,
}


def cases(place):
    """Recipes of every kind of model that has a layer of its own."""
    mdeq = {"name": "mdeq", "channels": [8, 8], "head_channels": [4, 4], "final": 8, "groups": 4}
    found = {
        "digits": DIGITS,
        "radius": DIGITS | {"initialization": {"ensemble": "orthogonal", "radius": 0.7}},
        "ensemble": DIGITS | {"initialization": {"ensemble": "goe", "scale": 0.3}},
        "mdeq": DIGITS | {"model": mdeq},
        "transformer": texts.tree(place, cutoffs=[8], division=2),
        "trellis": texts.tree(
            place, name="deq-trellisnet", width=8, hidden=6, weight_dropout=0.2, scale=0.3
        ),
    }
    if present("flow"):
        found["flow"] = flow_tree.TREE
    if present("recurrent", "synthetic"):
        found["recurrent"] = {
            "task": {"name": "adding", "length": 6},
            "model": {"name": "recurrent", "hidden": 8, "layers": 2},
            "batch_size": 8,
            "epochs": 1,
        }
    return found


def tensors(model):
    """Parameters and buffers, also those that no state dictionary has."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def work(rank, place, count):
    options = ("--parallel=hsdp", "--shard=2") if count == 4 else ("--parallel=fsdp",)
    for name, tree in cases(place).items():
        with pytest.MonkeyPatch.context() as patch:
            built = watched(patch)
            trainer = trainer_of(tree, *options)
        # The first builds it whole too, and nobody else.
        assert built == ["cpu"] * (rank == 0) + ["meta"], name
        assert all(isinstance(p, DTensor) for p in trainer.model.parameters()), name
        found = {
            key: (each.full_tensor() if isinstance(each, DTensor) else each).detach().clone()
            for key, each in tensors(trainer.model).items()
        }
        save_file(found, place / f"{name}-{rank}.safetensors")


def watched(patch):
    """List where models are built."""
    found, build = [], StartingModel._empty

    def record(self):
        model = build(self)
        (device,) = {each.device.type for each in tensors(model).values()}
        found.append(device)
        return model

    patch.setattr(StartingModel, "_empty", record)
    return found


@shards
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_all_processes_start_with_the_weights_of_one(tmp_path, monkeypatch, count):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts.write(tmp_path / "text.txt")
    several(work, count, tmp_path, count)
    for name, tree in cases(tmp_path).items():
        wanted = tensors(trainer_of(tree).model)
        for rank in range(count):
            found = load_file(tmp_path / f"{name}-{rank}.safetensors")
            assert found.keys() == wanted.keys()
            for key, value in wanted.items():
                assert torch.equal(found[key], value), (name, rank, key)


def fail(rank, place):
    """The first process cannot build the model, and all say why."""
    tree = DIGITS | {"initialization": {"ensemble": "gaussian", "radius": 0.999}}
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(StartingModel, "_build", lambda *_: 1 / 0)
        with pytest.raises((ZeroDivisionError, Elsewhere)) as failed:
            trainer_of(tree, "--parallel=fsdp")
    (place / f"{rank}.txt").write_text(f"{type(failed.value).__name__}: {failed.value}")
    with pytest.raises((CheckpointError, Elsewhere), match="init_from: there is no run folder"):
        trainer_of(DIGITS | {"init_from": str(place / "nowhere")}, "--parallel=fsdp")


@shards
def test_a_model_that_the_first_process_cannot_build_ends_all(tmp_path):
    several(fail, 2, tmp_path)
    assert (tmp_path / "0.txt").read_text() == "ZeroDivisionError: division by zero"
    assert (tmp_path / "1.txt").read_text() == "Elsewhere: process 0: division by zero"


class Tied(nn.Module):
    """Two layers of one weight, and a table that no state dictionary has."""

    table: torch.Tensor

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(6) > 2, persistent=False)

    def forward(self, x):
        return self.second(self.first(x)).masked_fill(self.table[:5], 0.0)


def tied(rank):
    def build():
        torch.manual_seed(3)
        return Tied()

    own, wanted = accelerator("float32", "cpu"), build()
    found = Sharding(build, Tied, own, 2, keep=False, trial=lambda model: None).model
    assert found.first.weight is found.second.weight
    assert found.first.weight.to_local().shape == (3 - rank, 5)
    x = torch.ones(2, 5)
    torch.testing.assert_close(found(x), wanted(x), rtol=0, atol=0)
    found(x).sum().backward()
    wanted(x).sum().backward()
    torch.testing.assert_close(found.first.weight.grad.full_tensor(), wanted.first.weight.grad)
    distributed.barrier()


@shards
def test_parameters_that_are_shared_stay_shared():
    several(tied, 2)


class Odd(nn.Module):
    """Tied weights, a buffer of two modules, and buffers of types that no backend sends."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        shared = torch.arange(1.0, 4.0)
        self.a.register_buffer("shared", shared)
        self.b.register_buffer("other", torch.zeros(3))
        self.b.register_buffer("shared", shared, persistent=False)
        self.register_buffer("small", torch.tensor(7, dtype=torch.int16))
        self.register_buffer("complex", torch.tensor([1.0 + 2.0j]))
        self.register_buffer("turned", torch.arange(6.0).view(2, 3).t())
        self.register_buffer("empty", torch.zeros(0))


def odd(rank):
    def build():
        torch.manual_seed(rank)
        return Odd().double()

    sharded = Sharding(
        build, build, accelerator("float32", "cpu"), 2, keep=False, trial=lambda model: None
    )
    sharded.sync(last=True)
    torch.manual_seed(0)
    wanted = Odd().double()
    assert sharded.model.a.weight is sharded.model.b.weight
    for name, value in tensors(wanted).items():
        module = sharded.model.get_submodule(name.rpartition(".")[0])
        found = getattr(module, name.rpartition(".")[2])
        found = found.full_tensor() if isinstance(found, DTensor) else found
        assert found.dtype == value.dtype and torch.equal(found, value), name
    assert torch.equal(sharded.model.b.shared, wanted.b.shared)


@shards
def test_every_type_of_tensor_arrives_by_every_name():
    several(odd, 2)


OWN = {
    "meta": lambda layer: {"size": float(layer.weight.norm())},
    "numpy": lambda layer: {"size": float(abs(layer.weight.detach().numpy()).sum())},
    "table is neither a para": lambda layer: {"table": torch.arange(4)},
    "tables is neither a para": lambda layer: {"tables": [torch.arange(4)]},
}
"""What a layer keeps that reads its own values, or has tensors that are no buffers."""


@pytest.mark.parametrize("reason", OWN)
def test_a_model_that_needs_data_to_be_built_is_built_with_data(reason):
    def build():
        layer = nn.Linear(3, 4)
        vars(layer).update(OWN[reason](layer))
        return layer

    said = f"each process temporarily builds the full model.*{reason}"
    with pytest.warns(UserWarning, match=said):
        model = without_data(build)
    assert all(p.is_meta for p in model.parameters())
    kept = vars(model)
    assert kept.get("size", 1.0) > 0
    for table in kept.get("tables", [kept.get("table", torch.arange(4))]):
        assert table.tolist() == [0, 1, 2, 3]
