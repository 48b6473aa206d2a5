"""Backward differentiates the function that was solved, and counts all that it depends on."""

import warnings
from typing import Any

import pytest
import torch
from problems import normal
from references import from_zero
from torch import nn

import equilibria as eq

X = normal(2, 3, seed=4)
DOUBLE: Any = {"dtype": torch.float64}
TIGHT = eq.Implicit(linear=eq.GMRES(rtol=1e-11))
ADJOINTS: list[Any] = [
    eq.Implicit(),
    eq.NeumannPhantom(),
    eq.JacobianFree(),
    eq.Shine(),
    eq.Unrolled(checkpoint=True),
]


def solve(f: Any, x: torch.Tensor, adjoint: Any = None, rtol: float = 1e-4) -> torch.Tensor:
    sol = from_zero(f, x, solver=eq.Broyden(rtol=rtol), adjoint=adjoint or eq.Implicit())
    return sol.value.sum()


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=repr)
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_number_that_changes(create_graph, adjoint) -> None:
    for before, after, dtype in (
        (0.2, 0.8, torch.float64),
        (0.79, 0.7901, torch.float64),
        (0.79, 0.80, torch.float32),
    ):
        x = X.to(dtype).requires_grad_()
        k = before
        value = solve(lambda z, x: torch.tanh(k * z + x), x, adjoint)  # noqa: B023
        torch.autograd.grad(value, x, retain_graph=True)
        k = after
        with pytest.raises(RuntimeError, match="another function than in the forward"):
            torch.autograd.grad(value, x, create_graph=create_graph)


@pytest.mark.parametrize("rtol", [1e-1, 1e-2, 1e-6])
def test_a_small_change_shows_beside_a_loose_tolerance(rtol: float) -> None:
    x = X.clone().requires_grad_()
    k = 0.79
    value = solve(lambda z, x: torch.tanh(k * z + x), x, rtol=rtol)
    k = 0.80
    with pytest.raises(RuntimeError, match="another function"):
        torch.autograd.grad(value, x)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "list", "buffer", "dictionary"])
def test_what_changes_in_place(kind: str, create_graph: bool) -> None:
    b = torch.zeros(3, **DOUBLE)
    numbers, table, cell = [0.3], {"scale": 0.3}, nn.BatchNorm1d(3).double().eval()

    def f(z, x):
        return torch.tanh(numbers[0] * cell(z) + table["scale"] * x + b)

    x = X.clone().requires_grad_()
    value = solve(f, x)
    if kind == "list":
        numbers[0] = 0.4
    elif kind == "dictionary":
        table["scale"] = 0.4
    else:
        (b if kind == "tensor" else cell.running_mean).add_(0.1)
    with pytest.raises(RuntimeError, match="another function"):
        torch.autograd.grad(value, x, create_graph=create_graph)


def test_a_number_that_changes_before_the_second_derivative() -> None:
    x = X.clone().requires_grad_()
    k = 0.5
    (first,) = torch.autograd.grad(
        solve(lambda z, x: torch.tanh(k * z + x), x), x, create_graph=True
    )
    assert torch.autograd.grad(first.sum(), x, retain_graph=True)[0].any()
    k = 0.6
    for create_graph in (True, False):
        with pytest.raises(RuntimeError, match="another function"):
            torch.autograd.grad(first.sum(), x, create_graph=create_graph)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("drop_finished", [False, True])
def test_rounding_is_no_change(autocast: bool, drop_finished: bool) -> None:
    """A sample is solved among few others and evaluated among all again."""
    torch.manual_seed(0)
    cell = nn.Sequential(nn.Linear(96, 96), nn.LayerNorm(96), nn.Tanh(), nn.Linear(96, 96))
    with torch.no_grad():
        cell[3].weight.mul_(0.5)
    x = torch.randn(33, 96)
    x[::2] *= 0.01
    f = lambda z, x: cell(z) + x  # noqa: E731
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), warnings.catch_warnings():
        warnings.simplefilter("ignore", eq.SolveWarning)  # bfloat16 has a floor
        for adjoint in ADJOINTS[:3]:
            sol = eq.fixed_point(
                f,
                torch.zeros_like(x),
                x.requires_grad_(),
                adjoint=adjoint,
                drop_finished=drop_finished,
            )
            sol.value.sum().backward()


# --- what f uses for some states only --------------------------------------------------------


class Mixture(nn.Module):
    """Experts of which every sample takes the best."""

    def __init__(self, normalize: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.double()
        if normalize:
            eq.nn.spectral_norm(self.experts, 0.9)

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(z + x).argmax(dim=1)
        out = torch.zeros_like(z)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero().flatten()
            if len(mine):
                out = out.index_add(0, mine, expert(z[mine]))
        return torch.tanh(0.5 * out + x)


@pytest.mark.parametrize(("normalize", "batches"), [(False, 6), (True, 3)])
def test_a_mixture_of_experts(normalize: bool, batches: int) -> None:
    """Values and gradients are those of the experts that are chosen at z*."""
    for seed in range(batches):
        torch.manual_seed(seed)
        cell = Mixture(normalize)
        x = torch.randn(3, 4, **DOUBLE)
        layer = eq.DEQ(cell, solver=eq.Picard(rtol=1e-11, max_evals=300), adjoint=TIGHT)
        sol = layer(x)
        if not bool((sol.status == eq.Status.CONVERGED).all()):
            continue  # the choice goes round in a circle: no fixed point
        sol.value.square().sum().backward()
        z = sol.value.detach()
        for _ in range(40):  # the reference: plain steps from the solution
            z = cell(z, x)
        got = {name: p.grad for name, p in cell.named_parameters()}
        cell.zero_grad(set_to_none=True)
        z.square().sum().backward()
        used = {int(i) for i in cell.gate(sol.value + x).argmax(dim=1)}
        for name, p in cell.named_parameters():
            number = name.split(".")[1]
            if name.startswith("experts") and int(number) not in used:
                assert got[name] is None
            elif p.grad is not None:
                torch.testing.assert_close(got[name], p.grad, rtol=1e-6, atol=1e-9)


def test_a_mixture_as_a_method() -> None:
    torch.manual_seed(0)
    cell = Mixture()
    x = torch.randn(3, 4, **DOUBLE)
    results = []
    for given in (cell, cell.forward):
        cell.zero_grad(set_to_none=True)
        sol = eq.DEQ(given, solver=eq.Picard(rtol=1e-11, max_evals=300), adjoint=TIGHT)(x)
        sol.value.square().sum().backward()
        results.append([p.grad for p in cell.parameters()])
    assert any(g is None for g in results[0])
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


def test_a_mixture_inside_the_cell_of_another_layer() -> None:
    torch.manual_seed(1)
    inner = eq.DEQ(Mixture(), solver=eq.Picard(rtol=1e-11, max_evals=300), adjoint=TIGHT)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, z, x):
            return 0.3 * self.inner(z + x).value

    x = torch.randn(3, 4, **DOUBLE).requires_grad_()
    results = []
    for adjoint in (TIGHT, eq.Unrolled()):
        layer = eq.DEQ(Outer(), solver=eq.Picard(rtol=1e-11), adjoint=adjoint)
        value = layer(x).value.square().sum()
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        results.append((first, torch.autograd.grad(first.sum(), x)[0]))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_leaf_of_another_branch_is_an_error(create_graph: bool) -> None:
    a = torch.tensor(0.5, **DOUBLE, requires_grad=True)
    b = torch.tensor(0.6, **DOUBLE, requires_grad=True)

    def f(z):
        return a * z + b if z.abs().sum() > 0.5 else 0.5 * z + b

    sol = eq.fixed_point(f, torch.zeros(1, 1, **DOUBLE))
    with pytest.raises(RuntimeError, match="did not use at its first evaluation"):
        torch.autograd.grad(sol.value.sum(), b, create_graph=create_graph)


def test_leaves_that_f_makes_itself_are_no_strangers() -> None:
    w = torch.tensor(0.5, **DOUBLE, requires_grad=True)

    def f(z, x):
        one = torch.ones(3, **DOUBLE, requires_grad=True)
        return torch.tanh(w * z * one + x)

    (got,) = torch.autograd.grad(solve(f, X), w)
    (wanted,) = torch.autograd.grad(solve(lambda z, x: torch.tanh(w * z + x), X), w)
    torch.testing.assert_close(got, wanted)


def test_an_operand_that_f_ignores_has_the_gradient_zero() -> None:
    x, y = (X.clone().requires_grad_() for _ in range(2))
    sol = eq.fixed_point(lambda z, x, y: torch.tanh(0.5 * z + x), torch.zeros_like(X), x, y)
    assert torch.equal(torch.autograd.grad(sol.value.sum(), y)[0], torch.zeros_like(y))


# --- a forward solve that failed ---------------------------------------------------------------


def stop_early(x: torch.Tensor, **options: Any) -> eq.Solution:
    """What two evaluations lead to."""
    options = {"solver": eq.Picard(max_evals=2, rtol=1e-9)} | options
    f = lambda z, x: torch.tanh(0.5 * z + x)  # noqa: E731
    return eq.fixed_point(f, torch.zeros_like(X), x, **options)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("adjoint", [eq.Implicit(), eq.Shine()], ids=repr)
def test_a_failed_forward_solve_is_heard_of_once_a_backward(adjoint, create_graph) -> None:
    x = X.clone().requires_grad_()
    sol = stop_early(x, solver=eq.Broyden(max_evals=2, rtol=1e-9), adjoint=adjoint)
    assert (sol.status == eq.Status.MAX_EVALS).all()
    for _ in range(2):
        with pytest.warns(eq.SolveWarning) as heard:
            torch.autograd.grad(sol.value.sum(), x, create_graph=create_graph, retain_graph=True)
        told = [w for w in heard if "fixed_point: 2 of 2 samples" in str(w.message)]
        assert len(told) == 1 and "MAX_EVALS" in str(told[0].message)


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_a_failed_forward_solve_is_heard_of_inside_transforms(transform: str) -> None:
    def value(x):
        return stop_early(x).value.sum()

    with pytest.warns(eq.SolveWarning, match="fixed_point: [24] of [24] samples did not converge"):
        if transform == "jvp":
            torch.func.jvp(value, (X,), (X,))
        elif transform == "vmap":
            torch.func.vmap(torch.func.grad(value))(torch.stack([X, X]))
        else:
            torch.func.grad(value)(X)


@pytest.mark.parametrize(
    "adjoint", [eq.Phantom(), eq.NeumannPhantom(), eq.JacobianFree(), eq.Unrolled()], ids=repr
)
def test_adjoints_of_a_fixed_number_of_steps_expect_no_solution(adjoint: Any) -> None:
    x = X.clone().requires_grad_()
    sol = stop_early(x, adjoint=adjoint)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sol.value.sum().backward()


@pytest.mark.parametrize("adjoint", [eq.Implicit(), eq.Unrolled()], ids=repr)
@pytest.mark.parametrize("grad", [False, True])
def test_the_value_is_the_callers_own(adjoint: Any, grad: bool) -> None:
    c = torch.ones(2, 3, **DOUBLE)
    with torch.set_grad_enabled(grad):
        sol = eq.fixed_point(lambda z: c, torch.zeros_like(c), solver=eq.Picard(), adjoint=adjoint)
        sol.value.add_(1)
    assert torch.equal(c, torch.ones(2, 3, **DOUBLE))


def test_the_smallest_numbers_are_no_change() -> None:
    """Their squares are rounded to nothing."""
    for adjoint in (eq.Implicit(), eq.Unrolled(checkpoint=True)):
        x = torch.full((2, 3), 1e-20, requires_grad=True)
        sol = eq.fixed_point(
            lambda z, x: torch.tanh(0.7 * z + x),
            torch.zeros(2, 3),
            x,
            solver=eq.Picard(rtol=1e-3),
            adjoint=adjoint,
        )
        sol.value.sum().backward()
        torch.testing.assert_close(x.grad, torch.full((2, 3), 1 / 0.3), rtol=2e-2, atol=0.0)


@pytest.mark.parametrize("power", [-80, 80])
@pytest.mark.parametrize(
    "linear",
    [
        *(eq.GMRES(), eq.GMRES(restart=4), eq.BiCGSTAB(), eq.DirectSolve(), eq.Fallback()),
        *(eq.Neumann(), eq.Picard(), eq.Anderson(), eq.Broyden(), eq.NewtonKrylov(), eq.Auto()),
    ],
    ids=repr,
)
def test_a_loss_of_any_scale(linear: Any, power: int) -> None:
    """Scaling by a power of two changes nothing, though squares are no numbers any more."""
    weight = 0.9 * nn.init.orthogonal_(torch.empty(8, 8))
    results = []
    for scale in (1.0, 2.0**power):
        x = torch.ones(2, 8, requires_grad=True)
        sol = eq.fixed_point(
            lambda z, x: torch.tanh(z @ weight.T + x),
            torch.zeros(2, 8),
            x,
            adjoint=eq.Implicit(linear=linear),
        )
        (grad,) = torch.autograd.grad(sol.value.sum() * scale, x)
        results.append((grad / scale, sol.adjoint.status, sol.adjoint.stats.evals))
        assert (sol.adjoint.stats.residual > 0).all()
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_phantom_says_of_the_smallest_what_it_says_of_others() -> None:
    found = [
        eq.fixed_point(
            lambda z, scale=scale: 0.9 * z + scale,
            torch.zeros(1, 3),
            solver=eq.Picard(max_evals=5),
            adjoint=eq.Phantom(),
        )
        for scale in (1.0, 2.0**-80)
    ]
    assert (found[0].status == eq.Status.MAX_EVALS).all()
    assert torch.equal(found[0].status, found[1].status)
    torch.testing.assert_close(found[0].stats.residual, found[1].stats.residual)


def test_a_change_is_noticed_in_the_backward_of_a_mapped_solve() -> None:
    w = torch.nn.Parameter(torch.tensor(0.4))

    def solve(x):
        return from_zero(lambda z, x: torch.tanh(z * w) + x, x).value

    value = torch.vmap(solve)(torch.stack([X, 2 * X]))
    w.data.mul_(2)  # which autograd does not notice
    with pytest.raises(RuntimeError, match="another function"):
        value.sum().backward()
