"""What callers give is checked once, and the message says what to type."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from problems import normal
from references import from_zero
from torch import nn

import equilibria as eq
from equilibria.solve import Closure, nonnegative_field, whole_field
from equilibria.solve.solvers import Stepper

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status
X = normal(3, 4, seed=1).float()


def tanh(z, x):
    return 0.5 * torch.tanh(z) + x


# --- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "adjoint", [eq.Implicit(), eq.Phantom(), eq.Unrolled(), eq.JacobianFree()], ids=repr
)
def test_an_empty_batch_has_an_empty_solution(adjoint: Any) -> None:
    linear = nn.Linear(4, 4)
    layer = eq.DEQ(lambda z, x: torch.tanh(linear(z)) + x, adjoint=adjoint)
    sol = layer(torch.zeros(0, 4), states=(1, 2))
    assert sol.value.shape == (0, 4) and sol.status.shape == (0,) and len(sol.states) == 2
    assert sol.stats.evals.shape == sol.stats.residual.shape == (0,)
    sol.value.sum().backward()
    assert linear.weight.grad is not None and not linear.weight.grad.any()
    with pytest.raises(RuntimeError, match="5"):  # f's own message
        eq.fixed_point(lambda z: z @ torch.eye(5), torch.zeros(0, 4))


def test_a_coupled_state_has_leaves_of_any_shape() -> None:
    """Parameters of a model, say: there is no batch."""
    target = {"w": normal(4, 3, seed=2), "b": normal(3, seed=3), "c": torch.tensor(0.5).double()}
    k = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    z0 = {name: torch.zeros_like(x) for name, x in target.items()}

    def f(z, t):
        mean = sum(x.mean() for x in z.values()) / 3
        return {name: k * torch.tanh(z[name] + mean) + t[name] for name in z}

    options: Any = {"solver": eq.Anderson(rtol=1e-11), "coupled": True}
    exact = eq.Implicit(linear=eq.GMRES(rtol=1e-11))
    grads = []
    for adjoint in (exact, eq.Unrolled()):
        sol = eq.fixed_point(f, z0, target, adjoint=adjoint, **options)
        assert sol.status.tolist() == [CONVERGED]
        assert {name: x.shape for name, x in sol.value.items()} == {
            name: x.shape for name, x in z0.items()
        }
        grads += torch.autograd.grad(sum(x.sum() for x in sol.value.values()), k)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-8, atol=0)
    number = eq.fixed_point(lambda z: torch.cos(z), torch.tensor(1.0), coupled=True)
    assert number.value.shape == () and abs(float(number.value) - 0.739085) < 1e-3


def test_shapes_that_differ_name_coupled() -> None:
    with pytest.raises(ValueError, match=r"4 and 3.*coupled=True"):
        eq.fixed_point(lambda z: z, {"w": torch.zeros(4, 3), "b": torch.zeros(3)})
    with pytest.raises(ValueError, match="per_row"):
        solver = eq.Picard(per_row=True)
        eq.fixed_point(
            lambda z: z, (torch.zeros(4, 3), torch.zeros(3)), coupled=True, solver=solver
        )


@pytest.mark.parametrize("warm", [False, True])
def test_a_start_of_inference_mode_can_be_trained_from(warm: bool) -> None:
    with torch.inference_mode():
        start = from_zero(tanh, X)
    x = X.clone().requires_grad_()
    options: Any = {"warm": start} if warm else {}
    z0 = torch.zeros_like(X) if warm else start.value
    eq.fixed_point(tanh, z0, x, **options).value.sum().backward()
    assert x.grad is not None and bool((x.grad > 1).all())


# --- f -------------------------------------------------------------------------------------------


def descent(z: torch.Tensor) -> torch.Tensor:
    return z - 0.2 * torch.autograd.grad((z - 1).square().sum(), z)[0]


def guarded(z: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        inner = z if z.requires_grad else z.requires_grad_()
        (slope,) = torch.autograd.grad((inner - 1).square().sum(), inner, create_graph=True)
    return z - 0.2 * slope


def test_a_gradient_in_f_needs_enable_grad() -> None:
    with pytest.raises(RuntimeError) as caught:
        eq.fixed_point(descent, torch.zeros(2, 3))
    assert any("torch.enable_grad()" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("coupled", [False, True])
def test_a_map_that_enables_gradients_is_solved(coupled: bool) -> None:
    sol = eq.fixed_point(guarded, torch.zeros(2, 3), coupled=coupled, solver=eq.Picard())
    assert (sol.status == CONVERGED).all()
    torch.testing.assert_close(sol.value.detach(), torch.ones(2, 3), rtol=1e-3, atol=0)


def test_images_hold_no_graph_in_a_forward_solve() -> None:
    """A map that works under enable_grad: no iterate remembers the one before."""
    seen: list[bool] = []

    def f(z, b):
        seen.append(z.requires_grad)
        with torch.enable_grad():
            return torch.tanh(z * b) + 1

    b = torch.tensor(0.5, requires_grad=True)
    for coupled in (False, True):
        eq.fixed_point(
            f,
            torch.zeros(4, 3),
            eq.shared(b),
            coupled=coupled,
            adjoint=eq.JacobianFree(),
            solver=eq.Picard(rtol=0, patience=None, max_evals=9),
        )
    assert not any(seen)


def test_a_map_that_mixes_samples_names_coupled() -> None:
    matrix = torch.tensor([[0.0, 0.5], [0.0, 0.97]], dtype=torch.float64)
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64, requires_grad=True)
    sol = eq.fixed_point(lambda z, x: x + matrix @ z, torch.zeros(2, 1).double(), x)
    with pytest.raises(RuntimeError, match="coupled=True"):
        sol.value.sum().backward()


@pytest.mark.parametrize(
    "linear", [eq.Fallback(), eq.GMRES(atol=1e-6), eq.Anderson(atol=1e-6)], ids=repr
)
def test_an_incoming_gradient_that_is_not_finite_is_passed_on(linear: Any) -> None:
    """Under `throw`, a loss scaled too far is the gradient scaler's affair."""
    x = X.clone().requires_grad_()
    adjoint = eq.Implicit(linear=linear)
    sol = eq.fixed_point(tanh, torch.zeros_like(X), x, throw=True, adjoint=adjoint)
    scale = torch.tensor([[1.0], [float("inf")], [float("nan")]])
    with pytest.warns(eq.SolveWarning, match="incoming gradient is not finite"):
        (sol.value * scale).sum().backward()
    assert sol.adjoint is not None and x.grad is not None
    assert sol.adjoint.status.tolist() == [CONVERGED, NONFINITE, NONFINITE]
    reason = sol.adjoint.stats.reason
    assert reason is not None and reason.tolist() == [0, eq.Reason.GRADIENT, eq.Reason.GRADIENT]
    assert x.grad.isfinite().all(1).tolist() == [True, False, False]


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        (eq.Anderson, "tol", "rtol"),
        (eq.Anderson, "max_iter", "max_evals"),
        (eq.Anderson, "histroy", "history"),
        (eq.Broyden, "memroy", "memory"),
        (eq.GMRES, "restarts", "restart"),
        (eq.Neumann, "tolerance", "rtol"),
        (eq.Implicit, "liner", "linear"),
        (eq.Phantom, "lam", "damping"),
        (eq.Anderson, "lam", "ridge"),
        (eq.Broyden, "LBFGS_thres", "memory"),
    ],
)
def test_a_misspelt_option_has_a_remedy(kind: Any, given: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"{kind.__name__} has no option '{given}'.*'{meant}'"):
        kind(**{given: 1})


def test_options_that_are_not_there_are_said_to_be_elsewhere() -> None:
    with pytest.raises(TypeError, match=r"Implicit\(linear=eq.GMRES\(rtol=...\)\)"):
        eq.Implicit(rtol=1e-3)  # pyright: ignore
    with pytest.raises(TypeError, match="'steps': it has none"):
        eq.JacobianFree(steps=1)  # pyright: ignore


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"damping": 5}, "damping=...*: expected a number between 0 and 2"),
        ({"patience": "x"}, "patience=...*: expected a whole number"),
        ({"max_evals": 0}, "max_evals=...*: expected a whole number >= 1"),
        ({"momentum": -1}, "momentum=...*: expected a finite number >= 0"),
        ({"memory": 0}, "memory=...*: expected a whole number >= 1"),
    ],
)
def test_a_subclass_keeps_the_checks_of_its_base(options: dict[str, Any], said: str) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(eq.Picard):
        damping: float = 0.5
        patience: int | None = 40
        max_evals: int = 50
        momentum: float = nonnegative_field(0.5)
        memory: int | None = whole_field(None, 1)

    assert Mine(patience=None, memory=3) == Mine(patience=None, memory=3, damping=0.5)
    with pytest.raises((TypeError, ValueError), match=said):
        Mine(**options)


@pytest.mark.parametrize("limit", [{"atol": 1e-3}, {"error": 1e-3}], ids=repr)
def test_limits_of_a_newton_step_are_no_options(limit: dict[str, Any]) -> None:
    linear = eq.GMRES(**limit)
    for kind, name in ((eq.NewtonKrylov, "linear"), (eq.Auto, "newton")):
        with pytest.raises(ValueError, match=f"{name}=.*would be ignored"):
            kind(**{name: linear})


@dataclass(frozen=True, kw_only=True)
class Rowwise(eq.Picard):
    per_row: bool = True


@dataclass(frozen=True, kw_only=True)
class Absolute(eq.GMRES):
    atol: float = 1e-6


@dataclass(frozen=True, kw_only=True)
class Accurate(eq.GMRES):
    error: float | None = 1e-3


@dataclass(frozen=True, kw_only=True)
class Brief(eq.GMRES):
    max_evals: int = 7


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (eq.Fallback, {"first": Rowwise()}),
        (eq.Fallback, {"then": Absolute()}),
        (eq.Fallback, {"then": Brief()}),
        (eq.NewtonKrylov, {"linear": Absolute()}),
        (eq.NewtonKrylov, {"linear": Accurate()}),
        (eq.Auto, {"newton": Absolute()}),
    ],
    ids=repr,
)
def test_a_default_of_a_subclass_is_not_ignored_silently(kind: Any, options: Any) -> None:
    with pytest.raises(ValueError, match="would be ignored"):
        kind(**options)


def test_a_default_of_a_subclass_that_is_heeded_passes() -> None:
    eq.NewtonKrylov(linear=Brief())
    eq.Fallback(then=Absolute(atol=0.0), first=Rowwise(per_row=False))


def test_coupled_is_checked_before_what_it_excludes() -> None:
    both: Any = {"coupled": None, "drop_finished": True}
    with pytest.raises(TypeError, match="expected a bool, or an int64 tensor"):
        eq.fixed_point(lambda z: 0.5 * z, torch.zeros(2, 1), **both)


def test_a_function_that_is_handed_over_is_left_as_it_is() -> None:
    f = Closure(lambda z: 0.5 * z + 1)
    for find in (eq.root_find, eq.attach):
        find(f, torch.full((1, 1), 2.0))
    found = eq.fixed_point(f, torch.zeros(1, 1)).value
    torch.testing.assert_close(found, torch.full((1, 1), 2.0), rtol=1e-3, atol=0)


def test_a_reason_stands_beside_a_status() -> None:
    far = eq.fixed_point(lambda z: z + 1, torch.zeros(1, 2), solver=eq.Picard(rtol=1e-2))
    assert far.status.tolist() == [MAX_EVALS]
    assert far.stats.reason is not None and far.stats.reason.tolist() == [eq.Reason.GROWTH]
    with pytest.raises(eq.SolveError, match=r"small only beside it.*\n.*no fixed point"):
        eq.fixed_point(lambda z: z + 1, torch.zeros(1, 2), solver=eq.Picard(rtol=1e-2), throw=True)


def test_a_singular_adjoint_says_so() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    for linear in (eq.DirectSolve(), eq.GMRES()):
        sol = eq.fixed_point(lambda z, x: z + x, x.detach(), x, adjoint=eq.Implicit(linear=linear))
        with pytest.warns(eq.SolveWarning):
            sol.value.sum().backward()
        assert sol.adjoint is not None and not (sol.adjoint.status == CONVERGED).any()
    with pytest.warns(eq.SolveWarning, match="singular"):
        sol = eq.fixed_point(
            lambda z, x: z + x, x.detach(), x, adjoint=eq.Implicit(linear=eq.DirectSolve())
        )
        sol.value.sum().backward()


def test_warnings_are_at_the_users_line() -> None:
    x = X.clone().requires_grad_()
    solver = eq.Picard(max_evals=3)
    sol = eq.fixed_point(lambda z, x: 3 * z + x, torch.zeros_like(X), x, solver=solver)
    with pytest.warns(eq.SolveWarning) as caught:
        sol.value.sum().backward()
    assert {each.filename for each in caught} == {__file__}


# --- methods of others ---------------------------------------------------------------------------


def own(kind: Any, **methods: Any) -> Any:
    """A method of a user's own, whose functions return what is said of their arguments."""
    made = {name: lambda self, *given, what=what: what(*given) for name, what in methods.items()}
    return type("Mine", (kind,), made)()


class HalfwayStepper(Stepper):
    def step(self, now: Any) -> Any:
        return [(a + b) / 2 for a, b in zip(now.z, now.f, strict=True)]

    def select(self, index: Any) -> None:
        pass


def halfway(kind: Any = HalfwayStepper, **methods: Any) -> eq.Solver:
    """A solver written outside."""
    return own(eq.Solver, start=lambda *_: own(kind, **methods))


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(
    "adjoint",
    [eq.Implicit(), eq.Phantom(), eq.NeumannPhantom(), eq.JacobianFree(), eq.Unrolled()],
    ids=repr,
)
def test_a_solver_of_others(adjoint: Any, drop: bool) -> None:
    x = X.clone().requires_grad_()
    sol = eq.fixed_point(
        tanh, torch.zeros_like(X), x, solver=halfway(), adjoint=adjoint, drop_finished=drop
    )
    assert (sol.status == CONVERGED).all()
    sol.value.sum().backward()
    assert x.grad is not None and bool((x.grad > 0.9).all())


class Remembers(HalfwayStepper):
    def step(self, now: Any) -> Any:
        self.kept = now.z
        self.spent = torch.ones_like(now.size, dtype=torch.int64)
        return super().step(now)

    def select(self, index: Any) -> None:
        self.kept = [row[index] for row in self.kept]
        assert self.spent is not None
        self.spent = self.spent[index]


def test_samples_leave_only_after_a_step() -> None:
    """Also those that start solved: a stepper has made its memory by then."""
    x = torch.cat([torch.zeros(2, 4), X])
    sol = from_zero(lambda z, x: x + 0.5 * z, x, solver=halfway(Remembers), drop_finished=True)
    assert (sol.status == CONVERGED).all()
    torch.testing.assert_close(sol.value, 2 * x, rtol=1e-3, atol=0)
    assert sol.stats.evals.tolist() == [1, 1, *[int(sol.stats.evals[2])] * 3]
    assert int(sol.stats.evals[2]) % 2  # each step spends one more


class Zeros(eq.LinearSolver):
    """Claims that zero solves everything."""

    def cycle(self, product: Any, start: Any, goal: Any, budget: Any, active: Any) -> Any:
        return [torch.zeros_like(u) for u in start.u], torch.zeros_like(budget), 0 * start.size


class Richardson(eq.LinearSolver):
    """u <- A u + g, which needs no more than the residual."""

    def cycle(self, product: Any, start: Any, goal: Any, budget: Any, active: Any) -> Any:
        u = [a + r for a, r in zip(start.u, start.residual, strict=True)]
        return u, torch.zeros_like(budget), start.size


def backward(linear: Any) -> tuple[torch.Tensor, Any]:
    x = X.clone().requires_grad_()
    sol = eq.fixed_point(tanh, torch.zeros_like(X), x, adjoint=eq.Implicit(linear=linear))
    sol.value.sum().backward()
    assert x.grad is not None and sol.adjoint is not None
    return x.grad, sol.adjoint


def test_a_linear_solver_of_others_is_measured() -> None:
    found, adjoint = backward(Richardson())
    wanted, _ = backward(eq.GMRES(rtol=1e-6))
    assert (adjoint.status == CONVERGED).all() and (adjoint.stats.residual <= 1e-4).all()
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0)
    with pytest.warns(eq.SolveWarning):
        _, adjoint = backward(Zeros())
    assert (adjoint.status == STALLED).all() and (adjoint.stats.residual == 1).all()


FAULTS = {
    "no matrix": (
        halfway(step=lambda now: now.f[0]),
        "the step of Mine returned Tensor: expected a matrix",
    ),
    "other columns": (
        halfway(step=lambda now: [row[:, :2] for row in now.f]),
        r"the step of Mine returned .*\(3, 2\).*\(3, 4\)",
    ),
    "flat": (
        own(eq.LinearSolver, cycle=lambda p, s, g, b, a: ([s.u[0].flatten()], 0 * b, s.size)),
        r"Mine.cycle returned .*12.* expected .*\(3, 4\)",
    ),
    "no stepper": (own(eq.Solver, start=lambda *_: 3), "Mine.start returned 3"),
    "no pair": (
        own(eq.LinearSolver, cycle=lambda p, start, *_: (start.u, start.size)),
        r"Mine.cycle returned tuple\(list\(Tensor\), Tensor\): expected u like the start",
    ),
    "no tensor": (
        own(eq.LinearSolver, cycle=lambda p, start, *_: (start.u, 1, start.size)),
        r"Mine.cycle returned tuple\(int, Tensor\): expected",
    ),
    "too many": (
        own(eq.LinearSolver, cycle=lambda p, start, goal, b, a: (start.u, b + 1, start.size)),
        "Mine.cycle took 100 products, more than its budget",
    ),
    "no list": (
        own(eq.LinearSolver, cycle=lambda p, start, g, b, a: (start.u[0], b, start.size)),
        "Mine.cycle returned Tensor: expected u like the start",
    ),
    "a tensor": (
        own(eq.Adjoint, solve=lambda product, g: g[0]),
        "Mine.solve returned Tensor: expected as g",
    ),
    "no leaves": (
        own(eq.Adjoint, solve=lambda product, g: None),
        "Mine.solve returned NoneType: expected as g",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_no_answer_names_the_method(name: str) -> None:
    method, said = FAULTS[name]
    how: dict[str, Any] = {"solver": method} if isinstance(method, eq.Solver) else {}
    if isinstance(method, eq.LinearSolver):
        how = {"adjoint": eq.Implicit(linear=method)}
    elif isinstance(method, eq.Adjoint):
        how = {"adjoint": method}
    with pytest.raises((TypeError, ValueError), match=said):
        sol = eq.fixed_point(tanh, torch.zeros_like(X), X.clone().requires_grad_(), **how)
        sol.value.sum().backward()


def test_an_option_without_a_dataclass_is_explained() -> None:
    class Heavy(eq.Solver):
        momentum: float = 0.5

        def start(self, tracked: bool, jacobian: Any) -> Stepper:
            return HalfwayStepper()

    with pytest.raises(TypeError, match="Heavy has 'momentum', but not as an option: decorate"):
        Heavy(momentum=0.9)  # pyright: ignore


# --- cells ---------------------------------------------------------------------------------------


def test_a_cell_that_takes_no_input_is_told_how_it_is_called() -> None:
    with pytest.raises(TypeError, match=r"cell\(z, \*inputs, .*here with 1 input.*self, z"):
        eq.DEQ(nn.Linear(4, 4))(X)


def test_an_error_that_a_cell_raises_is_left_alone() -> None:
    class Cell(nn.Module):
        def forward(self, z, x):
            raise ValueError("my file index has the wrong size")

    with pytest.raises(ValueError, match=r"^my file index has the wrong size$"):
        eq.DEQ(Cell())(X)


def test_tracing_is_refused() -> None:
    with pytest.raises(RuntimeError, match="exportable"):
        torch.jit.trace(eq.nn.Value(eq.DEQ(tanh)), X)


def test_a_budget_that_meets_its_tolerance() -> None:
    sol = from_zero(lambda z, x: 0.95 * torch.tanh(z) + x, X, **eq.profiles.learning(rtol=1e-4))
    assert (sol.status == CONVERGED).all()
