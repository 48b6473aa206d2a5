"""Networks for graphs: sizes as published, levels, and a GCN by hand."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from equilibria.run import models
from equilibria.solve import Status
from equilibria.zoo.graph import model as graph

NAMES = ("ignn", "eignn", "mgnni", "gcn", "ignn-finite", "graph-mlp")


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 5, generator=generator)
    batch = torch.arange(3).repeat_interleave(4)
    edges = torch.randint(0, 4, (2, 20), generator=generator)
    edges = edges + 4 * torch.randint(0, 3, (20,), generator=generator)
    return x, edges, None, batch


@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient(name, level):
    torch.manual_seed(0)
    model = models.create(name, shape=(5,), classes=3, level=level, hidden=(8,), dropout=0.0)
    prediction = model(inputs())
    assert prediction.output.shape == (12 if level == "node" else 3, 3)
    for solution in prediction.solutions:
        assert solution.status.tolist() == [Status.CONVERGED] * 3
    prediction.output.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key


def published(widths, features, head):
    """The count of the official code, and of its parameters that never enter the computation: a
    second Omega and a bias in each implicit layer."""
    pairs = list(pairwise([features, *widths]))
    unused = sum(a * b + b for a, b in pairs)
    return sum(b * b + a * b for a, b in pairs) + head + unused, unused


@pytest.mark.parametrize(
    ("config", "whole", "unused"),
    [
        ({"shape": (35,), "classes": 2, "level": "graph", "hidden": (64, 64, 64)}, 37_634, 10_624),
        ({"shape": (3,), "classes": 2, "level": "graph", "hidden": (64, 64, 64)}, 33_538, 8_576),
        (
            {
                "shape": (50,),
                "classes": 121,
                "level": "node",
                "skips": True,
                "hidden": (1024, 512, 512, 256, 121),
                "readout": "last",
            },
            4_656_931,
            1_002_105,
        ),
    ],
    ids=["COX2", "PROTEINS", "PPI"],
)
def test_sizes_are_the_published_ones_less_what_is_never_used(config, whole, unused):
    with torch.device("meta"):
        model = graph.IGNNConfig(**config).build()
    own = sum(p.numel() for p in model.parameters())
    widths, features = config["hidden"], config["shape"][0]
    skips = sum(a * b + b for a, b in pairwise([features, *widths])) if "skips" in config else 0
    head = skips or widths[-1] * widths[-1] + widths[-1] + 2 * widths[-1] + 2
    assert published(widths, features, head) == (whole, unused)
    assert own == whole - unused


def test_a_gcn_of_two_layers_is_that_of_kipf_and_welling():
    torch.manual_seed(0)
    model = models.create("gcn", shape=(5,), classes=3, level="node", hidden=(8,)).eval()
    x, edges, _, _ = inputs()
    edges = torch.cat([edges, edges.flip(0)], 1).unique(dim=1)
    edges = edges[:, edges[0] != edges[1]]
    a = torch.eye(12)
    a[edges[1], edges[0]] = 1.0
    d = a.sum(1).rsqrt()
    s = d[:, None] * a * d
    layers: Any = model.layers
    one, two = layers
    hidden = torch.relu(s @ x @ one.linear.weight.T + one.bias)
    expected = s @ hidden @ two.linear.weight.T + two.bias
    torch.testing.assert_close(model((x, edges, None, None)).output, expected)


def test_the_answer_of_a_gcn_has_a_bias_or_none():
    with_, without = (
        models.create("gcn", shape=(5,), classes=3, level="node", bias=bias).state_dict().keys()
        for bias in (True, False)
    )
    assert with_ - without == {"layers.1.bias"}


def test_skips_add_a_map_of_each_layers_input():
    torch.manual_seed(0)
    fields = {"shape": (5,), "classes": 3, "level": "node", "hidden": (6, 3), "skips": True}
    model: Any = models.create("ignn", **fields, readout="last").eval()
    x, edges, weight, batch = inputs()
    (one, two), (first, second) = model.layers, model.skips
    z = torch.nn.functional.elu(one(x, edges, weight, batch) + first(x))
    expected = two(z, edges, weight, batch) + second(z)
    output = model((x, edges, weight, batch)).output
    torch.testing.assert_close(output, expected)
    of_first = torch.autograd.grad(output.sum(), first.weight)
    torch.testing.assert_close(of_first, torch.autograd.grad(expected.sum(), first.weight))


@pytest.mark.parametrize("pool", ["sum", "mean"])
def test_the_states_of_a_graph_are_pooled(pool):
    torch.manual_seed(0)
    fields = {"shape": (5,), "classes": 3, "level": "graph", "hidden": (6,), "pool": pool}
    model: Any = models.create("ignn", **fields).eval()
    x, edges, _, _ = inputs()
    edges = edges[:, (edges < 4).all(0)]
    given = x[:7], edges, None, torch.tensor([0, 0, 0, 0, 1, 1, 2])
    states = model.layers[0](*given).split([4, 2, 1])
    pooled = torch.stack([z.sum(0) if pool == "sum" else z.mean(0) for z in states])
    torch.testing.assert_close(model(given).output, model.read.head(pooled))


def test_the_finite_network_tends_to_the_implicit_one():
    torch.manual_seed(0)
    fields = {"shape": (5,), "classes": 3, "level": "node", "hidden": (8,), "float64": True}
    implicit = models.create("ignn", **fields).eval()
    finite: Any = models.create("ignn-finite", **fields, steps=300).eval()
    first = finite.layers[0]
    with torch.no_grad():
        first.cell.linear.weight.copy_(implicit.layer.recurrent.weight)
        first.omega.weight.copy_(implicit.layer.omega.weight)
        finite.read.load_state_dict(implicit.read.state_dict())
    one, two = (model(inputs()).output for model in (implicit, finite))
    torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-3)


def test_a_state_in_its_own_unit_counts_however_faint():
    torch.manual_seed(0)
    fields = {"shape": (5,), "classes": 3, "level": "node", "unit_states": True, "bias": False}
    model = models.create("ignn", **fields, hidden=(8,), float64=True).eval()
    x, edges, weight, batch = inputs()
    faint = model((1e-200 * x.double(), edges, weight, batch)).output
    torch.testing.assert_close(faint, model((x, edges, weight, batch)).output, rtol=1e-3, atol=1e-5)
    assert faint.dtype == torch.float64


def test_mistakes():
    with pytest.raises(ValueError, match="the data fill them in"):
        models.create("ignn", shape=(5,))
    with pytest.raises(ValueError, match="hidden"):
        models.create("ignn", shape=(5,), classes=3, level="node", hidden=())
    with pytest.raises(ValueError, match="the number of classes, 3; got 8"):
        models.create("ignn", shape=(5,), classes=3, level="node", hidden=(8,), readout="last")
    for option, value in (("level", "edge"), ("pool", "max"), ("readout", "mlp")):
        fields = {"shape": (5,), "classes": 3, "level": "node", option: value}
        with pytest.raises(ValueError, match=f"{option} must be '.*' or '.*'; got '{value}'"):
            models.create("ignn", **fields)
    with pytest.raises(TypeError, match="takes a tuple"):
        models.create("ignn", shape=(5,), classes=3, level="node")(torch.ones(4, 5))
    with pytest.raises(TypeError, match="no equilibrium layer"):
        models.create("gcn", shape=(5,), classes=3, level="node", solver=None)


@pytest.mark.parametrize("name", NAMES)
def test_every_network_names_mistakes(name):
    model = models.create(name, shape=(2,), classes=3, level="node", hidden=(4,))
    x, chain = torch.ones(4, 2), torch.tensor([[0, 1, 2], [1, 2, 3]])
    for given, words in (
        ((torch.ones(4, 3), chain, None, None), "expected 2 features per node, got 3"),
        ((x, chain + 1, None, None), "edge 2 joins nodes 3 and 4: there are 4 nodes"),
        ((x, chain, -torch.ones(3), None), "edge 0 has the weight -1"),
        ((x, chain, None, torch.tensor([1, 1, 0, 0])), "batch is not sorted"),
        ((x[:0], chain, None, None), r"x has the shape \(0, 2\)"),
    ):
        with pytest.raises(ValueError, match=words):
            model(given)
