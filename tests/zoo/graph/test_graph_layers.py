"""Layers for graphs: right values, directions, batches, gradients and precision."""

import copy

import pytest
import torch
from drawn_graphs import CHAIN, NODES, TIGHT, alone, draw, edges_of, normal, uneven

import equilibria as eq
from equilibria.run import models
from equilibria.zoo.graph import model as graph

KINDS = (graph.IGNN, graph.EIGNN, graph.MGNNI, graph.GCN, graph.FiniteIGNN)
CONVERGED = eq.Status.CONVERGED


# --- values ---------------------------------------------------------------------------------------


def dense(layer, x, edge_index, weight=None):
    """The matrix A^T that the layer multiplies by."""
    edges = layer.operands(x, edge_index, weight)[1].value
    a = torch.zeros(edges.nodes, edges.nodes, dtype=torch.float64)
    return a.index_put((edges.receiver, edges.sender), edges.weight, accumulate=True)


@pytest.mark.parametrize("normalize", ["sym", "row"])
def test_a_graph_of_30_nodes_equals_the_dense_solution(normalize):
    torch.manual_seed(0)
    x, edge_index = normal(NODES, 5, seed=1), edges_of(NODES, 80, seed=2)
    layer = graph.IGNN(5, 8, normalize=normalize, initial="uniform", **TIGHT).double()
    a = dense(layer, x, edge_index)
    w, omega = layer.recurrent.weight.detach(), layer.omega.weight.detach()
    z = torch.zeros(NODES, 8, dtype=torch.float64)
    for _ in range(2000):
        z = torch.relu(a @ z @ w.T + a @ x @ omega.T)
    torch.testing.assert_close(layer(x, edge_index), z, rtol=0, atol=1e-8)


def test_a_linear_equilibrium_equals_the_dense_solution():
    torch.manual_seed(0)
    x, edge_index = normal(NODES, 4, seed=1), edges_of(NODES, 80, seed=2)
    layer = graph.EIGNN(4, 4, **TIGHT).double()
    s = dense(layer, x, edge_index)
    system = torch.eye(NODES * 4, dtype=torch.float64) - layer.cell.gamma * torch.kron(
        s, layer.cell.mixer.detach()
    )
    right = layer.encode(x).detach().flatten()
    expected = torch.linalg.solve(system, right).reshape(NODES, 4)
    torch.testing.assert_close(layer(x, edge_index), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_messages_go_with_the_flow(flow):
    """0 -> 1 -> 2, and only node 0 has something to say."""
    x = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    chain = torch.tensor([[0, 1], [1, 2]])
    given = chain if flow == "source_to_target" else chain.flip(0)
    layer = graph.IGNN(1, 1, flow=flow, normalize="row", **TIGHT).double()
    with torch.no_grad():
        layer.omega.weight.fill_(1.0)
    z = layer(x, given).flatten()
    # z_0 = .9 z_0 + 1, z_1 = .9 (z_0 + z_1) / 2 + 1 / 2, z_2 = .9 (z_1 + z_2) / 2.
    assert z.tolist() == pytest.approx([10.0, 5.0 / 0.55, 0.45 * 5.0 / 0.55 / 0.55])
    back = layer(x, given.flip(0)).flatten()
    assert back[1] == back[2] == 0.0


def test_the_closed_form_is_the_iterated_one_with_its_gradients():
    torch.manual_seed(0)
    x = normal(20, 3, seed=1)
    edge_index = edges_of(20, 40, seed=2, undirected=True)
    adjoint = eq.Implicit(linear=eq.GMRES(rtol=1e-13))
    options = {"solver": eq.Anderson(rtol=1e-13), "adjoint": adjoint}
    iterated = graph.EIGNN(3, 4, layer=options).double()
    closed = graph.EIGNN(3, 4, form="closed").double()
    closed.load_state_dict(iterated.state_dict())
    found = [each(x, edge_index) for each in (iterated, closed)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)
    grads = [
        torch.autograd.grad(value.square().sum(), list(each.parameters()))
        for value, each in zip(found, (iterated, closed), strict=True)
    ]
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-8)


def test_the_closed_form_is_refused_where_there_is_none():
    layer = graph.EIGNN(2, 2, form="closed").double()
    with pytest.raises(ValueError, match="directed"):
        layer(normal(3, 2, seed=1), torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(ValueError, match="at most 5,000 nodes; got 5,001"):
        layer(torch.zeros(5001, 2, dtype=torch.float64), torch.tensor([[0, 1], [1, 0]]))


def test_what_mixes_the_features_is_of_length_one():
    """g(F) = F^T F / (||F^T F||_F + 1e-12): of zero it is zero."""
    cell = graph.EIGNN(4, 4).double().cell
    square = cell.factor.T @ cell.factor
    torch.testing.assert_close(cell.mixer * square.square().sum().sqrt(), square)
    with torch.no_grad():
        cell.factor.zero_()
    assert not bool(cell.mixer.any())


def test_a_self_loop_that_is_given_makes_way_for_the_layers_own():
    x, weight = normal(4, 2, seed=1), torch.tensor([1.0, 2.0, 3.0, 9.0], dtype=torch.float64)
    with_loop = torch.cat([CHAIN, torch.tensor([[1], [1]])], 1)
    layer = graph.IGNN(2, 3).double()
    expected = layer(x, CHAIN, weight[:3])
    torch.testing.assert_close(layer(x, with_loop, weight), expected)
    torch.testing.assert_close(layer(x, with_loop, weight.requires_grad_()), expected)
    torch.manual_seed(0)
    kept = graph.IGNN(2, 3, self_loops=False).double()
    assert not torch.allclose(kept(x, with_loop, weight), kept(x, CHAIN, weight[:3]))


def test_several_scales_are_several_equilibria():
    x, edge_index = normal(NODES, 5, seed=1), edges_of(NODES, 80, seed=2)
    layer = graph.MGNNI(5, 6, scales=(1, 3), **TIGHT).double()
    one, three = layer.solve(x, edge_index)
    z, u = three.value, layer.encode(x)
    edges, _ = layer.read(x, edge_index, None, None)
    stepped = z @ layer.equilibria[1].cell.mixer
    for _ in range(3):
        stepped = edges(stepped)
    torch.testing.assert_close(0.8 * stepped + u, z, rtol=0, atol=1e-9)
    states = torch.stack([one.value, z])
    shares = (torch.tanh(layer.attend(states)) @ layer.query.weight.T).softmax(0)
    torch.testing.assert_close(layer(x, edge_index), (shares * states).sum(0))


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hidden"), [("ignn", (6, 4, 6)), ("eignn", (6, 4)), ("mgnni", (6,)), ("mgnni", (4, 6))]
)
def test_batch_mates_change_neither_answers_nor_solves_nor_gradients(name, hidden):
    torch.manual_seed(0)
    # A tolerance far above rounding, so that graphs end at different counts.
    solver = eq.Anderson(period=3, rtol=1e-3, per_row=True)
    adjoint = eq.Implicit(linear=eq.GMRES(rtol=1e-12))
    fields = {"shape": (5,), "classes": 2, "level": "graph", "float64": True, "hidden": hidden}
    model = models.create(name, **fields, solver=solver, adjoint=adjoint).eval()
    together = model(uneven())
    weights = list(model.parameters())
    for number in range(3):
        single = model(alone(number))
        torch.testing.assert_close(single.output[0], together.output[number], rtol=1e-7, atol=1e-9)
        for one, all_three in zip(single.solutions, together.solutions, strict=True):
            assert int(one.status) == int(all_three.status[number]) == CONVERGED
            assert int(one.stats.evals) == int(all_three.stats.evals[number])
            torch.testing.assert_close(
                one.stats.residual[0], all_three.stats.residual[number], rtol=1e-5, atol=1e-9
            )
        of_one = torch.autograd.grad(single.output.sum(), weights)
        of_same = torch.autograd.grad(together.output[number].sum(), weights, retain_graph=True)
        for a, b in zip(of_one, of_same, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_the_graphs_of_a_batch_differ_in_how_long_they_take():
    torch.manual_seed(0)
    layer = graph.IGNN(5, 6).double()
    evals = layer.solve(*uneven()).stats.evals
    assert evals.shape == (3,) and len(set(evals.tolist())) > 1


def test_isolated_nodes_and_graphs_without_edges():
    none = torch.empty(2, 0, dtype=torch.int64)
    for options in ({}, {"self_loops": False}, {"normalize": "row", "self_loops": False}):
        layer = graph.IGNN(3, 4, **options)
        solution = layer.solve(torch.ones(5, 3), none, None, torch.tensor([0, 0, 1, 1, 2]))
        assert solution.status.tolist() == [CONVERGED] * 3
        assert bool(torch.isfinite(solution.value).all())


@pytest.mark.parametrize("kind", KINDS)
def test_isolated_nodes_hear_nobody(kind):
    torch.manual_seed(0)
    layer = kind(5, 4).double()
    x, edge_index, weight, batch = uneven()
    lonely = 4 + 8
    assert not bool((edge_index == lonely).any())
    before = layer(x, edge_index, weight, batch)[lonely]
    tight = 1e-3  # the default tolerance, with room: the nodes of a graph are solved for together
    other = torch.where(torch.arange(len(x))[:, None] == lonely, x, x + 1.0)
    torch.testing.assert_close(
        layer(other, edge_index, weight, batch)[lonely], before, rtol=tight, atol=0
    )
    assert bool(before.isfinite().all())


# --- gradients and precision ----------------------------------------------------------------------


def test_gradients_are_right_to_second_order_also_of_edge_weights():
    x, edge_index = normal(6, 2, seed=1).requires_grad_(), edges_of(6, 12, seed=2)
    weight = (normal(edge_index.shape[1], seed=3).abs() + 0.1).requires_grad_()
    adjoint = eq.Implicit(linear=eq.GMRES(rtol=1e-13))
    options = {"solver": eq.Anderson(rtol=1e-13), "adjoint": adjoint}
    layer = graph.IGNN(2, 2, activation="tanh", layer=options).double()
    for given in ((x,), (x, weight)):

        def f(*inputs):
            return layer(inputs[0], edge_index, *inputs[1:])

        assert torch.autograd.gradcheck(f, given, atol=1e-5, fast_mode=True)
        assert torch.autograd.gradgradcheck(f, given, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_gradients_of_features_and_edge_weights(kind):
    torch.manual_seed(0)
    options = {}
    if kind in (graph.EIGNN, graph.MGNNI):
        tight = {"solver": eq.Anderson(rtol=1e-13, max_evals=500)}
        options = {"layer": {**tight, "adjoint": eq.Implicit(linear=eq.GMRES(rtol=1e-13))}}
    layer = kind(2, 2, **options).double()
    x = torch.randn(4, 2, generator=draw(0), dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def f(x, weight):
        return layer(x, CHAIN, weight)

    assert torch.autograd.gradcheck(f, (x, weight), atol=1e-5, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_autocast(kind, weighted):
    torch.manual_seed(0)
    layer = kind(5, 4)
    x, edge_index, weight, batch = uneven()
    given = weight.float().requires_grad_(weighted)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x.float(), edge_index, given, batch)
    torch.testing.assert_close(
        y.float(), layer(x.float(), edge_index, given, batch), rtol=0.1, atol=0.1
    )
    y.float().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in layer.parameters())


# --- interface ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_interface_of_pyg(kind):
    layer = kind(-1, 4)
    assert repr(layer) == f"{kind.__name__}(-1, 4)"
    x = torch.randn(4, 3, generator=draw(0))
    plain = layer(x, CHAIN)
    torch.testing.assert_close(layer(x, edge_index=CHAIN, edge_weight=torch.ones(3)), plain)
    torch.testing.assert_close(layer(x, CHAIN, batch=torch.zeros(4, dtype=torch.int64)), plain)
    backwards = kind(3, 4, flow="target_to_source")
    backwards.load_state_dict(layer.state_dict())
    torch.testing.assert_close(backwards(x, CHAIN.flip(0)), plain)
    twin = copy.deepcopy(layer)
    torch.testing.assert_close(twin(x, CHAIN), plain)


def test_weights_are_drawn_anew():
    torch.manual_seed(0)
    x, edge_index = torch.rand(6, 5), edges_of(6, 12, seed=1)
    for kind in KINDS:
        layer = kind(-1, 4)
        assert layer(x, edge_index).shape == (6, 4)
        before = {name: p.detach().clone() for name, p in layer.named_parameters()}
        layer.reset_parameters()
        assert any(not torch.equal(p, before[name]) for name, p in layer.named_parameters())


@pytest.mark.parametrize(
    "options",
    [
        {"kappa": 1.0},
        {"activation": "gelu"},
        {"initial": "zeros"},
        {"flow": "up"},
        {"normalize": 1},
    ],
)
def test_impossible_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        graph.IGNN(2, 3, **options)
