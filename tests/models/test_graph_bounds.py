"""Graph layers under training, autocast and other people's tensors: bounds, widths and warnings."""

import copy
import warnings

import pytest
import torch
from torch import Tensor

import equilibria as eq
from equilibria import models
from equilibria.models import graph
from equilibria.models.graph.edges import checked
from equilibria.train.initialisation import Initialisation

KINDS = (graph.IGNN, graph.EIGNN, graph.MGNNI, graph.GCN, graph.FiniteIGNN)
BOUNDED = (graph.IGNN, graph.FiniteIGNN)
NAMES = ("ignn", "eignn", "mgnni", "gcn", "ignn-finite", "graph-mlp")
CHAIN = torch.tensor([[0, 1, 2], [1, 2, 3]])
CONVERGED = eq.Status.CONVERGED


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uneven() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three directed, weighted graphs of 4, 9 and 2 nodes; the second has an isolated node."""
    sizes, parts, begin = (4, 9, 2), [], 0
    for size in sizes:
        found = torch.randint(0, max(size - 1, 2), (2, 3 * size), generator=draw(size))
        parts.append(found.unique(dim=1) + begin)
        begin += size
    edge_index = torch.cat(parts, 1)
    weight = torch.rand(edge_index.shape[1], generator=draw(1), dtype=torch.float64) + 0.1
    x = torch.randn(begin, 5, generator=draw(2), dtype=torch.float64)
    return x, edge_index, weight, torch.arange(3).repeat_interleave(torch.tensor(sizes))


def alone(number: int) -> tuple[Tensor, Tensor, Tensor, None]:
    """One of them."""
    x, edge_index, weight, batch = uneven()
    rows = batch == number
    mine = rows[edge_index[0]]
    return x[rows], edge_index[:, mine] - int(rows.nonzero()[0]), weight[mine], None


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(6,), (6, 4, 6)], ids=["one-layer", "three-layers"])
@pytest.mark.parametrize("name", ["ignn", "eignn", "mgnni"])
def test_batch_mates_change_neither_answers_nor_solves_nor_gradients(name, hidden):
    torch.manual_seed(0)
    # A tolerance far above rounding, so that graphs end at different counts.
    solver = eq.AlternatingAnderson(rtol=1e-3, per_row=True)
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


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [graph.EIGNN, graph.MGNNI, graph.GCN, graph.FiniteIGNN])
def test_gradients_of_features_and_edge_weights(kind):
    torch.manual_seed(0)
    options = {}
    if kind in (graph.EIGNN, graph.MGNNI):
        tight = {"solver": eq.Anderson(rtol=1e-13, max_evals=500)}
        options = {"layer": {**tight, "adjoint": eq.Implicit(linear=eq.GMRES(rtol=1e-13))}}
    layer = kind(2, 2, **options).double()
    x = torch.randn(4, 2, generator=draw(0), dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *of: layer(of[0], CHAIN, of[1]), (x, weight), atol=1e-5)


def test_the_product_is_linear_in_the_weights_under_every_transform():
    x, edge_index, weight, _ = uneven()
    edges, tracked = checked(x, edge_index, weight.requires_grad_())
    assert tracked is weight

    def dense(w: Tensor) -> Tensor:
        a = torch.zeros(len(x), len(x), dtype=torch.float64)
        return a.index_put((edge_index[1], edge_index[0]), w, accumulate=True)

    def plain(z: Tensor, w: Tensor) -> Tensor:
        return dense(w) @ z

    given, tangents = (x, weight.detach()), (x.sin(), weight.detach().cos())
    for one, two in zip(
        torch.func.jvp(edges, given, tangents), torch.func.jvp(plain, given, tangents), strict=True
    ):
        torch.testing.assert_close(one, two)
    (_, tangent) = torch.func.jvp(lambda w: edges(x, w), given[1:], tangents[1:])
    torch.testing.assert_close(tangent, plain(x, tangents[1]))
    for argument in (0, 1):
        torch.testing.assert_close(
            torch.func.jacrev(edges, argument)(*given), torch.func.jacrev(plain, argument)(*given)
        )
    pairs = torch.stack([x, -x]), torch.stack([given[1], 2 * given[1]])
    for dims, operands in (
        ((0, 0), pairs),
        ((None, 0), (x, pairs[1])),
        ((0, None), (pairs[0], given[1])),
    ):
        found, expected = (torch.func.vmap(f, dims)(*operands) for f in (edges, plain))
        torch.testing.assert_close(found, expected)
    assert torch.autograd.gradgradcheck(edges, (x.requires_grad_(), weight))


def test_the_values_of_a_sparse_matrix_have_gradients_and_torch_warns_of_nothing():
    torch.manual_seed(0)
    weight = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    x = torch.randn(4, 2, generator=draw(0), dtype=torch.float64)
    layer = graph.IGNN(2, 3).double()
    given = weight.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(x, CHAIN, given).sum(), given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = weight.clone().requires_grad_()
        adj_t = torch.sparse_coo_tensor(CHAIN.flip(0), values, (4, 4), check_invariants=True)
        (found,) = torch.autograd.grad(layer(x, adj_t).sum(), values)
    torch.testing.assert_close(found, expected)


def test_a_sparse_tensor_of_another_package_is_known_by_its_method():
    class SparseTensor:
        def to_torch_sparse_coo_tensor(self):
            return torch.sparse_coo_tensor(
                CHAIN.flip(0), torch.ones(3), (4, 4), check_invariants=True
            )

    torch.manual_seed(0)
    x, layer = torch.randn(4, 2, generator=draw(0)), graph.IGNN(2, 3)
    torch.testing.assert_close(layer(x, SparseTensor()), layer(x, CHAIN))
    with pytest.raises(TypeError, match="sparse adj_t, got list"):
        layer(x, [[0], [1]])


# --- precision ------------------------------------------------------------------------------------


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


def test_degrees_are_counted_exactly_where_features_are_narrow():
    # In bfloat16, 256 + 1 is 256: the middle of a star of 1,000 would get four times its due.
    nodes = 1001
    star = torch.stack([torch.arange(1, nodes), torch.zeros(nodes - 1, dtype=torch.int64)])
    layer = graph.GCN(1, 1, normalise="row", bias=False, self_loops=False).bfloat16()
    with torch.no_grad():
        layer.linear.weight.fill_(1.0)
    y = layer(torch.ones(nodes, 1, dtype=torch.bfloat16), star)
    assert y[0].item() == pytest.approx(1.0, rel=0.02)


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("initial", ["identity", "uniform"])
@pytest.mark.parametrize("radius", [None, 0.5, 7.0])
def test_the_bound_holds_from_the_start(kind, initial, radius):
    options = {} if radius is None else {"normalise": None, "radius": radius, "self_loops": False}
    torch.manual_seed(0)
    layer = kind(3, 40, initial=initial, kappa=0.8, **options)
    bound = 0.8 / (radius or 1.0)
    assert layer.bound == pytest.approx(bound)
    for _ in range(2):
        largest = float(layer.recurrent.weight.detach().double().abs().sum(1).max())
        assert 0.2 * bound < largest <= bound * (1 + 1e-6)
        layer.reset_parameters()


def test_a_self_loop_of_the_layer_adds_to_the_radius_that_is_given():
    generator = draw(3)
    edge_index = torch.randint(0, 8, (2, 20), generator=generator).unique(dim=1)
    radius = graph.perron_radius(edge_index, nodes=8)
    options = {"normalise": None, "radius": radius}
    for loops in (False, True):
        layer = graph.IGNN(2, 3, **options, self_loops=loops).double()
        x = torch.ones(8, 2, dtype=torch.float64)
        edges, _ = layer.read(x, edge_index, None, None)
        a = torch.zeros(8, 8, dtype=torch.float64)
        a.index_put_((edges.receiver, edges.sender), edges.weight, accumulate=True)
        true = float(torch.linalg.eigvals(a).abs().max())
        assert float(layer.recurrent.weight.detach().abs().sum(1).max()) * true <= 0.9 + 1e-9


def test_a_projection_in_single_precision_ends_inside_and_stays():
    weight = torch.randn(200, 300, generator=draw(0))
    once = graph.project_rows_(weight.clone(), 0.9)
    assert float(once.double().abs().sum(1).max()) <= 0.9 * (1 + 1e-6)
    torch.testing.assert_close(graph.project_rows_(once.clone(), 0.9), once, rtol=0, atol=1e-7)
    # Rows well inside are untouched, bit for bit.
    small = 1e-3 * weight
    assert torch.equal(graph.project_rows_(small.clone(), 0.9), small)


def test_bounds_in_a_loop_of_ones_own_end_with_the_handle():
    torch.manual_seed(0)
    layer = graph.IGNN(2, 3)
    optimiser = torch.optim.SGD(layer.parameters(), lr=100.0)
    handle = graph.constrain_after(optimiser, layer)

    def step() -> float:
        optimiser.zero_grad()
        (-layer.recurrent.weight.sum()).backward()
        optimiser.step()
        return float(layer.recurrent.weight.detach().abs().sum(1).max())

    assert step() <= 0.9 * (1 + 1e-6)
    handle.remove()
    assert step() > 100.0


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


def test_weights_that_a_recipe_draws_outside_of_the_bounds_are_refused():
    model = models.create("ignn", shape=(5,), classes=2, level="node", hidden=(16,))
    with pytest.raises(ValueError, match=r"outside the bounds.*cell\.linear\.weight.*lower"):
        Initialisation(ensemble="orthogonal", scale=0.9).apply(model, lambda: None)
    begun = Initialisation(ensemble="orthogonal", scale=0.1).apply(model, lambda: None)
    assert begun.rows[0].gain == pytest.approx(0.1)


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
    with pytest.raises(ValueError, match="expected 3 features per node, got 5"):
        layer(torch.ones(4, 5), CHAIN)


@pytest.mark.parametrize("name", NAMES)
def test_every_network_names_mistakes(name):
    model = models.create(name, shape=(2,), classes=3, level="node", hidden=(4,))
    x = torch.ones(4, 2)
    for given, words in (
        ((torch.ones(4, 3), CHAIN, None, None), "expected 2 features per node, got 3"),
        ((x, CHAIN + 1, None, None), "node 4 is out of range"),
        ((x, CHAIN, -torch.ones(3), None), "weights >= 0, got -1"),
        ((x, CHAIN, None, torch.tensor([1, 1, 0, 0])), "unsorted batch"),
        ((x[:0], CHAIN, None, None), "the graph is empty"),
    ):
        with pytest.raises(ValueError, match=words):
            model(given)
