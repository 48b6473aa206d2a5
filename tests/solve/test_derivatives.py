"""Derivatives of the solution against finite differences, to any order, in float64."""

import pytest
import torch
from maps import BATCH, CASES, WIDTH, Module, start
from problems import normal, with_norm
from references import TIGHT, from_zero, gradients, iterate, tight
from torch.autograd import gradcheck, gradgradcheck
from torch.utils import _pytree as pytree

import equilibria as eq

UNROLL = 60  # plain iterations after which the maps here are at rest to 1e-12


def leaf_tensors(value):
    return tuple(pytree.tree_leaves(value))


def solved(case, options):
    """The case's inputs to the solution's tensors."""

    def function(*inputs):
        f, z0, operands = case.build(*inputs)
        return leaf_tensors(eq.fixed_point(f, z0, *operands, **options).value)

    return function


def unrolled(case):
    """The same through a hand-written loop."""

    def function(*inputs):
        f, z0, operands = case.build(*inputs)
        plain = [o.value if isinstance(o, type(eq.shared(0))) else o for o in operands]
        return leaf_tensors(iterate(f, z0, *plain, steps=UNROLL))

    return function


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivative(name: str) -> None:
    case = CASES[name]()
    assert gradcheck(solved(case, tight()), case.inputs)
    assert gradgradcheck(solved(case, tight()), case.inputs, fast_mode=True)


@pytest.mark.parametrize("linear", [eq.GMRES, eq.BiCGSTAB, eq.Neumann, eq.DirectSolve, eq.Anderson])
def test_every_linear_solver(linear) -> None:
    """All give the same first and second derivatives; a forward solver may stand in."""
    case = CASES["operands"]()
    options = tight(linear=linear(**TIGHT))
    assert gradcheck(solved(case, options), case.inputs, fast_mode=True)
    assert gradgradcheck(solved(case, options), case.inputs, fast_mode=True)


@pytest.mark.parametrize("solver", [eq.Picard, eq.Anderson, eq.Broyden])
def test_the_forward_solver_does_not_matter(solver) -> None:
    case = CASES["operands"]()
    value = solved(case, tight(solver=solver(**TIGHT)))(*case.inputs)
    wanted = unrolled(case)(*case.inputs)
    torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-10)
    for got, want in zip(
        gradients(value, case.inputs), gradients(wanted, case.inputs), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "order"), [*((name, 2) for name in CASES), ("operands", 3), ("closed_history", 3)]
)
def test_higher_derivatives_equal_unrolling(name: str, order: int) -> None:
    """The trap: right first derivatives with silently wrong second ones (125 % off elsewhere)."""

    def last(function):
        case = CASES[name]()
        found = function(case)(*case.inputs)
        for k in range(1, order + 1):
            found = gradients(found, case.inputs, create_graph=k < order)
        return found

    got = last(lambda case: solved(case, tight()))
    for a, b in zip(got, last(unrolled), strict=True):
        torch.testing.assert_close(a, b, rtol=10.0 ** (order - 10), atol=10.0 ** (order - 10))


def test_third_derivative_of_a_closed_form() -> None:
    """z = z / 2 + x^3 has z* = 2 x^3 and the third derivative 12."""
    x = torch.tensor([[1.5], [-0.5]], dtype=torch.float64, requires_grad=True)
    sol = from_zero(lambda z, x: z / 2 + x**3, x, **tight())
    derivative = sol.value
    for wanted in (6 * x**2, 12 * x, 12 + 0 * x):
        (derivative,) = torch.autograd.grad(derivative.sum(), x, create_graph=True)
        torch.testing.assert_close(derivative, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("train", [True, False])
def test_module_parameters(train: bool) -> None:
    """Parameters of a module that is f, in train and in eval mode."""
    module = Module().train(train)
    parameters = tuple(module.parameters())
    x = normal(BATCH, WIDTH, seed=1).requires_grad_()

    def function(x, *_):
        return eq.fixed_point(module, start(), x, **tight()).value

    assert gradcheck(function, (x, *parameters), fast_mode=True)
    assert gradgradcheck(function, (x, *parameters), fast_mode=True)


def test_no_grad_and_constants_leave_no_graph() -> None:
    w, x = with_norm(0.5, WIDTH, seed=1), normal(BATCH, WIDTH, seed=2)
    f = lambda z, x: torch.tanh(z @ w.T + x)  # noqa: E731
    assert not eq.fixed_point(f, start(), x).value.requires_grad
    with torch.no_grad():
        assert not eq.fixed_point(f, start(), x.requires_grad_()).value.requires_grad
    with torch.inference_mode():
        assert not eq.fixed_point(f, start(), x.detach().clone()).value.requires_grad


def test_start_gets_no_gradient() -> None:
    """z* does not depend on z0 (DESIGN): nothing flows there, except under Unrolled."""
    x = normal(BATCH, WIDTH, seed=2).requires_grad_()
    z0 = start().requires_grad_()
    sol = eq.fixed_point(lambda z, x: 0.5 * torch.sin(z) + x, z0, x, **tight())
    got = torch.autograd.grad(sol.value.sum(), (z0, x), allow_unused=True)
    assert got[0] is None or not got[0].any()
    assert got[1].abs().min() > 0


def test_only_what_is_asked_for() -> None:
    """A gradient with respect to one of several inputs equals that of all together."""
    case = CASES["operands"]()
    function = solved(case, tight())
    together = gradients(function(*case.inputs), case.inputs)
    for i, wanted in enumerate(together):
        (alone,) = gradients(function(*case.inputs), [case.inputs[i]])
        torch.testing.assert_close(alone, wanted, rtol=1e-10, atol=1e-12)


def test_value_used_in_part() -> None:
    """A loss on one leaf, one sample or one entry of the solution."""
    case = CASES["tree_state"]()
    for part in (
        lambda value: value[0][:, 1].sum(),
        lambda value: value[1][1],
        lambda value: value[0][0, 0] * value[1][0],
    ):
        got = torch.autograd.grad(part(solved(case, tight())(*case.inputs)), case.inputs)
        wanted = torch.autograd.grad(part(unrolled(case)(*case.inputs)), case.inputs)
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)


def test_non_contiguous_and_expanded_tensors() -> None:
    """Operands, states and incoming gradients may be views with any strides."""
    w = with_norm(0.5, WIDTH, seed=1)
    base = normal(WIDTH, BATCH, seed=2).requires_grad_()
    f = lambda z, x: torch.tanh(z @ w.T + x)  # noqa: E731

    def value(solve):
        z0 = torch.zeros(1, WIDTH, dtype=torch.float64).expand(BATCH, WIDTH)
        return solve(z0, base.T).T.sum()

    got = torch.autograd.grad(value(lambda z, x: eq.fixed_point(f, z, x, **tight()).value), base)
    wanted = torch.autograd.grad(value(lambda z, x: iterate(f, z, x, steps=UNROLL)), base)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("drop_finished", [True, False])
def test_samples_of_different_difficulty(drop_finished: bool) -> None:
    """Samples that end at different times, forward and backward, all get their exact gradient."""
    rate = torch.tensor([[0.05], [0.95], [0.5], [0.0]], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[1.0], [0.1], [-2.0], [0.3]], dtype=torch.float64, requires_grad=True)

    def value(rate, x):
        f = lambda z, r, x: r * torch.sin(z) + x  # noqa: E731
        z0 = torch.zeros(4, 2, dtype=torch.float64)
        options = tight(solver=eq.Picard(rtol=1e-13, max_evals=2000))
        sol = eq.fixed_point(f, z0, rate, x, drop_finished=drop_finished, **options)
        assert len(set(sol.stats.evals.tolist())) > 2
        return sol.value

    assert gradcheck(value, (rate, x), fast_mode=True)
    assert gradgradcheck(value, (rate, x), fast_mode=True)
