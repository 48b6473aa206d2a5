"""Edges: their product and its derivatives, sparse matrices, what is refused."""

import warnings

import pytest
import torch
from drawn_graphs import CHAIN, NODES, TIGHT, draw, edges_of, normal, uneven

from equilibria.zoo.graph import model as graph
from equilibria.zoo.graph.model.edges import read_edges

# --- the product ----------------------------------------------------------------------------------


def test_the_product_is_linear_under_every_transform():
    x, edge_index = normal(7, 3, seed=1), edges_of(7, 20, seed=2)
    edges, _ = read_edges(x, edge_index)
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


def test_the_product_is_linear_in_the_weights_under_every_transform():
    x, edge_index, weight, _ = uneven()
    edges, tracked = read_edges(x, edge_index, weight.requires_grad_())
    assert tracked is weight

    def dense(w):
        a = torch.zeros(len(x), len(x), dtype=torch.float64)
        return a.index_put((edge_index[1], edge_index[0]), w, accumulate=True)

    def plain(z, w):
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


def test_degrees_are_counted_exactly_where_features_are_narrow():
    # In bfloat16, 256 + 1 is 256: the middle of a star of 1,000 would get four times its due.
    nodes = 1001
    star = torch.stack([torch.arange(1, nodes), torch.zeros(nodes - 1, dtype=torch.int64)])
    layer = graph.GCN(1, 1, normalize="row", bias=False, self_loops=False).bfloat16()
    with torch.no_grad():
        layer.linear.weight.fill_(1.0)
    y = layer(torch.ones(nodes, 1, dtype=torch.bfloat16), star)
    assert y[0].item() == pytest.approx(1.0, rel=0.02)


# --- sparse matrices ------------------------------------------------------------------------------


def test_a_sparse_adj_t_is_the_same_graph():
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


# --- what is refused ------------------------------------------------------------------------------

X = torch.ones(4, 2)
MISTAKES = {
    ValueError: [
        ((X, torch.tensor([[0], [4]])), "edge 0 joins nodes 0 and 4: there are 4 nodes"),
        ((X, torch.tensor([[0], [-1]])), "edge 0 joins nodes 0 and -1"),
        ((X, CHAIN.T), "transpose it with edge_index.T"),
        ((X, CHAIN, torch.tensor([1.0, torch.nan, 1.0])), "edge 1 has the weight nan"),
        ((X, CHAIN, torch.tensor([1.0, -2.0, 1.0])), "edge 1 has the weight -2"),
        ((X, CHAIN, torch.ones(2)), r"\(2,\): expected \(3,\), one for"),
        ((X[:0], CHAIN), r"x has the shape \(0, 2\)"),
        ((torch.ones(4, 3), CHAIN), "expected 2 features per node, got 3"),
        ((X, CHAIN, None, torch.tensor([0, 1, 0, 1])), "not sorted: node 2"),
        ((X, CHAIN, None, torch.tensor([0, 0, 2, 2])), "graph 1 has no node"),
        ((X, CHAIN, None, torch.tensor([-1, 0, 0, 0])), "batch has the graph -1"),
        ((X, CHAIN, None, torch.tensor([0, 0, 1, 1])), "node 1 of graph 0 and node 2"),
        ((X, CHAIN, None, torch.tensor([0, 0, 1])), r"\(3,\): expected \(4,\), the graph"),
    ],
    TypeError: [
        ((X, CHAIN.float()), "edge_index is torch.float32: expected int64"),
        ((X.long(), CHAIN), "floating-point features"),
        ((X.tolist(), CHAIN), "x: expected a tensor, got list"),
        ((X, CHAIN, [1.0, 1.0, 1.0]), "edge_weight: expected a tensor, got list"),
        ((X, CHAIN, None, [0, 0, 0, 0]), "batch: expected a tensor, got list"),
        ((X, CHAIN, None, torch.zeros(4)), "batch is torch.float32: expected int64"),
    ],
}


@pytest.mark.parametrize(
    ("error", "given", "words"), [(error, *row) for error, rows in MISTAKES.items() for row in rows]
)
@pytest.mark.parametrize("kind", [graph.IGNN, graph.GCN])
def test_mistakes_are_named(kind, error, given, words):
    with pytest.raises(error, match=words):
        kind(2, 3)(*given)
