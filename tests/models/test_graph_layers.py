"""Layers for graphs: right values, directions, batches, bounds, and what they refuse."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import equilibria as eq
from equilibria.models import graph
from equilibria.models.graph.edges import checked

CONVERGED = eq.Status.CONVERGED
TIGHT = {"layer": {"solver": eq.Anderson(rtol=1e-12, max_evals=500, per_row=True)}}
NODES = 30


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def edges_of(nodes: int, count: int, seed: int, undirected: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, nodes, (2, count), generator=generator)
    return torch.cat([found, found.flip(0)], 1).unique(dim=1) if undirected else found.unique(dim=1)


def dense(layer: graph.IGNN, x: Tensor, edge_index: Tensor, weight: Tensor | None = None) -> Tensor:
    """The matrix A^T that the layer multiplies by."""
    edges = layer.operands(x, edge_index, weight)[1].value
    a = torch.zeros(edges.nodes, edges.nodes, dtype=torch.float64)
    return a.index_put((edges.receiver, edges.sender), edges.weight, accumulate=True)


@pytest.mark.parametrize("normalise", ["sym", "row"])
def test_a_graph_of_30_nodes_equals_the_dense_solution(normalise: str) -> None:
    torch.manual_seed(0)
    x, edge_index = normal(NODES, 5, seed=1), edges_of(NODES, 80, seed=2)
    layer = graph.IGNN(5, 8, normalise=normalise, initial="uniform", **TIGHT).double()
    a = dense(layer, x, edge_index)
    w, omega = layer.recurrent.weight.detach(), layer.omega.weight.detach()
    z = torch.zeros(NODES, 8, dtype=torch.float64)
    for _ in range(2000):
        z = torch.relu(a @ z @ w.T + a @ x @ omega.T)
    torch.testing.assert_close(layer(x, edge_index), z, rtol=0, atol=1e-8)


def test_a_linear_equilibrium_equals_the_dense_solution() -> None:
    torch.manual_seed(0)
    x, edge_index = normal(NODES, 4, seed=1), edges_of(NODES, 80, seed=2)
    layer = graph.EIGNN(4, 4, **TIGHT).double()
    edges = layer.operands(x, edge_index)[1].value
    s = torch.zeros(NODES, NODES, dtype=torch.float64)
    s.index_put_((edges.receiver, edges.sender), edges.weight, accumulate=True)
    system = torch.eye(NODES * 4, dtype=torch.float64) - layer.cell.gamma * torch.kron(
        s, layer.cell.mixing.detach()
    )
    right = layer.encode(x).detach().flatten()
    expected = torch.linalg.solve(system, right).reshape(NODES, 4)
    torch.testing.assert_close(layer(x, edge_index), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_messages_go_with_the_flow(flow: str) -> None:
    """0 -> 1 -> 2, and only node 0 has something to say."""
    x = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    chain = torch.tensor([[0, 1], [1, 2]])
    given = chain if flow == "source_to_target" else chain.flip(0)
    layer = graph.IGNN(1, 1, flow=flow, normalise="row", **TIGHT).double()
    with torch.no_grad():
        layer.omega.weight.fill_(1.0)
    z = layer(x, given).flatten()
    # z_0 = .9 z_0 + 1, z_1 = .9 (z_0 + z_1) / 2 + 1 / 2, z_2 = .9 (z_1 + z_2) / 2.
    assert z.tolist() == pytest.approx([10.0, 5.0 / 0.55, 0.45 * 5.0 / 0.55 / 0.55])
    back = layer(x, given.flip(0)).flatten()
    assert back[1] == back[2] == 0.0


def test_a_sparse_adj_t_is_the_same_graph() -> None:
    x, edge_index = normal(NODES, 5, seed=1), edges_of(NODES, 80, seed=2)
    weight = normal(edge_index.shape[1], seed=3).abs()
    layer = graph.IGNN(5, 8, **TIGHT).double()
    adj_t = torch.sparse_coo_tensor(
        edge_index.flip(0), weight, (NODES, NODES), check_invariants=True
    )
    expected = layer(x, edge_index, weight)
    torch.testing.assert_close(layer(x, adj_t), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compressed = adj_t.to_sparse_csr()
    torch.testing.assert_close(layer(x, compressed), expected)


SIZES = (4, 9, 2)


def batch_of() -> tuple[Tensor, Tensor, Tensor]:
    parts = [edges_of(n, 3 * n, seed=n) for n in SIZES]
    begins = [0, SIZES[0], SIZES[0] + SIZES[1]]
    edge_index = torch.cat([e + b for e, b in zip(parts, begins, strict=True)], 1)
    batch = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
    return normal(sum(SIZES), 5, seed=9), edge_index, batch


@pytest.mark.parametrize("kind", [graph.IGNN, graph.EIGNN])
def test_a_graph_alone_equals_the_graph_in_a_batch(kind: type) -> None:
    torch.manual_seed(1)
    x, edge_index, batch = batch_of()
    layer = kind(5, 6, layer={"solver": eq.Anderson(rtol=1e-9, per_row=True)}).double()
    together = layer.solve(x, edge_index, None, batch)
    assert together.status.tolist() == [CONVERGED] * 3
    for number in range(3):
        rows = batch == number
        begin = int(rows.nonzero()[0])
        mine = edge_index[:, rows[edge_index[0]]] - begin
        alone = layer.solve(x[rows], mine)
        assert int(alone.status) == int(together.status[number])
        assert int(alone.stats.evals) == int(together.stats.evals[number])
        torch.testing.assert_close(alone.value, together.value[rows], rtol=1e-9, atol=1e-10)


def test_gradients_are_right_to_second_order_also_of_edge_weights() -> None:
    x, edge_index = normal(6, 2, seed=1).requires_grad_(), edges_of(6, 12, seed=2)
    weight = (normal(edge_index.shape[1], seed=3).abs() + 0.1).requires_grad_()
    adjoint = eq.Implicit(linear=eq.GMRES(rtol=1e-13))
    options = {"solver": eq.Anderson(rtol=1e-13), "adjoint": adjoint}
    layer = graph.IGNN(2, 2, activation="tanh", layer=options).double()
    for given in ((x,), (x, weight)):

        def f(*inputs: Tensor) -> Tensor:
            return layer(inputs[0], edge_index, *inputs[1:])

        assert torch.autograd.gradcheck(f, given, atol=1e-5)
        assert torch.autograd.gradgradcheck(f, given, atol=1e-4)


def test_the_product_is_linear_under_every_transform() -> None:
    x, edge_index = normal(7, 3, seed=1), edges_of(7, 20, seed=2)
    edges, _ = checked(x, edge_index)
    a = torch.zeros(7, 7, dtype=torch.float64)
    a.index_put_((edges.receiver, edges.sender), edges.weight, accumulate=True)
    torch.testing.assert_close(edges(x), a @ x)
    torch.testing.assert_close(edges(x, edges.weight), a @ x)
    stacked = torch.stack([x, 2 * x, -x])
    torch.testing.assert_close(torch.func.vmap(edges)(stacked), a @ stacked)
    _, tangent = torch.func.jvp(edges, (x,), (x.sin(),))
    torch.testing.assert_close(tangent, a @ x.sin())
    jacobian = torch.func.jacrev(edges)(x)
    torch.testing.assert_close(jacobian[:, 0, :, 0], a)


def test_the_closed_form_is_the_iterated_one_with_its_gradients() -> None:
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


def test_the_closed_form_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = graph.EIGNN(2, 2, form="closed").double()
    with pytest.raises(ValueError, match="directed"):
        layer(normal(3, 2, seed=1), torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(ValueError, match="at most 5,000 nodes; got 5,001"):
        layer(torch.zeros(5001, 2, dtype=torch.float64), torch.tensor([[0, 1], [1, 0]]))


def test_several_scales_are_several_equilibria() -> None:
    x, edge_index = normal(NODES, 5, seed=1), edges_of(NODES, 80, seed=2)
    layer = graph.MGNNI(5, 6, scales=(1, 3), **TIGHT).double()
    one, three = layer.solve(x, edge_index)
    z, u = three.value, layer.encode(x)
    edges, _ = layer.read(x, edge_index, None, None)
    stepped = z @ layer.equilibria[1].cell.mixing
    for _ in range(3):
        stepped = edges(stepped)
    torch.testing.assert_close(0.8 * stepped + u, z, rtol=0, atol=1e-9)
    low, high = torch.minimum(one.value, z), torch.maximum(one.value, z)
    joined = layer(x, edge_index)
    assert bool(((joined >= low - 1e-12) & (joined <= high + 1e-12)).all())  # a weighted mean


def test_isolated_nodes_and_graphs_without_edges() -> None:
    none = torch.empty(2, 0, dtype=torch.int64)
    for options in ({}, {"self_loops": False}, {"normalise": "row", "self_loops": False}):
        layer = graph.IGNN(3, 4, **options)
        solution = layer.solve(torch.ones(5, 3), none, None, torch.tensor([0, 0, 1, 1, 2]))
        assert solution.status.tolist() == [CONVERGED] * 3
        assert bool(torch.isfinite(solution.value).all())


def test_lazy_widths_and_reset() -> None:
    torch.manual_seed(0)
    x, edge_index = torch.rand(6, 5), edges_of(6, 12, seed=1)
    for kind in (graph.IGNN, graph.EIGNN, graph.MGNNI, graph.GCN, graph.FiniteIGNN):
        layer = kind(-1, 4)
        assert layer(x, edge_index).shape == (6, 4)
        before = {name: p.detach().clone() for name, p in layer.named_parameters()}
        layer.reset_parameters()
        assert any(not torch.equal(p, before[name]) for name, p in layer.named_parameters())


# --- bounds -----------------------------------------------------------------------------------


def test_rows_are_projected_onto_the_l1_ball() -> None:
    w = normal(20, 7, seed=1)
    found = graph.project_rows_(w.clone(), 1.5)
    assert float(found.abs().sum(1).max()) <= 1.5 + 1e-12
    inside = w.abs().sum(1) <= 1.5
    assert torch.equal(found[inside], w[inside])
    # The nearest point: no other point of the ball is nearer to any row.
    other = normal(20, 7, seed=2)
    other = 1.5 * other / other.abs().sum(1, keepdim=True)
    for share in (0.01, 0.5, 1.0):
        moved = (1 - share) * found + share * other
        assert bool(((moved - w).norm(dim=1) >= (found - w).norm(dim=1) - 1e-12).all())


@pytest.mark.parametrize("own_loop", [True, False])
def test_the_bound_holds_after_every_step(own_loop: bool) -> None:
    torch.manual_seed(0)
    x, edge_index, batch = batch_of()
    config = graph.IGNNConfig(shape=(5,), classes=3, level="graph", hidden=(6, 6))
    model = config.build().double()
    layers: Any = model.layers
    optimiser = torch.optim.SGD(model.parameters(), lr=5.0)
    if own_loop:
        graph.constrain_after(optimiser, model)
    for step in range(3):
        loss = model((x, edge_index, None, batch)).output.square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if not own_loop:
            model.constrain()
        for layer in layers:
            assert float(layer.recurrent.weight.detach().abs().sum(1).max()) <= 0.9 + 1e-12, step


def test_evaluating_leaves_every_weight_as_it_is() -> None:
    x, edge_index, batch = batch_of()
    model = graph.IGNNConfig(shape=(5,), classes=3, level="graph", hidden=(6, 6)).build().double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)  # outside of any ball
    before = copy.deepcopy(model.state_dict())
    for mode in (True, False):
        model.train(mode)((x, edge_index, None, batch))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_perron_radius_is_bounded_from_above() -> None:
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


def test_without_normalisation_the_radius_is_asked_for() -> None:
    x, edge_index = normal(NODES, 5, seed=1), edges_of(NODES, 80, seed=2)
    with pytest.raises(ValueError, match="perron_radius"):
        graph.IGNN(5, 4, normalise=None)
    radius = graph.perron_radius(edge_index, nodes=NODES)
    layer = graph.IGNN(5, 4, normalise=None, self_loops=False, radius=radius, **TIGHT).double()
    assert int(layer.solve(x, edge_index).status) == CONVERGED
    with pytest.raises(ValueError, match="which makes it 1"):
        graph.IGNN(5, 4, radius=2.0)


# --- what is refused --------------------------------------------------------------------------

X, EDGES = torch.ones(4, 2), torch.tensor([[0, 1, 2], [1, 2, 3]])


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            (X, torch.tensor([[0], [4]])),
            ValueError,
            "node 4 is out of range; the 4 nodes are 0 to 3",
        ),
        ((X, torch.tensor([[0], [-1]])), ValueError, "node -1 is out of range"),
        ((X, EDGES.float()), TypeError, "expected int64, got torch.float32"),
        ((X, EDGES.T), ValueError, "pass edge_index.T"),
        ((X, EDGES, torch.tensor([1.0, torch.nan, 1.0])), ValueError, "got NaN"),
        ((X, EDGES, torch.tensor([1.0, -2.0, 1.0])), ValueError, "got -2"),
        ((X, EDGES, torch.ones(2)), ValueError, "each of the 3 edges"),
        ((torch.ones(0, 2), EDGES), ValueError, "the graph is empty"),
        ((X.long(), EDGES), TypeError, "floating-point features"),
        ((torch.ones(4, 3), EDGES), ValueError, "expected 2 features per node, got 3"),
        ((X, EDGES, None, torch.tensor([0, 1, 0, 1])), ValueError, "unsorted batch"),
        ((X, EDGES, None, torch.tensor([0, 0, 2, 2])), ValueError, "without a gap, and graph 1"),
        ((X, EDGES, None, torch.tensor([-1, 0, 0, 0])), ValueError, "counted from 0, got -1"),
        ((X, EDGES, None, torch.tensor([0, 0, 1, 1])), ValueError, "node 1 of graph 0 and node 2"),
        ((X.tolist(), EDGES), TypeError, "x: expected a tensor, got list"),
        ((X, EDGES, [1.0, 1.0, 1.0]), TypeError, "edge_weight: expected a tensor, got list"),
        ((X, EDGES, None, [0, 0, 0, 0]), TypeError, "batch: expected a tensor, got list"),
        ((X, EDGES, None, torch.tensor([0, 0, 1])), ValueError, "each of the 4 nodes"),
        ((X, EDGES, None, torch.zeros(4)), TypeError, "batch: expected int64"),
    ],
)
@pytest.mark.parametrize("kind", [graph.IGNN, graph.GCN])
def test_mistakes_are_named(kind: type, given: tuple, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        kind(2, 3)(*given)


@pytest.mark.parametrize(
    "options",
    [
        {"kappa": 1.0},
        {"activation": "gelu"},
        {"initial": "zeros"},
        {"flow": "up"},
        {"normalise": 1},
    ],
)
def test_impossible_options(options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        graph.IGNN(2, 3, **options)
