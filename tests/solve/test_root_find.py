"""Roots: the fixed points of z - g(z)."""

import math

import pytest
import torch
from torch.func import grad, jacrev, vmap

import equilibria as eq

D = torch.float64
CONVERGED = eq.Status.CONVERGED


def rosenbrock(z):
    x, y = z.unbind(1)
    return torch.stack([1 - x, 10 * (y - x * x)], 1)


def powell(z):
    """Singular at its root, 0."""
    a, b, c, d = z.unbind(1)
    linear = a + 10 * b, 5**0.5 * (c - d)
    return torch.stack([*linear, (b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2], 1)


def badly_scaled(z):
    x, y = z.unbind(1)
    return torch.stack([1e4 * x * y - 1, (-x).exp() + (-y).exp() - 1.0001], 1)


def helical_valley(z):
    x, y, w = z.unbind(1)
    turn = torch.atan2(y, x) / (2 * math.pi)
    return torch.stack([10 * (w - 10 * turn), 10 * (torch.hypot(x, y) - 1), w], 1)


def tridiagonal(z):
    padded = torch.nn.functional.pad(z, (1, 1))
    return (3 - 2 * z) * z - padded[:, :-2] - 2 * padded[:, 2:] + 1


def boundary_value(z):
    h = 1 / (z.shape[1] + 1)
    t = torch.arange(1, z.shape[1] + 1) * h
    padded = torch.nn.functional.pad(z, (1, 1))
    return 2 * z - padded[:, :-2] - padded[:, 2:] + h * h * (z + t + 1) ** 3 / 2


def trigonometric(z):
    n, i = z.shape[1], torch.arange(1, z.shape[1] + 1)
    return n - z.cos().sum(1, keepdim=True) + i * (1 - z.cos()) - z.sin()


def almost_linear(z):
    linear = z + z.sum(1, keepdim=True) - (z.shape[1] + 1)
    return torch.cat([linear[:, :-1], z.prod(1, keepdim=True) - 1], 1)


# More, Garbow and Hillstrom 1981, at their starts; and scalars.
CLASSICAL = {
    "rosenbrock": (rosenbrock, [-1.2, 1.0]),
    "powell": (powell, [3.0, -1.0, 0.0, 1.0]),
    "badly_scaled": (badly_scaled, [0.0, 1.0]),
    "helical_valley": (helical_valley, [-1.0, 0.0, 0.0]),
    "tridiagonal": (tridiagonal, [-1.0] * 20),
    "boundary_value": (boundary_value, [-0.1] * 30),
    "trigonometric": (trigonometric, [0.1] * 10),
    "almost_linear": (almost_linear, [0.5] * 10),
    "exp": (lambda z: z.exp() - 2, [5.0]),
    "large": (lambda z: 1e3 * (z**3 - z - 1), [2.0]),
    "small": (lambda z: 1e-3 * (z**3 - z - 1), [2.0]),
    "negative": (lambda z: 1 + z - z**3, [2.0]),
    "zero": (lambda z: z.sin(), [0.5]),
}


@pytest.mark.parametrize("name", CLASSICAL)
def test_classical_problems(name):
    g, z0 = CLASSICAL[name]
    sol = eq.root_find(g, torch.tensor([z0], dtype=D))
    assert sol.status.tolist() == [CONVERGED]
    assert float(g(sol.value).norm()) < 1e-4


def test_what_the_residual_is():
    z0 = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=D)
    g = lambda z: z**2 - 2  # noqa: E731
    sol = eq.root_find(g, z0, solver=eq.Picard(max_evals=1))
    torch.testing.assert_close(sol.stats.residual, g(z0).norm(dim=1) / (z0 - g(z0)).norm(dim=1))
    for atol, status in ((1e-2, 0), (1e-4, 1)):  # in the units of g, RMS
        near = 2**0.5 + torch.full((1, 50), 1e-3 / 8**0.5, dtype=D)
        once = eq.Picard(rtol=0.0, atol=atol, max_evals=1)
        assert eq.root_find(g, near, solver=once).status.tolist() == [status]


def test_plain_iteration_subtracts_g():
    z0 = torch.tensor([[4.0]], dtype=D)
    sol = eq.root_find(lambda z: 0.5 * z, z0, solver=eq.Picard(max_evals=3), states=(1, 2))
    assert [float(s) for s in sol.states] == [2.0, 1.0]


def test_derivatives_to_second_order():
    """z^3 + z = a."""
    a = torch.tensor([[1.0], [2.0]], dtype=D, requires_grad=True)
    options = eq.profiles.science(rtol=1e-12)
    z = eq.root_find(lambda z, a: z**3 + z - a, torch.zeros(2, 1, dtype=D), a, **options).value
    (first,) = torch.autograd.grad(z.sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a)
    slope = 3 * z**2 + 1
    torch.testing.assert_close(first, 1 / slope)
    torch.testing.assert_close(second, -6 * z / slope**3)


def test_under_transforms():
    a = torch.tensor([[1.0], [2.0], [3.0]], dtype=D)

    def root(a):
        return eq.root_find(lambda z, a: z**3 + z - a, torch.zeros_like(a), a).value

    slope = 1 / (3 * root(a) ** 2 + 1)
    torch.testing.assert_close(grad(lambda a: root(a).sum())(a), slope, rtol=1e-4, atol=0)
    torch.testing.assert_close(
        vmap(jacrev(lambda a: root(a[None])[0]))(a).flatten(), slope.flatten(), rtol=1e-4, atol=0
    )


def test_parameters_of_a_module_and_trees():
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 3).double()

    class G(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, z, x):
            return {"a": 3 * z["a"] - self.net(z["a"]) - x, "b": (z["b"][0] - z["a"],)}

    x = torch.randn(4, 3, dtype=D)
    z0 = {"a": torch.zeros_like(x), "b": (torch.zeros_like(x),)}
    tight = eq.NewtonKrylov(rtol=1e-12, max_evals=500)
    sol = eq.root_find(G(), z0, x, solver=tight, adjoint=eq.Implicit(linear=eq.GMRES(rtol=1e-12)))
    matrix = 3 * torch.eye(3, dtype=D) - net.weight
    exact = torch.linalg.solve(matrix, (x + net.bias).T).T
    torch.testing.assert_close(sol.value["b"][0], exact)
    wanted = torch.autograd.grad(exact.square().sum(), net.parameters())
    loss = sol.value["b"][0].square().sum()
    torch.testing.assert_close(torch.autograd.grad(loss, net.parameters()), wanted)


@pytest.mark.parametrize("adjoint", [eq.Phantom(), eq.NeumannPhantom(), eq.JacobianFree()])
def test_other_adjoints_see_the_map(adjoint):
    a = torch.tensor([[2.0]], dtype=D, requires_grad=True)
    z0 = torch.ones(1, 1, dtype=D)
    newton = eq.NewtonKrylov(rtol=1e-12)
    root = eq.root_find(lambda z, a: z - a.cos(), z0, a, solver=newton, adjoint=adjoint)
    point = eq.fixed_point(lambda z, a: a.cos() + 0 * z, z0, a, solver=newton, adjoint=adjoint)
    gradients = [torch.autograd.grad(each.value.sum(), a)[0] for each in (root, point)]
    torch.testing.assert_close(*gradients)


def test_a_root_that_is_not_there():
    z0 = torch.ones(2, 1, dtype=D)
    with pytest.raises(eq.SolveError, match="root_find: 2 of 2 samples did not converge"):
        eq.root_find(lambda z: z**2 + 1, z0, throw=True)
    a = torch.ones(2, 1, dtype=D, requires_grad=True)
    with pytest.warns(eq.SolveWarning) as heard:
        eq.root_find(lambda z, a: z**2 + a, z0, a).value.sum().backward()
    assert any("root_find: 2 of 2 samples" in str(each.message) for each in heard)


def test_options_reach_the_solve():
    z0 = torch.tensor([[1.0], [3.0]], dtype=D)
    g = lambda z: z**3 - 8  # noqa: E731
    sol = eq.root_find(g, z0, trace=True, solver=eq.NewtonKrylov(rtol=1e-9, max_evals=99))
    assert sol.stats.trace is not None and (sol.status == CONVERGED).all()
    again = eq.root_find(g, z0, warm=sol, solver=eq.NewtonKrylov(rtol=1e-9))
    assert again.stats.evals.tolist() == [1, 1]
    pair = lambda z: (g(z), z)  # noqa: E731
    assert torch.equal(eq.root_find(pair, z0, has_aux=True).aux, eq.root_find(g, z0).value)
    with pytest.raises(TypeError, match="thro"):
        eq.root_find(g, z0, thro=True)


@pytest.mark.parametrize(
    ("g", "error", "words"),
    [
        (3, TypeError, "g: expected a function"),
        (lambda z: z[:, 0], ValueError, r"g returned the shape \(2,\)"),
        (lambda z: z[:1], ValueError, r"g returned the shape \(1, 3\)"),
        (lambda z: z.float(), TypeError, "g returned torch.float32"),
        (lambda z: (z, z), TypeError, "g returned tuple.*has_aux=True"),
        (lambda z: z.add_(1), RuntimeError, "g changed its state in place"),
    ],
)
def test_what_is_wrong_is_said_of_g(g, error, words):
    with pytest.raises(error, match=words):
        eq.root_find(g, torch.ones(2, 3, dtype=D))


def test_an_empty_batch_and_a_compiled_program():
    g = lambda z, a: z**3 + z - a  # noqa: E731
    assert eq.root_find(g, torch.zeros(0, 1), torch.zeros(0, 1)).value.shape == (0, 1)
    a = torch.tensor([[1.0], [2.0]], dtype=D)
    program = torch.compile(
        lambda a: 2 * eq.root_find(g, torch.zeros_like(a), 1 * a).value, backend="eager"
    )
    torch.testing.assert_close(program(a) / 2, eq.root_find(g, torch.zeros_like(a), a).value)
