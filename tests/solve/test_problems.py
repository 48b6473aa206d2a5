"""Every problem with every solver in both dtypes, and the table of what is known to fail."""

import functools

import pytest
import torch
from problems import BY_NAME, PROBLEMS, Problem, flat, relative_residual
from references import Counted

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status

MAX = 300
RTOL = {torch.float32: 1e-4, torch.float64: 1e-8}

SOLVERS = {
    "Picard": eq.Picard,
    "Anderson(period=3)": functools.partial(eq.Anderson, period=3),
    "Anderson": eq.Anderson,
    "Broyden": eq.Broyden,
    "Broyden(10)": lambda **options: eq.Broyden(memory=10, **options),
    "NewtonKrylov": eq.NewtonKrylov,
    "Auto": functools.partial(eq.Auto, newton=eq.GMRES(rtol=1e-6, restart=100)),
}

WITH_PRODUCTS = ("NewtonKrylov", "Auto")

# Outcomes that rounding decides, and so another processor may: each is one of a set.
EITHER = frozenset({CONVERGED, STALLED})
FAILS = frozenset({MAX_EVALS, STALLED, DIVERGED, NONFINITE})

Outcome = eq.Status | frozenset[eq.Status]

# What does not converge, and how it ends: one outcome, or one a sample; by problem, then by solver,
# with the dtype where it matters. A solve that fails and does not stand here breaks the test, and
# so does one that stands here and converges.
KNOWN_FAILURES: dict[str, dict[str, Outcome | tuple[Outcome, ...]]] = {
    # Plain iteration is too slow within the budget.
    "linear/symmetric_.99": {"Picard": MAX_EVALS},
    "linear/ill_conditioned": {"Picard": MAX_EVALS},
    "tanh/norm_2.5": {"Picard float64": (CONVERGED, MAX_EVALS, CONVERGED)},
    # A radius of one and above: plain iteration cycles or diverges.
    "linear/symmetric_2": {"Picard": DIVERGED},
    "linear/symmetric_2_wide": {
        "Picard": DIVERGED,
        "Anderson(period=3)": MAX_EVALS,
        "Anderson": STALLED,
        "Broyden(10)": STALLED,
    },
    "linear/negative_3": {"Picard": DIVERGED},
    "linear/orthogonal_1.1": {"Picard": STALLED},
    "linear/quarter_turn": {"Picard": STALLED},
    "tanh/norm_6": {
        "Picard": STALLED,
        "Broyden(10)": (CONVERGED, CONVERGED, EITHER),
        "NewtonKrylov": FAILS | {CONVERGED},
    },
    "tanh/negative_2": {"Picard": STALLED},
    "scalar/logistic": {"Picard": (CONVERGED, STALLED, STALLED)},
    "scalar/steep": {"Picard": DIVERGED},
    "image": {"Picard": (STALLED, CONVERGED, MAX_EVALS)},
    # Stiffness: plain iterations lead astray, those between two extrapolations too.
    "stiff/decay": {
        "Picard": DIVERGED,
        "Anderson(period=3)": DIVERGED,
        "Anderson": STALLED,
        "Broyden(10)": STALLED,
    },
    "stiff/relaxation": {"Picard": DIVERGED, "Anderson(period=3)": FAILS | {CONVERGED}},
    "stiff/robertson": {"Picard": FAILS, "Anderson(period=3)": FAILS, "Auto": FAILS | {CONVERGED}},
    # No fixed point.
    "scalar/exponential": dict.fromkeys(SOLVERS, FAILS) | {"Picard": (NONFINITE, FAILS, NONFINITE)},
    "scalar/hyperbola": dict.fromkeys(SOLVERS, STALLED)
    | {"Picard": DIVERGED, "Anderson(period=3)": FAILS, "Anderson": FAILS, "Auto": FAILS},
    "scalar/flip": dict.fromkeys(SOLVERS, STALLED),
    # No fixed point, and far out z + 1 is z to rounding: a solver may jump there.
    "scalar/translation": dict.fromkeys(SOLVERS, FAILS) | {"Picard": MAX_EVALS},
    "nan/at_once": dict.fromkeys(SOLVERS, (CONVERGED, NONFINITE, CONVERGED)),
    "nan/second_evaluation": {
        name: (CONVERGED, NONFINITE, CONVERGED) for name in SOLVERS if name != "NewtonKrylov"
    },
}


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def expected(problem: Problem, solver: str, dtype: torch.dtype) -> list[frozenset[eq.Status]]:
    """What the table allows for every sample; CONVERGED where it says nothing."""
    entries = KNOWN_FAILURES.get(problem.name, {})
    named = f"{solver} {short(dtype)}"
    entry = entries.get(named, entries.get(solver, CONVERGED))
    outcomes = entry if isinstance(entry, tuple) else (entry,) * problem.batch
    return [o if isinstance(o, frozenset) else frozenset({o}) for o in outcomes]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_problem(problem: Problem) -> None:
    """In float64 and float32 by turns, and in that of an entry of the table that names one."""
    turn = PROBLEMS.index(problem)
    for place, solver in enumerate(SOLVERS):
        dtypes = {list(RTOL)[(turn + place) % 2]}
        named = KNOWN_FAILURES.get(problem.name, {})
        dtypes |= {dtype for dtype in RTOL if f"{solver} {short(dtype)}" in named}
        for dtype in dtypes:
            check(problem, solver, dtype)


def check(problem: Problem, solver: str, dtype: torch.dtype) -> None:
    z0, operands, weights = problem.cast(dtype)
    f = Counted(problem.f)
    with torch.no_grad():
        sol = eq.fixed_point(
            f,
            z0,
            *operands,
            *map(eq.shared, weights),
            solver=SOLVERS[solver](rtol=RTOL[dtype], max_evals=MAX),
        )

    # The counts are calls of f, and products with its Jacobian; the value is what the start was.
    evals = int(sol.stats.evals.max())
    assert evals <= MAX
    assert evals == f.calls or (solver in WITH_PRODUCTS and f.calls <= evals + 1)
    value = flat(sol.value)
    assert value.dtype == dtype and value.shape == flat(z0).shape
    assert value.isfinite().all()

    # CONVERGED means what it says: the residual measured anew, and the distance to the answer.
    # Measuring it anew rounds anew, hence the epsilons.
    done = sol.status == CONVERGED
    eps = torch.finfo(dtype).eps
    residual = relative_residual(problem.f, sol.value, *operands, *weights)
    # A state that is zero to rounding, beside its start, has no relative residual.
    zero = value.abs().amax(dim=1) < eps**1.5 * flat(z0).abs().amax(dim=1)
    residual = torch.where(zero, 0.0, residual)
    assert (residual[done] <= RTOL[dtype] * 1.001 + 8 * eps).all()
    torch.testing.assert_close(
        sol.stats.residual[done], residual[done], rtol=1e-3, atol=8 * eps, check_dtype=False
    )
    if problem.known:
        solution = flat(problem.solution)
        error = torch.where(zero, 0.0, (value.double() - solution).norm(dim=1))
        bound = problem.condition * RTOL[dtype] * (solution.norm(dim=1) + error)
        assert (error[done] <= 1.5 * bound[done]).all()

    statuses = [eq.Status(status) for status in sol.status.tolist()]
    allowed = expected(problem, solver, dtype)
    assert all(status in outcomes for status, outcomes in zip(statuses, allowed, strict=True)), (
        f"{problem.name}, {solver}, {dtype}: {[s.name for s in statuses]}, "
        f"the table allows {[sorted(o.name for o in outcomes) for outcomes in allowed]}"
    )


def test_table_names_problems_and_solvers() -> None:
    """No entry of the table is a slip of the pen."""
    solvers = {f"{s}{d}" for s in SOLVERS for d in ("", " float32", " float64")}
    for name, entries in KNOWN_FAILURES.items():
        assert name in BY_NAME and entries.keys() <= solvers
        for entry in entries.values():
            outcomes = entry if isinstance(entry, tuple) else (entry,)
            assert any(outcome != CONVERGED for outcome in outcomes)
            assert len(outcomes) in (1, BY_NAME[name].batch)


def test_list_covers_the_kinds() -> None:
    """Twenty problems and more with a known answer, of every kind."""
    assert sum(problem.known for problem in PROBLEMS) >= 20
    kinds = {problem.name.split("/")[0] for problem in PROBLEMS}
    assert kinds >= {"linear", "tanh", "scalar", "stiff", "tree", "image", "nan"}


def test_answers_are_fixed_points() -> None:
    """The answers themselves are right: a wrong table would make wrong solvers pass."""
    for problem in PROBLEMS:
        if problem.known:
            z, operands = problem.solution, (*problem.operands, *problem.weights)
            residual = relative_residual(problem.f, z, *operands)
            answered = flat(z).isfinite().all(1)
            assert answered.sum() >= 2, problem.name
            assert (residual[answered] <= 1e-12).all(), problem.name
