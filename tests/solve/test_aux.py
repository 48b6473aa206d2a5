"""What f returns beside the state: at the solution, with its gradient."""

import pickle

import pytest
import torch
from maps import BATCH, WIDTH, cell, start
from problems import normal, with_norm
from references import tight
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, vmap

import equilibria as eq
from equilibria.solve import advance

W = with_norm(0.7, WIDTH, seed=1)
BIAS = normal(WIDTH, seed=2)
X = normal(BATCH, WIDTH, seed=3)
EXACT = eq.Implicit(linear=eq.GMRES(rtol=1e-13, restart=60))
ADJOINTS = {
    "implicit": EXACT,
    "jacobian_free": eq.JacobianFree(),
    "neumann": eq.NeumannPhantom(steps=3),
    "phantom": eq.Phantom(steps=2),
    "unrolled": eq.Unrolled(),
    "checkpointed": eq.Unrolled(checkpoint=True),
    "shine": eq.Shine(),
}


def beside(z, x, w=W):
    return {"attention": torch.softmax(z @ w + x, 1), "norm": [z.square().sum(1)]}


def f(z, x, w=W):
    return cell(z, x, w, BIAS), beside(z, x, w) | {"name": "cell", "count": 3}


def total(aux):
    return (aux["attention"].cos() + aux["norm"][0][:, None]).square().sum()


@pytest.mark.parametrize("name", ADJOINTS)
def test_value_and_gradient_of_every_adjoint(name):
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    solver = eq.Broyden(rtol=1e-12) if name == "shine" else eq.Picard(rtol=1e-12, max_evals=200)
    options = {"solver": solver, "adjoint": ADJOINTS[name]}
    sol = eq.fixed_point(lambda z, x: f(z, x, w), start(), x, has_aux=True, **options)
    assert (sol.status == eq.Status.CONVERGED).all()
    assert sol.aux["name"] == "cell" and sol.aux["count"] == 3
    wanted = beside(sol.value, x, w)
    torch.testing.assert_close(sol.aux["attention"], wanted["attention"])
    plain = eq.fixed_point(lambda z, x: cell(z, x, w, BIAS), start(), x, **options)
    torch.testing.assert_close(sol.value, plain.value)
    assert torch.equal(sol.stats.evals, plain.stats.evals) and plain.aux is None
    gradients = (
        torch.autograd.grad(total(beside(plain.value, x, w)) + plain.value.sum(), (x, w)),
        torch.autograd.grad(total(sol.aux) + sol.value.sum(), (x, w)),
    )
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)


def of(x, has_aux=True):
    """A number of the solution and of what is beside it."""
    if has_aux:
        sol = eq.fixed_point(f, start(), x, has_aux=True, **tight())
        return total(sol.aux) + sol.value.sum()
    sol = eq.fixed_point(lambda z, x: f(z, x)[0], start(), x, **tight())
    return total(beside(sol.value, x)) + sol.value.sum()


@pytest.mark.parametrize("transform", [grad, jacfwd, hessian, lambda h: jacrev(jacfwd(h))])
def test_under_transforms(transform):
    wanted = transform(lambda x: of(x, has_aux=False))(X)
    torch.testing.assert_close(transform(of)(X), wanted, rtol=1e-7, atol=1e-9)


def test_second_derivatives():
    x = X.clone().requires_grad_()
    assert torch.autograd.gradgradcheck(of, (x,))


def test_mapped():
    xs = normal(3, BATCH, WIDTH, seed=4)
    torch.testing.assert_close(vmap(grad(of))(xs), torch.stack([grad(of)(x) for x in xs]))

    def aux(x):
        return eq.fixed_point(f, start(), x, has_aux=True, **tight()).aux["norm"][0]

    torch.testing.assert_close(vmap(aux)(xs), torch.stack([aux(x) for x in xs]))


@pytest.mark.parametrize("coupled", [True, torch.tensor([0, 0, 1, 1])])
def test_rows_that_are_one_sample(coupled):
    x = normal(4, WIDTH, seed=5).requires_grad_()
    mix = lambda z, x: (0.4 * z[[1, 0, 3, 2]].tanh() + x, z.sum())  # noqa: E731
    sol = eq.fixed_point(mix, torch.zeros(4, WIDTH).double(), x, coupled=coupled, has_aux=True)
    torch.testing.assert_close(sol.aux, sol.value.sum())
    assert torch.autograd.grad(sol.aux, x)[0].abs().min() > 0


def test_all_samples_are_in_it_when_some_have_left():
    rate = torch.linspace(0.1, 0.95, 8, dtype=torch.float64)[:, None]
    calls = []

    def slow(z, rate):
        calls.append(len(z))
        return rate * z + 1, z * rate

    options = {"solver": eq.Picard(rtol=1e-9, max_evals=500), "has_aux": True}
    with torch.no_grad():
        sol = eq.fixed_point(slow, torch.zeros(8, 1).double(), rate, drop_finished=True, **options)
    assert min(calls) < 8 and calls[-1] == 8
    torch.testing.assert_close(sol.aux, sol.value * rate)
    assert len(calls) == int(sol.stats.evals.max()) + 1  # one beside those of the solve
    assert not sol.aux.requires_grad


def test_an_empty_batch():
    x = torch.zeros(0, WIDTH).double().requires_grad_()
    sol = eq.fixed_point(f, torch.zeros(0, WIDTH).double(), x, has_aux=True)
    assert sol.aux["attention"].shape == (0, WIDTH)


def test_detached_copied_and_sent():
    x = X.clone().requires_grad_()
    sol = eq.fixed_point(f, start(), x, has_aux=True)
    for each in (sol.detach(), pickle.loads(pickle.dumps(sol))):
        assert not each.aux["attention"].requires_grad and each.aux["name"] == "cell"
        assert torch.equal(each.aux["attention"], sol.aux["attention"])


def test_inside_another_solve():
    x = X.clone().requires_grad_()

    def outer(y, x):
        inner = eq.fixed_point(f, start(), x + 0.1 * y, has_aux=True, **tight())
        return 0.3 * inner.aux["attention"] + 0.1 * inner.value

    def plain(y, x):
        inner = eq.fixed_point(lambda z, x: f(z, x)[0], start(), x + 0.1 * y, **tight())
        return 0.3 * beside(inner.value, x + 0.1 * y)["attention"] + 0.1 * inner.value

    gradients = [
        torch.autograd.grad(eq.fixed_point(each, start(), x, **tight()).value.cos().sum(), x)
        for each in (outer, plain)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)


def test_of_one_evaluation():
    x, calls = X.clone().requires_grad_(), []
    z = normal(BATCH, WIDTH, seed=6)

    def counted(z, x):
        calls.append(1)
        return f(z, x)

    sol = advance(counted, z, x, has_aux=True, adjoint=eq.JacobianFree())
    assert len(calls) == 1
    wanted = beside(z, x)
    torch.testing.assert_close(sol.aux["attention"], wanted["attention"])
    gradients = (
        torch.autograd.grad(total(wanted) + cell(z, x, W, BIAS).sum(), x),
        torch.autograd.grad(total(sol.aux) + sol.value.sum(), x),
    )
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        assert not advance(f, z, x, has_aux=True).aux["attention"].requires_grad


def test_of_a_solution_found_elsewhere():
    x = X.clone().requires_grad_()
    star = eq.fixed_point(lambda z, x: f(z, x)[0], start(), X, **tight()).value
    sol = eq.attach(f, star, x, has_aux=True, adjoint=EXACT)
    wanted = torch.autograd.grad(of(x), x)
    found = torch.autograd.grad(total(sol.aux) + sol.value.sum(), x)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).double()
        nn.init.orthogonal_(self.linear.weight, 0.5)

    def forward(self, z, x):
        out = torch.tanh(self.linear(z) + x)
        return out, out * self.linear.bias


@pytest.mark.parametrize("adjoint", [EXACT, eq.Unrolled(), eq.Phantom()])
def test_of_a_layer(adjoint):
    layer = eq.DEQ(Pair(), has_aux=True, adjoint=adjoint, solver=eq.Picard(rtol=1e-12))
    sol = layer(X)
    weights = tuple(layer.parameters())
    wanted = torch.tanh(layer.cell.linear(sol.value) + X) * layer.cell.linear.bias
    torch.testing.assert_close(sol.aux, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(sol.aux.sum(), weights, retain_graph=True),
        torch.autograd.grad(wanted.sum(), weights),
    )
    assert "has_aux=True" in repr(layer)
    if adjoint is EXACT:
        z = sol.value.detach()
        torch.testing.assert_close(layer.advance(z, X).aux, layer.cell(z, X)[1])

    def loss(given):
        return functional_call(layer, given, (X,)).aux.sum()

    given = dict(layer.named_parameters())
    found = grad(loss)(given)
    torch.testing.assert_close(
        tuple(found.values()), torch.autograd.grad(layer(X).aux.sum(), weights)
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_of_a_layer_in_a_compiled_program(backend):
    layer = eq.DEQ(Pair(), has_aux=True)
    x = X.clone().requires_grad_()

    def program(x):
        sol = layer(2 * x)
        return sol.aux.sum() + sol.value.sum()

    compiled = torch.compile(program, backend=backend)
    torch.testing.assert_close(compiled(x), program(x))
    torch.testing.assert_close(
        torch.autograd.grad(compiled(x), x), torch.autograd.grad(program(x), x)
    )


def test_of_a_compiled_f():
    x = X.clone().requires_grad_()
    compiled = torch.compile(f, backend="aot_eager")
    sol = eq.fixed_point(compiled, start(), x, has_aux=True)
    wanted = eq.fixed_point(f, start(), x, has_aux=True)
    torch.testing.assert_close(
        torch.autograd.grad(total(sol.aux), x), torch.autograd.grad(total(wanted.aux), x)
    )


def test_under_autocast():
    linear = nn.Linear(WIDTH, WIDTH)
    nn.init.orthogonal_(linear.weight, 0.5)
    with torch.autocast("cpu", torch.bfloat16):
        pair = lambda z: (linear(z).tanh() + 1, linear(z))  # noqa: E731
        sol = eq.fixed_point(pair, torch.zeros(2, WIDTH), has_aux=True)
    assert sol.value.dtype == torch.float32 and sol.aux.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("given", "has_aux", "words"),
    [
        (lambda z: (z, z), False, "returned tuple.Tensor, Tensor. .*or, with has_aux=True"),
        (lambda z: (z, {"a": 1}), False, "or, with has_aux=True"),
        (lambda z: z, True, "returned Tensor: with has_aux=True it returns a pair"),
        (lambda z: (z, z, z), True, r"returned tuple\(Tensor, Tensor, Tensor\): with has_aux"),
        (lambda z: [z, z], True, r"returned list\(Tensor, Tensor\): with has_aux"),
        (lambda z: ((z, z), z), True, r"f returned tuple\(Tensor, Tensor\) where the state"),
    ],
)
def test_other_returns_are_refused(given, has_aux, words):
    for solve in (eq.fixed_point, advance, eq.attach):
        with pytest.raises(TypeError, match=words):
            solve(given, torch.zeros(2, 3), has_aux=has_aux)
    with pytest.raises((TypeError, ValueError), match=words):
        eq.DEQ(lambda z, x: given(z), has_aux=has_aux)(torch.zeros(2, 3))


def test_a_state_that_is_a_pair():
    def f(z):
        a, b = z
        return (0.5 * a + 1, 0.5 * b), a + b

    start = torch.zeros(2, 3), torch.ones(2, 3)
    sol = eq.fixed_point(f, start, has_aux=True)
    torch.testing.assert_close(sol.aux, sol.value[0] + sol.value[1])
    with pytest.raises(TypeError, match="or, with has_aux=True, it and something beside it"):
        eq.fixed_point(f, start)
    with pytest.raises(ValueError, match=r"f returned the shape \(2, 2\)"):
        eq.fixed_point(lambda z: (z[:, :2], z), start[0], has_aux=True)
