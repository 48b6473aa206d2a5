"""Bounds that keep implicit graph layers well posed: at the start, in training, in any network."""

import copy
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from drawn_graphs import NODES, TIGHT, draw, edges_of, normal, uneven

import equilibria as eq
from equilibria.run import models
from equilibria.run import recipe as recipes
from equilibria.run.initialization import Initialization
from equilibria.run.trainer import Trainer
from equilibria.zoo.graph import model as graph

BOUNDED = (graph.IGNN, graph.FiniteIGNN)


# --- the projection -------------------------------------------------------------------------------


def test_rows_are_projected_onto_the_l1_ball():
    w = normal(20, 7, seed=1)
    found = graph.project_rows_(w.clone(), 4.0)
    assert float(found.abs().sum(1).max()) <= 4.0 + 1e-12
    inside = w.abs().sum(1) <= 4.0
    assert torch.equal(found[inside], w[inside])
    # The nearest point: all entries shrink by the same, but not beyond zero.
    assert bool(inside.any()) and not bool(inside.all())
    for row, point in zip(w[~inside], found[~inside], strict=True):
        assert float(point.abs().sum()) == pytest.approx(4.0)
        left = point != 0
        assert torch.equal(point[left].sign(), row[left].sign())
        shrunk = (row - point).abs()
        torch.testing.assert_close(shrunk[left], shrunk.max().expand(int(left.sum())))


def test_a_projection_in_single_precision_ends_inside_and_stays():
    weight = torch.randn(200, 300, generator=draw(0))
    once = graph.project_rows_(weight.clone(), 0.9)
    assert float(once.double().abs().sum(1).max()) <= 0.9 * (1 + 1e-6)
    torch.testing.assert_close(graph.project_rows_(once.clone(), 0.9), once, rtol=0, atol=1e-7)
    # Rows well inside are untouched, bit for bit.
    small = 1e-3 * weight
    assert torch.equal(graph.project_rows_(small.clone(), 0.9), small)


# --- the radius -----------------------------------------------------------------------------------


def test_the_perron_radius_is_bounded_from_above():
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    assert graph.perron_radius(ring) == pytest.approx(1.0, abs=1e-4)
    two = torch.tensor([[0, 1, 2, 3, 4], [1, 0, 3, 4, 2]])
    weight = torch.tensor([2.0, 2.0, 0.5, 0.5, 0.5])
    assert graph.perron_radius(two, weight) == pytest.approx(2.0, abs=1e-3)
    chain = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    assert 0.0 <= graph.perron_radius(chain) < 0.2
    adj_t = torch.sparse_coo_tensor(two.flip(0), weight, (6, 6), check_invariants=True)
    assert graph.perron_radius(adj_t) == graph.perron_radius(two, weight, nodes=6)
    random = edges_of(12, 40, seed=3)
    a = torch.zeros(12, 12, dtype=torch.float64)
    a[random[1], random[0]] = 1.0
    true = float(torch.linalg.eigvals(a).abs().max())
    found = graph.perron_radius(random, nodes=12)
    assert true - 1e-9 <= found <= 1.02 * true


def test_without_normalisation_the_radius_is_asked_for():
    x, edge_index = normal(NODES, 5, seed=1), edges_of(NODES, 80, seed=2)
    with pytest.raises(ValueError, match="perron_radius"):
        graph.IGNN(5, 4, normalize=None)
    radius = graph.perron_radius(edge_index, nodes=NODES)
    layer = graph.IGNN(5, 4, normalize=None, self_loops=False, radius=radius, **TIGHT).double()
    assert int(layer.solve(x, edge_index).status) == eq.Status.CONVERGED
    with pytest.raises(ValueError, match="which makes it 1"):
        graph.IGNN(5, 4, radius=2.0)


def test_a_self_loop_of_the_layer_adds_to_the_radius_that_is_given():
    generator = draw(3)
    edge_index = torch.randint(0, 8, (2, 20), generator=generator).unique(dim=1)
    radius = graph.perron_radius(edge_index, nodes=8)
    options = {"normalize": None, "radius": radius}
    for loops in (False, True):
        layer = graph.IGNN(2, 3, **options, self_loops=loops).double()
        x = torch.ones(8, 2, dtype=torch.float64)
        edges, _ = layer.read(x, edge_index, None, None)
        a = torch.zeros(8, 8, dtype=torch.float64)
        a.index_put_((edges.receiver, edges.sender), edges.weight, accumulate=True)
        true = float(torch.linalg.eigvals(a).abs().max())
        assert float(layer.recurrent.weight.detach().abs().sum(1).max()) * true <= 0.9 + 1e-9


# --- when they hold -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("initial", ["identity", "uniform"])
@pytest.mark.parametrize("radius", [None, 0.5, 7.0])
def test_the_bound_holds_from_the_start(kind, initial, radius):
    options = {} if radius is None else {"normalize": None, "radius": radius, "self_loops": False}
    torch.manual_seed(0)
    layer = kind(3, 40, initial=initial, kappa=0.8, **options)
    bound = 0.8 / (radius or 1.0)
    assert layer.bound == pytest.approx(bound)
    for _ in range(2):
        largest = float(layer.recurrent.weight.detach().double().abs().sum(1).max())
        assert 0.2 * bound < largest <= bound * (1 + 1e-6)
        layer.reset_parameters()


def test_the_bound_holds_after_every_step_of_an_optimiser():
    torch.manual_seed(0)
    model = graph.IGNNConfig(shape=(5,), classes=3, level="graph", hidden=(6, 6)).build().double()
    layers: Any = model.layers
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def largest():
        return max(float(each.recurrent.weight.detach().abs().sum(1).max()) for each in layers)

    def step():
        optimizer.zero_grad()
        outwards = sum(each.recurrent.weight.sum() for each in layers)
        (model(uneven()).output.square().mean() - outwards).backward()
        optimizer.step()

    with pytest.raises(TypeError, match="optimizer: expected one of torch"):
        graph.constrain_after(model, optimizer)  # pyright: ignore[reportArgumentType]
    handle = graph.constrain_after(optimizer, model)
    for _ in range(3):
        step()
        assert largest() <= 0.9 + 1e-12
    handle.remove()
    step()
    assert largest() > 1.0


@pytest.mark.parametrize("name", ["ignn", "ignn-finite"])
def test_constrain_reaches_every_layer_of_a_network(name):
    model = models.create(name, shape=(5,), classes=2, level="graph", hidden=(6, 4, 6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(50.0)
    rest = {k: v.clone() for k, v in model.state_dict().items()}
    model.constrain()
    for layer in model.modules():
        if not isinstance(layer, BOUNDED):
            continue
        assert float(layer.recurrent.weight.detach().abs().sum(1).max()) <= 0.9 * (1 + 1e-6)
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, rest[k])}
    assert changed == {k for k in rest if "cell.linear" in k} and len(changed) == 3


def test_evaluating_leaves_every_weight_as_it_is():
    model = graph.IGNNConfig(shape=(5,), classes=3, level="graph", hidden=(6, 6)).build().double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)  # outside of any ball
    before = copy.deepcopy(model.state_dict())
    for mode in (True, False):
        model.train(mode)(uneven())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_that_a_recipe_draws_outside_of_the_bounds_are_refused():
    model = models.create("ignn", shape=(5,), classes=2, level="node", hidden=(16,))
    with pytest.raises(ValueError, match=r"outside the bounds.*cell\.linear\.weight.*lower"):
        Initialization(ensemble="orthogonal", scale=0.9).apply(model, lambda: None)
    begun = Initialization(ensemble="orthogonal", scale=0.1).apply(model, lambda: None)
    assert begun.rows[0].gain == pytest.approx(0.1)


# --- in a run -------------------------------------------------------------------------------------


CHAINS = {
    "task": {"name": "chains", "length": 4, "chains": 5},
    "model": {"name": "ignn", "hidden": [6, 5], "normalize": "row"},
    "optimizer": {"name": "SGD", "lr": 100.0},
    "epochs": 1,
    "epoch_steps": 3,
    "batch_size": 1,
}


def test_the_bound_of_every_layer_holds_after_every_step_and_not_by_standing_still():
    recipe = recipes.parse({**CHAINS, "description": "Chains."})
    trainer = Trainer(recipe, recipe.task.load(), Accelerator(cpu=True))
    layers = [layer for layer in trainer.model.modules() if isinstance(layer, graph.IGNN)]
    assert len(layers) == 2
    for _ in range(3):
        before = [layer.recurrent.weight.detach().clone() for layer in layers]
        trainer.train_step()
        for layer, old in zip(layers, before, strict=True):
            new = layer.recurrent.weight.detach()
            assert float(new.abs().sum(1).max()) <= 0.9 * (1 + 1e-6)
            assert not torch.equal(new, old)
    evaluated = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.model.eval()(trainer.feed.batch(0).inputs)
    assert all(torch.equal(v, evaluated[k]) for k, v in trainer.model.state_dict().items())
