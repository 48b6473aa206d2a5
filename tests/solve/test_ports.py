"""Eight kinds of implicit layer that others have published, each as one map.

Given tolerances and nothing else, value and gradient are those of plain iteration that has
converged, differentiated step by step.
"""

import math
from dataclasses import replace

import torch
from problems import normal, with_norm
from references import iterate
from torch import nn
from torch.nn import functional as F

import equilibria as eq

DEFAULT = eq.DEQ(torch.tanh)
TIGHT = {
    "solver": replace(DEFAULT.solver, rtol=1e-11, max_evals=1000),
    "adjoint": replace(DEFAULT.adjoint, linear=replace(DEFAULT.adjoint.linear, rtol=1e-11)),
}


def drawn(build, scale: float) -> nn.Module:
    """A module in float64 whose weights are `scale` times their usual size."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build().double()
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.data *= scale
    return module


def assert_solved(f, z0, operands, wanted, steps: int, loss=lambda z: z.square().sum()) -> None:
    """Compare with `steps` plain iterations, value and gradients with respect to `wanted`.

    `operands` are those of the map, `wanted` leaves among all that it depends on.
    """
    sol = eq.fixed_point(f, z0, *operands, **TIGHT)
    assert (sol.status == eq.Status.CONVERGED).all()
    plain = [x.value if isinstance(x, eq.solve.Shared) else x for x in operands]
    reference = iterate(f, z0, *plain, steps=steps)
    with torch.no_grad():
        left = f(reference, *plain) - reference
        assert left.norm() < 1e-10 * reference.norm()
        assert reference.norm() > 0.1 and (reference - z0).norm() > 0.1
    torch.testing.assert_close(sol.value, reference, rtol=1e-7, atol=1e-8)
    found, expected = (torch.autograd.grad(loss(z), wanted) for z in (sol.value, reference))
    assert all(each.abs().max() > 1e-4 for each in expected)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert (sol.adjoint.status == eq.Status.CONVERGED).all()


class Residual(nn.Module):
    """norm(relu(z + norm(x + conv norm relu conv z))), of the tutorial on deep implicit layers."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.narrow = nn.Conv2d(6, 4, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(2, width) for width in (6, 4, 4)])

    def forward(self, z, x):
        inner = self.norms[0](F.relu(self.wide(z)))
        return self.norms[2](F.relu(z + self.norms[1](x + self.narrow(inner))))


def test_a_residual_network() -> None:
    cell, x = drawn(Residual, 0.3), normal(2, 4, 5, 5, seed=40).requires_grad_()
    # A loss that normalisation does not hold constant.
    target = normal(2, 4, 5, 5, seed=41)
    wanted = [x, *cell.parameters()]
    assert_solved(cell, torch.zeros_like(x), [x], wanted, 90, lambda z: (z * target).sum())


def test_plug_and_play() -> None:
    """Proximal gradient for a picture of which half the pixels are known: the denoiser is the
    proximal operator."""
    known = (normal(2, 1, 6, 6, seed=50) > 0).double()
    y = (known * normal(2, 1, 6, 6, seed=51)).requires_grad_()
    smooth = (torch.ones(1, 1, 3, 3).double() / 9).requires_grad_()
    detail = (0.1 * normal(2, 1, 3, 3, seed=52)).requires_grad_()
    step = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)

    def denoise(z):
        inner = torch.tanh(F.conv2d(z, detail, padding=1))
        return (
            0.5 * z
            + 0.5 * F.conv2d(z, smooth, padding=1)
            - F.conv_transpose2d(inner, detail, padding=1)
        )

    def f(z, y):
        return denoise(z - step * known * (z - y))

    assert_solved(f, torch.zeros_like(y), [y], [y, smooth, detail, step], 300)


def test_sinkhorn() -> None:
    """The potential of entropic optimal transport, less its mean, which is arbitrary."""
    cost = normal(3, 5, 6, seed=60).abs().requires_grad_()
    rows, columns = math.log(1 / 5), normal(3, 6, seed=61).log_softmax(1)
    blur = 0.3

    def dual(g, cost):
        return blur * (rows - ((g[:, None] - cost) / blur).logsumexp(2))

    def f(g, cost):
        new = blur * (columns - ((dual(g, cost)[:, :, None] - cost) / blur).logsumexp(1))
        return new - new.mean(1, keepdim=True)

    def transport_cost(g):
        plan = ((dual(g, cost)[:, :, None] + g[:, None] - cost) / blur).exp()
        return (plan * cost).sum()

    assert_solved(f, torch.zeros(3, 6).double(), [cost], [cost], 400, transport_cost)


def test_bilevel_optimisation() -> None:
    """The gradient of a validation loss with respect to the strength of a ridge penalty and to the
    training data, where f is a step of gradient descent; and the closed form."""
    a, b = normal(60, 4, seed=70).requires_grad_(), normal(60, seed=71)
    held_out, target = normal(20, 4, seed=72), normal(20, seed=73)
    strength = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)

    def training_loss(w):
        return ((a @ w - b).square().mean() + strength.exp() * w.square().sum()) / 2

    def f(w):
        return w - 0.5 * torch.func.vmap(torch.func.grad(training_loss))(w)

    def validation_loss(w):
        return (w @ held_out.T - target).square().mean()

    z0 = torch.zeros(1, 4, dtype=torch.float64)
    assert_solved(f, z0, [], [strength, a], 60, validation_loss)
    gram = a.T @ a / 60 + strength.exp() * torch.eye(4, dtype=torch.float64)
    exact = torch.linalg.solve(gram, a.T @ b / 60)
    found = eq.fixed_point(f, z0, **TIGHT).value[0]
    losses = [validation_loss(w[None]) for w in (found, exact)]
    gradients = [torch.autograd.grad(each, strength)[0] for each in losses]
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=0)


def test_an_implicit_graph_network() -> None:
    """Z = tanh(A Z W + X B) of IGNN, for three graphs with five nodes."""
    edges = (normal(3, 5, 5, seed=80) > 0).double()
    graph = edges + edges.mT + torch.eye(5).double()
    degree = graph.sum(2).rsqrt()
    graph = degree[:, :, None] * graph * degree[:, None]
    w, b = with_norm(0.9, 4, seed=81).requires_grad_(), normal(2, 4, seed=82).requires_grad_()
    x = normal(3, 5, 2, seed=83).requires_grad_()

    def f(z, graph, x):
        return torch.tanh(graph @ z @ w + x @ b)

    assert_solved(f, torch.zeros(3, 5, 4).double(), [graph, x], [w, b, x], 300)


def test_a_monotone_operator_network() -> None:
    """Forward-backward splitting for z = relu(W z + U x), with I - W strongly monotone."""
    a, b, u = (normal(6, width, seed=90 + width).div(2).requires_grad_() for width in (6, 5, 3))
    x = normal(4, 3, seed=99).requires_grad_()

    def f(z, x):
        skew = b @ b.T.roll(1, dims=1)
        linear = 0.5 * z - z @ a.T @ a + z @ (skew - skew.T)
        return F.relu(z + 0.2 * (linear + x @ u.T - z))

    assert_solved(f, torch.zeros(4, 6).double(), [x], [a, b, u, x], 500)


class Attention(nn.Module):
    """A block of a generative equilibrium transformer: the noise enters queries, keys, values."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.mix, self.inject = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, z, noise):
        mixed = self.mix(z) + self.inject(noise)
        q, k, v = mixed.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        z = self.norms[0](z + self.out(heads))
        return self.norms[1](noise + z + self.mlp(z))


def test_a_generative_equilibrium_transformer() -> None:
    cell, noise = drawn(Attention, 0.7), normal(2, 5, 8, seed=100).requires_grad_()
    target = normal(2, 5, 8, seed=101)
    wanted = [noise, *cell.parameters()]
    assert_solved(cell, torch.zeros_like(noise), [noise], wanted, 150, lambda z: (z * target).sum())


def test_a_coordinate_network() -> None:
    """A sinusoid for every coordinate of a picture, read out as its brightness."""
    rows = torch.linspace(-1, 1, 6, dtype=torch.float64)
    x = torch.cartesian_prod(rows, rows).requires_grad_()
    w = with_norm(0.9, 12, seed=110).requires_grad_()
    waves, phases = (normal(*s, seed=111).mul(4).requires_grad_() for s in ((2, 12), (12,)))
    read, picture = normal(12, seed=112), torch.sin(3 * x.detach()).prod(1)

    def f(z, x):
        return torch.sin(z @ w + x @ waves + phases)

    def loss(z):
        return (z @ read - picture).square().mean()

    assert_solved(f, torch.zeros(36, 12).double(), [x], [x, w, waves, phases], 400, loss)
