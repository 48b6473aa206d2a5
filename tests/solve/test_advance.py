"""One evaluation for iterate, value and gradient."""

import gc
import threading
import weakref
from functools import partial

import pytest
import torch

import equilibria as eq
from equilibria.solve import Phantom, SolveError, SolveWarning, Status, advance, fixed_point
from equilibria.solve.advance import advances
from equilibria.stability.examined import peak_bytes


@pytest.fixture
def problem():
    """f, its parameters, a state that is no solution, an operand, and a cotangent."""
    torch.manual_seed(0)
    weight = (torch.randn(6, 6, dtype=torch.float64) / 5).requires_grad_()
    bias = torch.randn(6, dtype=torch.float64, requires_grad=True)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    z, g = torch.randn(2, 4, 6, dtype=torch.float64)

    def f(z, x):
        return torch.tanh(z @ weight + bias) * x

    return f, (weight, bias, x), z, x, g


@pytest.mark.parametrize(
    ("adjoint", "terms"),
    [
        (eq.JacobianFree(), 0),
        *((eq.NeumannPhantom(steps=terms + 1, damping=1.0), terms) for terms in (0, 1, 3)),
    ],
    ids=repr,
)
def test_the_gradient_is_eq_8_10(problem, adjoint, terms):
    f, wanted, z, x, g = problem
    jacobian = torch.stack(
        [torch.autograd.functional.jacobian(partial(f, x=x[i]), z[i]) for i in range(len(z))]
    )
    v = sum(
        torch.einsum("bij,bi->bj", torch.linalg.matrix_power(jacobian, i), g)
        for i in range(terms + 1)
    )
    expected = torch.autograd.grad(f(z, x), wanted, v)
    found = torch.autograd.grad(advance(f, z, x, adjoint=adjoint).value, wanted, g)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_the_exact_adjoint_at_the_solution_is_the_exact_gradient(problem):
    f, wanted, z, x, g = problem
    exact = eq.Implicit(linear=eq.GMRES(rtol=1e-13))
    solved = fixed_point(f, z, x, solver=eq.Anderson(rtol=1e-14), adjoint=exact)
    expected = torch.autograd.grad(solved.value, wanted, g)
    step = advance(f, solved.value, x, adjoint=exact)
    found = torch.autograd.grad(step.value, wanted, g)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert step.adjoint is not None and (step.adjoint.status == Status.CONVERGED).all()


def test_value_residuals_and_status(problem):
    f, _, z, x, _ = problem
    star = fixed_point(f, z, x, solver=eq.Anderson(rtol=1e-12)).value.detach()
    z = torch.cat([star[:2], z[2:]])
    sol = advance(f, z, x, solver=eq.Picard(rtol=1e-6))
    y = f(z, x)
    assert torch.equal(sol.value, y)
    gap, size = (y - z).norm(dim=1), y.norm(dim=1)
    torch.testing.assert_close(sol.stats.residual, gap / size)
    torch.testing.assert_close(sol.stats.overall, gap.norm() / size.norm())
    assert sol.status.tolist() == [0, 0, Status.MAX_EVALS, Status.MAX_EVALS]
    assert sol.stats.evals.tolist() == [1] * 4
    assert sol.stats.residual.requires_grad is False


def test_an_absolute_tolerance_is_in_the_rms_norm():
    f = lambda z: z + torch.tensor([[1e-3], [1e-2]])  # noqa: E731
    sol = advance(f, torch.zeros(2, 50), solver=eq.Picard(rtol=0.0, atol=2e-3))
    assert sol.status.tolist() == [Status.CONVERGED, Status.MAX_EVALS]


def test_a_fixed_state_of_zeros_and_one_that_is_not_finite():
    f = lambda z, a: z * a  # noqa: E731
    sol = advance(f, torch.zeros(2, 3), torch.tensor([[1.0], [torch.inf]]))
    assert sol.status.tolist() == [Status.CONVERGED, Status.NONFINITE]
    assert sol.stats.residual.tolist() == [0.0, torch.inf]


def test_residuals_of_a_state_that_is_measured_in_pieces():
    torch.manual_seed(0)
    z = torch.randn(5000, 128)
    sol = advance(lambda z: z.cos(), z)
    expected = (z.cos() - z).norm(dim=1) / z.cos().norm(dim=1)
    torch.testing.assert_close(sol.stats.residual, expected)


@pytest.mark.parametrize("power", [-100, -66, -60, -55, -40, 40, 66, 100])
def test_residuals_have_no_unit(power):
    """Down to where the squares of what is left to go are no numbers in float32."""
    x = torch.linspace(0.5, 1.5, 24).reshape(4, 6)
    z = x * (1 + 2.0**-12 * torch.linspace(-1, 1, 6))
    wanted, found = (
        advance(lambda z, x: x + 0 * z, unit * z, unit * x).stats for unit in (1.0, 2.0**power)
    )
    torch.testing.assert_close(found.residual, wanted.residual, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.overall, wanted.overall, rtol=1e-5, atol=0)


def test_a_tree_and_a_tolerance_for_each_leaf(problem):
    f, wanted, z, x, g = problem
    tree = lambda s, x: {"a": f(s["a"], x), "b": s["b"] + s["a"].sum(1)}  # noqa: E731
    state = {"a": z, "b": torch.ones(4, dtype=torch.float64)}
    loose = eq.Picard(rtol={"a": 1e9, "b": 1e9})
    tight = eq.Picard(rtol={"a": 1e9, "b": 1e-9})
    adjoint = eq.NeumannPhantom(steps=2, damping=1.0)
    sol = advance(tree, state, x, solver=loose, adjoint=adjoint)
    assert (sol.status == Status.CONVERGED).all()
    assert (advance(tree, state, x, solver=tight).status == Status.MAX_EVALS).all()
    found = torch.autograd.grad(sol.value["b"].sum(), wanted)  # by one product, through a
    expected = torch.autograd.grad(f(z, x).sum(), wanted)
    torch.testing.assert_close(found, expected)
    del g


@pytest.mark.parametrize("coupled", [True, torch.tensor([0, 0, 1, 1])])
def test_rows_that_are_one_sample(problem, coupled):
    f, _, z, x, _ = problem
    sol = advance(f, z, x, coupled=coupled)
    groups = 1 if coupled is True else 2
    gap, size = (each.reshape(groups, -1).norm(dim=1) for each in (f(z, x) - z, f(z, x)))
    torch.testing.assert_close(sol.stats.residual, gap / size)


def test_without_gradients_it_is_an_evaluation(problem):
    f, _, z, x, _ = problem
    with torch.no_grad():
        sol = advance(f, z, x)
    assert not sol.value.requires_grad and torch.equal(sol.value, f(z, x))


def test_backward_twice_with_the_graph_retained(problem):
    f, wanted, z, x, g = problem
    sol = advance(f, z, x, adjoint=eq.NeumannPhantom(steps=2, damping=1.0))
    first = torch.autograd.grad(sol.value, wanted, g, retain_graph=True)
    again = torch.autograd.grad(sol.value, wanted, g)
    assert all(map(torch.equal, first, again))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(sol.value, wanted, g)


def test_a_second_derivative_is_refused(problem):
    f, wanted, z, x, g = problem
    sol = advance(f, z, x)
    with pytest.raises(RuntimeError, match="advance has no second derivative"):
        torch.autograd.grad(sol.value, wanted, g, create_graph=True)


def test_transforms_are_refused(problem):
    f, _, z, x, _ = problem
    with pytest.raises(RuntimeError, match="no part in transforms"):
        torch.func.vmap(lambda x: advance(f, z, x).value)(x.detach().expand(2, 4, 6))


def test_batched_gradients_are_refused(problem):
    f, wanted, z, x, g = problem
    sol = advance(f, z, x)
    with pytest.raises(RuntimeError, match="gradients in batches"):
        torch.autograd.grad(sol.value, wanted, g.expand(3, 4, 6), is_grads_batched=True)


def test_backward_in_another_thread(problem):
    f, wanted, z, x, g = problem
    adjoint = eq.NeumannPhantom(steps=2, damping=1.0)
    expected = torch.autograd.grad(advance(f, z, x, adjoint=adjoint).value, wanted, g)
    sol, found = advance(f, z, x, adjoint=adjoint), []
    thread = threading.Thread(
        target=lambda: found.extend(torch.autograd.grad(sol.value, wanted, g))
    )
    thread.start()
    thread.join()
    assert all(map(torch.equal, found, expected))


def test_the_state_gets_no_gradient(problem):
    f, wanted, z, x, g = problem
    z.requires_grad_()
    advance(f, z, x).value.backward(g)
    assert z.grad is None and wanted[0].grad is not None


def test_a_parameter_that_changes_before_backward_is_an_error(problem):
    f, wanted, z, x, g = problem
    sol = advance(f, z, x)
    with torch.no_grad():
        wanted[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sol.value.backward(g)


def test_nothing_is_left_behind(problem):
    f, wanted, z, x, g = problem
    gc.disable()
    try:
        sol = advance(f, z, x, adjoint=eq.NeumannPhantom(steps=2, damping=1.0))
        node = weakref.ref(sol.value.grad_fn)
        sol.value.backward(g)
        del sol
        assert node() is None  # by reference counts alone: there is no cycle
    finally:
        gc.enable()
    del wanted


def test_autocast_reaches_f_alone():
    linear = torch.nn.Linear(6, 6)
    z = torch.randn(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        sol = advance(lambda z: linear(z), z, adjoint=eq.NeumannPhantom(steps=2, damping=1.0))
    assert sol.value.dtype == torch.float32 and sol.stats.residual.dtype == torch.float32
    sol.value.sum().backward()
    assert linear.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("adjoint", [Phantom(), eq.Unrolled(), eq.Shine()])
def test_adjoints_of_paths_are_refused(problem, adjoint):
    f, _, z, x, _ = problem
    with pytest.raises(TypeError, match="advance cannot use"):
        advance(f, z, x, adjoint=adjoint)


def test_an_audited_adjoint_is_the_one_in_use(problem):
    f, wanted, z, x, g = problem
    audited = advance(f, z, x, adjoint=eq.AdaptiveAdjoint(level=0)).value
    plain = advance(f, z, x, adjoint=eq.JacobianFree()).value
    assert all(
        map(torch.equal, *(torch.autograd.grad(value, wanted, g) for value in (audited, plain)))
    )
    with pytest.raises(TypeError, match="advance cannot use Phantom"):
        advance(f, z, x, adjoint=eq.AdaptiveAdjoint(level=2))


def test_throw(problem):
    f, _, z, x, _ = problem
    with pytest.raises(SolveError, match="advance: 4 of 4 samples did not converge"):
        advance(f, z, x, throw=True)


def test_a_backward_solve_that_fails_is_heard_of():
    weight = torch.full((1, 1), 2.0, dtype=torch.float64, requires_grad=True)
    linear = eq.Neumann(max_evals=3)
    sol = advance(
        lambda z: z @ weight, torch.ones(2, 1).double(), adjoint=eq.Implicit(linear=linear)
    )
    with pytest.warns(SolveWarning, match="backward solve"):
        sol.value.sum().backward()


@pytest.mark.parametrize(
    ("f", "z", "error", "words"),
    [
        (lambda z: z, torch.zeros(0, 3), ValueError, "batch is empty"),
        (lambda z: z, torch.zeros(2, 3, dtype=torch.int64), TypeError, "expected float32"),
        (lambda z: z[:, 1:], torch.zeros(2, 3), ValueError, "f returned the shape"),
        (lambda z: z.double(), torch.zeros(2, 3), TypeError, "f returned torch.float64"),
        (lambda z: z.add_(1), torch.zeros(2, 3), RuntimeError, "in place"),
        (None, torch.zeros(2, 3), TypeError, "expected a function"),
    ],
)
def test_bad_input_is_refused(f, z, error, words):
    with pytest.raises(error, match=words), torch.no_grad():
        advance(f, z)


def test_the_jacobian_penalty_of_a_step(problem):
    f, wanted, z, x, _ = problem
    penalty = eq.stability.jacobian_penalty(advance(f, z, x), samples=4)
    assert torch.autograd.grad(penalty, wanted[0])[0].abs().sum() > 0


def test_the_state_before_is_not_kept_in_memory():
    """Its place in a cache is taken by the next one: the graph must not keep it alive."""
    x = torch.randn(1024, 1024, requires_grad=True)

    def step():
        z = torch.zeros(1024, 1024)
        sol = advance(lambda z, x: torch.tanh(z + x), z, x, adjoint=eq.JacobianFree())
        del z
        room = torch.zeros(4096, 1024)
        sol.value.sum().backward()
        return room

    step()  # allocates the gradient
    assert peak_bytes(step) < (16 + 4 + 4 + 2) * 2**20  # room, value, one product


@pytest.mark.parametrize("coupled", [True, torch.tensor([0, 0, 1, 1])], ids=["all", "groups"])
def test_status_of_rows_that_are_one_sample(coupled):
    z = torch.ones(4, 6)
    for rtol, status in ((1e-2, eq.Status.CONVERGED), (1e-4, eq.Status.MAX_EVALS)):
        solver = eq.Picard(rtol=rtol, per_row=True)
        sol = advance(lambda z: z + 1e-3, z, coupled=coupled, solver=solver)
        assert (sol.status == status).all()


def test_an_absolute_tolerance_of_ragged_samples():
    rows, step = torch.tensor([0, 0, 0, 1]), torch.tensor([1.0, 1.0, 1.0, 1.2])[:, None] * 1e-3
    solver = eq.Picard(rtol=0.0, atol=1.1e-3)
    sol = advance(lambda z: z + step, torch.zeros(4, 50), coupled=rows, solver=solver)
    assert sol.status.tolist() == [eq.Status.CONVERGED, eq.Status.MAX_EVALS]


def test_which_adjoints_advance():
    for adjoint in (eq.Implicit(), eq.JacobianFree(), eq.NeumannPhantom(steps=2)):
        assert advances(adjoint)
    # An audited one comes to Phantom on its way up.
    for adjoint in (None, eq.AdaptiveAdjoint(), eq.Phantom(), eq.Unrolled(), eq.Shine()):
        assert not advances(adjoint)
