"""What training draws at random is the same on any number of processes and micro-batches."""

import copy
import functools

import pytest
import torch
from safetensors.torch import load_file, save_file

import flow_tree
import texts
from applications import present
from equilibria import draws
from several import TIGHT, several, trainer_of

KNOWN = {
    **TIGHT,
    "regularizer": {"name": "JacobianPenalty", "gamma": 0.2},
    "pretrain": None,
    "optimizer": {"name": "SGD", "lr": 0.05, "momentum": 0.0},
    "clip": None,
    "precision": "float32",
}


def transformer(place):
    """Dropout of words, features, positions and attention, a penalty and a correction."""
    tree = texts.tree(place, attention_dropout=0.1, input_dropout=0.1)
    return tree | KNOWN | {"correction": {"name": "FixedPointCorrection"}}


def trellis(place):
    """Dropout of hidden features and of weights."""
    model = {"name": "deq-trellisnet", "width": 8, "hidden": 6, "scale": 0.3}
    return texts.tree(place, **model, hidden_dropout=0.2, weight_dropout=0.2) | KNOWN


def images(_):
    """Crops, shifts and mirroring, and a penalty."""
    task = {"name": "image_classification", "data": "digits", "shift": 1, "flip": True, "crop": 0.6}
    model = {"name": "dense", "width": 16}
    return {"task": task, "model": model, "batch_size": 64, "epochs": 1} | KNOWN


def recurrent(_):
    """Dropout between the layers of a network that runs over time."""
    return {
        "task": {"name": "adding", "length": 12},
        "model": {"name": "recurrent", "hidden": 8, "layers": 2, "dropout": 0.5},
        "optimizer": KNOWN["optimizer"],
        "batch_size": 8,
        "epochs": 1,
    }


def flow(_):
    """Solves that begin anywhere."""
    tree = copy.deepcopy(flow_tree.TREE)
    tree["model"]["start_noise"] = 2.0
    return tree | {"adjoint": {"name": "Phantom", "steps": 1}, "optimizer": KNOWN["optimizer"]}


CASES = {"transformer": transformer, "trellis": trellis, "images": images}
CASES |= {"recurrent": recurrent} if present("recurrent", "synthetic") else {}
CASES |= {"flow": flow} if present("flow") else {}


def trained(tree, *options, steps=2):
    """Return the weights after two steps."""
    trainer = trainer_of(tree, *options)
    for _ in range(steps):
        trainer.train_step()
    return {name: each.detach().clone() for name, each in trainer.model.state_dict().items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("draws")
    texts.write(place / "text.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        yield place


@pytest.fixture(scope="module")
def alone(place):
    """alone(case) -> the weights at first, and after steps of one process on whole batches."""

    @functools.cache
    def run(case):
        tree = CASES[case](place)
        return trained(tree, steps=0), trained(tree)

    return run


def same(found, wanted, start):
    """Compare changes since the start."""
    for name, value in wanted.items():
        if value.is_floating_point():
            size = float((value - start[name]).abs().max())
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-3 * size + 1e-7)


@pytest.mark.parametrize("case", CASES)
def test_micro_batches_draw_what_the_whole_batch_draws(place, alone, case, monkeypatch):
    tree, (start, whole) = CASES[case](place), alone(case)
    same(trained(tree, "--accumulate=4"), whole, start)
    keyed = draws.key_rows
    monkeypatch.setattr(draws, "key_rows", lambda name, of: keyed(f"other {name}", of))
    other = trained(tree)
    with pytest.raises(AssertionError):  # the draws matter: the comparison means something
        same(other, whole, start)


def work(rank, place, cases):
    for case in cases:
        found = trained(CASES[case](place))
        if rank == 0:
            save_file(found, place / f"{case}.safetensors")


def test_two_processes_draw_what_one_draws(place, alone):
    several(work, 2, place, tuple(CASES))
    for case in CASES:
        start, whole = alone(case)
        same(load_file(place / f"{case}.safetensors"), whole, start)
