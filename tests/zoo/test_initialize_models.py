"""The recurrent weights of every equilibrium model of the zoo are found and begin as is asked."""

import dataclasses
import itertools

import pytest
import torch

from applications import needs
from equilibria.nn.init import ENSEMBLES, initialize, recurrent_weights
from equilibria.run import models
from equilibria.run.models import config_of
from equilibria.solve import Picard
from small_sequences import SMALL as SEQUENCES
from small_sequences import VOCABULARY

CLASSES = {"shape": (1, 8, 8), "classes": 3}
MDEQ = {**CLASSES, "channels": (4, 4), "head_channels": (2, 2), "final": 4, "expansion": 2}
FLOW = {"encoder": "small", "stages": (4, 4, 4), "features": 4, "mask": 4, "radius": 1}
FLOW |= {"hidden": 18}  # four levels have 36 channels, which a square map makes 2 x 18 of
QKV = "deq.cell.attention.qkv.weight"

# Path of each recurrent weight, the shape of its maps and their number.
WEIGHTS = {
    "dense": ({**CLASSES, "width": 8}, {"deq.cell.linear.weight": ((8, 8), 1)}),
    "conv": (
        {**CLASSES, "channels": 8, "groups": 2, "stride": 2},
        {"deq.cell.conv.weight": ((8, 8, 3, 3), 1)},
    ),
    "deq-transformer": (
        {**SEQUENCES["deq-transformer"], "inner": 24, "dropout": 0.1},
        {
            QKV: ((16, 16), 3),
            "deq.cell.attention.out.weight": ((16, 16), 1),
            "deq.cell.expand.weight": ((24, 16), 1),
            "deq.cell.contract.weight": ((16, 24), 1),
        },
    ),
    "deq-trellisnet": (
        {**SEQUENCES["deq-trellisnet"], "weight_dropout": 0.2},
        {"deq.cell.gates.weight": ((10, 10), 8)},
    ),
    "deq-raft": (FLOW, None),
    "deq-gma": (FLOW, None),
    "deq-raft-small": ({k: v for k, v in FLOW.items() if k not in ("hidden", "mask")}, None),
    "mdeq": ({**MDEQ, "groups": 2, "norm": "none", "initial": 0.1}, None),
    "mdeq-segmentation": ({**MDEQ, "groups": 2, "norm": "none", "initial": 0.1}, None),
    "reasoner": ({**CLASSES, "width": 8}, None),
}
KNOWN = {*models.available()}  # an application may not be there
# Ensembles of which no weight of the model can be a member.
SQUARELESS = {"conv": ("normal",), "deq-raft-small": ("goe", "antisymmetric", "normal")}
NONE = {"monotone": {**CLASSES, "channels": (4, 4), "squares": 2}, "monotone-dense": CLASSES}


def build(name, **fields):
    torch.manual_seed(0)
    return models.create(name, **fields)


def inputs(name):
    if "vocabulary" in WEIGHTS[name][0]:
        return torch.randint(VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(1))
    if "levels" in {field.name for field in dataclasses.fields(config_of(name))}:
        return torch.rand(2, 1, 3, 128, 128, generator=torch.Generator().manual_seed(1)).unbind()
    return torch.randn(2, *CLASSES["shape"], generator=torch.Generator().manual_seed(1))


def test_every_equilibrium_model_is_here():
    equilibrium = {
        n for n in models.available() if "deq" in n or n in {"dense", "conv", "reasoner"}
    }
    equilibrium = {n for n in equilibrium if "unrolled" not in n}
    assert set(WEIGHTS) & KNOWN == equilibrium
    explicit = {"gru", "lstm", "mdeq-unrolled", "resnet", "transformer-xl", "trellisnet"}
    explicit |= {"mdeq-segmentation-unrolled", "unet"}
    explicit |= {"gma", "raft", "raft-small", "fixed-depth", "sequence-lstm"}
    explicit |= {"neural-ode", "augmented-neural-ode", "recurrent", "recurrent-lm"}
    graphs = {"eignn", "gcn", "graph-mlp", "ignn", "ignn-finite", "mgnni"}  # graph/
    coordinates = {"imfn", "mfn", "isiren", "siren-injected", "siren"}  # representation/
    assert equilibrium | set(NONE) | explicit | graphs | coordinates >= KNOWN


@pytest.mark.filterwarnings("ignore::equilibria.solve.SolveWarning")
@pytest.mark.parametrize(
    ("name", "ensemble"),
    [
        *itertools.product(("dense", "conv", "deq-trellisnet"), ENSEMBLES),
        ("deq-transformer", "gaussian"),
        ("deq-transformer", "goe"),
        ("deq-raft", "orthogonal"),
        ("deq-raft", "antisymmetric"),
        ("deq-gma", "goe"),
        ("deq-gma", "normal"),
        *(("deq-raft-small", ensemble) for ensemble in ENSEMBLES),
        ("mdeq", "orthogonal"),
        ("mdeq", "normal"),
        ("mdeq-segmentation", "gaussian"),
        ("mdeq-segmentation", "antisymmetric"),
        ("reasoner", "orthogonal"),
    ],
)
def test_the_rows_say_what_the_weights_are(name, ensemble):
    if name not in KNOWN:
        pytest.skip(f"no application has {name}")
    fields, expected = WEIGHTS[name]
    model = build(name, **fields, solver=Picard(max_evals=3)).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    if ensemble in SQUARELESS.get(name, ()):
        with pytest.raises(ValueError, match=rf"member of '{ensemble}'.* there are: deq\.cell\."):
            initialize(model, ensemble)
        return
    rows = initialize(model, ensemble, 0.3)
    weights = {weight.path: weight for weight in recurrent_weights(model)}
    assert [row.path for row in rows] == list(weights)
    if expected is not None:
        assert {r.path for r in rows} == set(expected)
    for row in rows:
        tiles = weights[row.path].maps.tiles(weights[row.path].value())
        assert len(tiles) == len(row.ensembles)
        if expected is not None:
            shape, count = expected[row.path]
            assert [tuple(tile.shape) for tile in tiles] == [shape] * count
        for tile, kind in zip(tiles, row.ensembles, strict=True):
            check(tile, kind)
        total = sum(float(tile.square().sum()) for tile in tiles)
        assert row.gain == pytest.approx((total / sum(len(t) for t in tiles)) ** 0.5, rel=1e-5)
    # Under a parametrisation the tensors that a weight is stored in have other names.
    changed = [k for k, v in model.state_dict().items() if not torch.equal(v, before[k])]
    stems = [key.replace("parametrizations.", "").split(".original")[0] for key in changed]
    assert set(stems) == set(weights)
    assert model.training
    with torch.no_grad():
        assert model.eval()(inputs(name)).output.isfinite().all()


def check(tile, kind):
    tile = tile.double()
    turned = tile.transpose(0, 1).flip(list(range(2, tile.ndim)))
    matrix = tile.flatten(1)
    if kind == "goe":
        torch.testing.assert_close(tile, turned, rtol=0, atol=1e-6)
    elif kind == "antisymmetric":
        torch.testing.assert_close(tile, -turned, rtol=0, atol=1e-6)
    elif kind == "normal":
        torch.testing.assert_close(matrix @ matrix.T, matrix.T @ matrix, rtol=0, atol=1e-6)
    elif kind == "orthogonal":
        values = torch.linalg.svdvals(matrix)
        torch.testing.assert_close(values, torch.full_like(values, 0.3), rtol=1e-3, atol=0)
    assert tile.square().sum() > 0


@pytest.mark.parametrize("name", sorted({*NONE} & KNOWN))
def test_a_map_made_of_others_is_no_member(name):
    with pytest.raises(ValueError, match="no recurrent weight"):
        initialize(build(name, **NONE[name]), "orthogonal")


@needs("language")
def test_the_positions_of_attention_are_of_no_state():
    model = build("deq-transformer", **SEQUENCES["deq-transformer"])
    assert not any("positions" in weight.path for weight in recurrent_weights(model))


@needs("language")
def test_an_antisymmetric_beginning_of_a_sequence_model():
    model = build("deq-transformer", **{**SEQUENCES["deq-transformer"], "initial": "antisymmetric"})
    weight = next(w for w in recurrent_weights(model) if w.path == QKV)
    for tile in weight.maps.tiles(weight.value()):
        check(tile, "antisymmetric")
