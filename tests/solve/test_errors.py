"""Bad input ends in one clear message: what was given, what was expected, what to do."""

import warnings
from dataclasses import dataclass

import pytest
import torch
from problems import column, normal

import equilibria as eq
from equilibria.solve import Solver

Z0 = torch.zeros(3, 4)
X = normal(3, 4, seed=1).float()


def half(z, *_):
    return 0.5 * z + 1


# What f returns.


RETURNED = {
    "shape": (lambda z: z[:, :2], ValueError, ["(3, 2)", "(3, 4)"]),
    "batch": (lambda z: z[:1], ValueError, ["(1, 4)", "(3, 4)"]),
    "scalar": (lambda z: z.sum(), ValueError, ["()", "(3, 4)"]),
    "double": (lambda z: z.double(), TypeError, ["float64", "float32"]),
    "bfloat16": (lambda z: z.bfloat16(), TypeError, ["bfloat16", "float32"]),
    "int": (lambda z: z.int(), TypeError, ["int32", "float32"]),
    "tuple": (lambda z: (z, z), TypeError, []),
    "list": (lambda z: [z], TypeError, []),
    "dict": (lambda z: {"z": z}, TypeError, []),
    "none": (lambda z: None, TypeError, []),
    "number": (lambda z: 1.0, TypeError, ["float"]),
}


@pytest.mark.parametrize("name", RETURNED)
def test_f_returns_something_else(name: str) -> None:
    f, error, words = RETURNED[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        eq.fixed_point(f, Z0)
    assert isinstance(caught.value, error)
    message = str(caught.value)
    assert "f" in message.split() or "f(z)" in message or "f returned" in message
    for word in words:
        assert word in message


def test_f_returns_another_tree() -> None:
    with pytest.raises((TypeError, ValueError), match="b"):
        eq.fixed_point(lambda z: {"a": z["a"]}, {"a": Z0, "b": Z0})


def test_f_changes_its_mind_later() -> None:
    """The check is at every evaluation, not at the first alone."""
    calls = []

    def f(z):
        calls.append(1)
        return half(z) if len(calls) < 3 else half(z)[:, :1]

    with pytest.raises(ValueError, match=r"shape|axes|axis"):
        eq.fixed_point(f, Z0, solver=eq.Picard())


def test_an_error_inside_f_is_not_dressed_up() -> None:
    def f(z):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        eq.fixed_point(f, Z0)


# The state and the operands.


STATES = {
    "bfloat16": (torch.zeros(3, 4, dtype=torch.bfloat16), TypeError, "bfloat16"),
    "float16": (torch.zeros(3, 4, dtype=torch.float16), TypeError, "float16"),
    "int": (torch.zeros(3, 4, dtype=torch.int64), TypeError, "int64"),
    "complex": (torch.zeros(3, 4, dtype=torch.complex64), TypeError, "complex64.*view_as_real"),
    "no_axis": (torch.tensor(1.0), ValueError, r"batch.*reshape\(1\)"),
    "no_entries": ((torch.zeros(3, 4), torch.zeros(3, 0)), ValueError, r"without.*\(3, 0\)"),
    "no_leaf": ((), ValueError, "tensor"),
    "none": (None, (TypeError, ValueError), "tensor"),
    "number": (1.0, TypeError, "float"),
    "two_batches": ((torch.zeros(3, 2), torch.zeros(2, 2)), ValueError, "batch"),
    "two_dtypes": ((torch.zeros(3, 2), torch.zeros(3, 2).double()), TypeError, "float64"),
    "string": ((torch.zeros(3, 2), "b"), TypeError, "str"),
}


@pytest.mark.parametrize("name", STATES)
def test_bad_state(name: str) -> None:
    z0, error, word = STATES[name]
    with pytest.raises(error, match=word):
        eq.fixed_point(lambda z: z, z0)


@pytest.mark.parametrize(
    "operand",
    [X[:2], X[0], {"a": X, "b": (X[:1],)}, torch.ones(1, 4), torch.ones(4, 3)],
    ids=["short", "one_sample", "tree", "broadcast", "transposed"],
)
def test_operand_with_another_first_axis(operand) -> None:
    """Nothing is guessed or broadcast: the message names the remedy."""
    with pytest.raises(ValueError, match="shared"):
        eq.fixed_point(half, Z0, operand)


def test_operand_without_axes() -> None:
    with pytest.raises(ValueError, match="shared"):
        eq.fixed_point(half, Z0, torch.tensor(1.0))
    sol = eq.fixed_point(lambda z, c: 0.5 * z + c, Z0, eq.shared(torch.tensor(1.0)))
    assert torch.equal(sol.value, torch.full_like(Z0, 2.0)) or sol.stats.residual.max() <= 1e-4


def test_shared_is_given_as_it_is() -> None:
    """f receives what shared wraps, of any kind, and operands in order."""
    marker = {"any": ("thing", 3)}

    def f(z, a, thing, b):
        assert thing == marker and a is not b
        return 0.5 * z + a - b

    eq.fixed_point(f, Z0, X, eq.shared(marker), 2 * X)


# Options.


NAN, INF = float("nan"), float("inf")
IMPOSSIBLE: dict[type, dict[str, list[float]]] = {
    eq.Picard: {
        "damping": [0.0, 2.0, -1.0, NAN],
        "rtol": [-1e-3, NAN, INF],
        "atol": [-1.0],
        "max_evals": [0, -3],
        "patience": [0],
    },
    eq.Anderson: {"history": [0, -1], "ridge": [-1e-9], "period": [0], "damping": [2.5]},
    eq.Broyden: {"memory": [0]},
    eq.Auto: {"history": [0], "rtol": [-1.0]},
    eq.GMRES: {"restart": [0], "rtol": [-1.0]},
    eq.BiCGSTAB: {"max_evals": [0]},
    eq.Neumann: {"atol": [-1.0]},
    eq.DirectSolve: {"rtol": [-1.0]},
    eq.Implicit: {"follow": [-1.0]},
    eq.Phantom: {"steps": [0], "damping": [0.0]},
    eq.NeumannPhantom: {"steps": [-1], "damping": [2.0]},
    eq.Shine: {"refine": [-1], "fallback": [-1.0]},
    eq.Unrolled: {"max_evals": [-1]},
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_impossible_options(kind) -> None:
    """At construction, and the message names the option, what was given and what is possible."""
    for name, values in IMPOSSIBLE[kind].items():
        for value in values:
            with pytest.raises(ValueError, match=name) as caught:
                kind(**{name: value})
            assert str(value) in str(caught.value) and kind.__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (eq.Anderson, {"history": 2.5}),
        (eq.Anderson, {"history": "5"}),
        (eq.Picard, {"rtol": "small"}),
        (eq.Picard, {"max_evals": 10.0}),
        (eq.Picard, {"damping": None}),
        (eq.Picard, {"max_evals": True}),
        (eq.Auto, {"history": 2.5}),
        (eq.Implicit, {"follow": "yes"}),
        (eq.Unrolled, {"max_evals": 2.5}),
        (eq.Unrolled, {"max_evals": True}),
    ],
)
def test_option_of_another_type(kind, options) -> None:
    (name,) = options
    with pytest.raises(TypeError, match=name):
        kind(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"solver": "anderson"},
        {"solver": eq.Anderson},
        {"solver": eq.GMRES()},
        {"adjoint": "implicit"},
        {"adjoint": eq.Implicit},
        {"adjoint": eq.GMRES()},
        {"tol": 1e-3},
        {"states": (-1,)},
        {"states": (1.5,)},
        {"returns": "final"},
        {"warm": Z0},
        {"drop_finished": True, "coupled": True},
    ],
    ids=str,
)
def test_impossible_argument(options) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        eq.fixed_point(half, Z0, **options)
    assert next(iter(options)) in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Stepped(Solver):
    """A method of one's own, with an option that has no default."""

    step: float

    def start(self, tracked, jacobian):
        return eq.Picard(damping=self.step).start(tracked, jacobian)


def test_a_relay_takes_a_method_with_an_option_that_must_be_given() -> None:
    x = X.clone().requires_grad_()
    fallback = eq.Fallback(first=Stepped(step=0.9), rtol=1e-6)
    f = lambda z, x: 0.5 * z + x  # noqa: E731
    sol = eq.fixed_point(f, Z0, x, adjoint=eq.Implicit(linear=fallback))
    (grad,) = torch.autograd.grad(sol.value.sum(), x)
    torch.testing.assert_close(grad, torch.full_like(x, 2.0), rtol=1e-5, atol=0.0)
    assert sol.adjoint is not None and (sol.adjoint.stats.evals > 10).all()
    with pytest.raises(ValueError, match=r"Fallback\(first=...\): rtol = 0.1 would be ignored"):
        eq.Fallback(first=Stepped(step=0.9, rtol=0.1))


def test_adjoint_takes_solvers_only() -> None:
    for linear in ("gmres", eq.GMRES, eq.Implicit(), None):
        with pytest.raises(TypeError, match="linear"):
            eq.Implicit(linear=linear)


# Failures of a solve.


def mixed(z, x):
    """Converges in samples 0 and 3, diverges in 1, turns NaN in 2."""
    slope = torch.tensor([[0.5], [30.0], [0.5], [0.2]])[: len(z)]
    return slope * z + x


MIXED_X = torch.tensor([[1.0], [1.0], [torch.nan], [1.0]])


def test_throw_names_samples_status_and_residual() -> None:
    z0 = torch.zeros(4, 1)
    quiet = eq.fixed_point(mixed, z0, MIXED_X, solver=eq.Picard())
    assert quiet.status.tolist() == [0, eq.Status.DIVERGED, eq.Status.NONFINITE, 0]
    with pytest.raises(eq.SolveError) as caught:
        eq.fixed_point(mixed, z0, MIXED_X, solver=eq.Picard(), throw=True)
    message = str(caught.value)
    assert "DIVERGED" in message and "NONFINITE" in message and "CONVERGED" not in message
    assert eq.Status.DIVERGED.message in message
    assert "2 of 4" in message
    assert f"{float(quiet.stats.residual[1]):.2e}" in message
    assert issubclass(eq.SolveError, RuntimeError)


def test_throw_is_silent_where_all_converge() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sol = eq.fixed_point(half, Z0, throw=True)
    assert (sol.status == eq.Status.CONVERGED).all()


def test_failed_sample_does_not_spoil_the_gradient_of_others() -> None:
    """The forward of sample 1 ends NONFINITE: samples 0 and 2 keep their exact gradients."""
    x = column(2.0, -1.0, 6.0).requires_grad_()
    sol = eq.fixed_point(lambda z, x: (x - z).sqrt(), torch.zeros(3, 1).double(), x)
    assert sol.status.tolist() == [0, eq.Status.NONFINITE, 0]
    done = sol.status == eq.Status.CONVERGED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sol.value[done].sum().backward()
    wanted = (1 + 4 * x.detach()).rsqrt()
    torch.testing.assert_close(x.grad[[0, 2]], wanted[[0, 2]], rtol=1e-3, atol=1e-4)


def test_nothing_is_printed_or_warned_in_a_healthy_step(capfd) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = X.clone().requires_grad_()
        eq.fixed_point(lambda z, x: 0.5 * torch.sin(z) + x, Z0, x).value.sum().backward()
    out, err = capfd.readouterr()
    assert out == "" and err == ""


# An f that breaks the rules.


@pytest.mark.parametrize("grad", [True, False])
def test_f_changes_its_input(grad: bool) -> None:
    """f(z) would be z, and the residual zero: a CONVERGED that is not. z0 stays as it was."""
    z0 = torch.zeros(3, 4)
    with torch.set_grad_enabled(grad), pytest.raises(RuntimeError, match="in place"):
        eq.fixed_point(lambda z: z.mul_(0.5).add_(1), z0)


def test_f_writes_into_a_buffer() -> None:
    """The second iterate is the buffer that the second evaluation overwrites."""
    buffer = torch.empty(3, 4)
    with torch.no_grad(), pytest.raises(RuntimeError, match="in place"):
        eq.fixed_point(lambda z: torch.add(0.5 * z, 1, out=buffer), Z0.clone(), solver=eq.Picard())


def test_gradients_in_batches_name_what_to_use() -> None:
    x = torch.ones(2, 3, requires_grad=True)

    def value(x):
        f = lambda z, x: torch.tanh(0.5 * z + x)  # noqa: E731
        return eq.fixed_point(f, torch.zeros(2, 3), x).value.sum(0)

    with pytest.raises(RuntimeError, match=r"torch\.func\.jacrev"):
        torch.autograd.functional.jacobian(value, x, vectorize=True)
    wanted = torch.autograd.functional.jacobian(value, x)
    torch.testing.assert_close(torch.func.jacrev(value)(x.detach()), wanted, rtol=1e-3, atol=1e-4)
