"""Every problem with every solver in both dtypes, and the table of what is known to fail."""

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
    "Anderson": eq.Anderson,
    "Broyden": eq.Broyden,
    "Broyden(10)": lambda **options: eq.Broyden(memory=10, **options),
}

# What does not converge, and how it ends: one status, or one a sample. A solve that fails and does
# not stand here breaks a test, and so does one that stands here and converges.
KNOWN_FAILURES: dict[tuple[str, str] | tuple[str, str, torch.dtype], object] = {}


def expected(problem: Problem, solver: str, dtype: torch.dtype) -> list[eq.Status]:
    """The table's status of every sample; CONVERGED where it says nothing."""
    entry = KNOWN_FAILURES.get((problem.name, solver, dtype))
    if entry is None:
        entry = KNOWN_FAILURES.get((problem.name, solver), CONVERGED)
    statuses = entry if isinstance(entry, tuple) else (entry,) * problem.batch
    return [eq.Status(status) for status in statuses]


@pytest.mark.parametrize("dtype", RTOL, ids=str)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_problem(problem: Problem, solver: str, dtype: torch.dtype) -> None:
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

    # The counts are calls of f, and the value is what the start was.
    assert sol.stats.evals.max() == f.calls <= MAX
    value = flat(sol.value)
    assert value.dtype == dtype and value.shape == flat(z0).shape
    assert value.isfinite().all()

    # CONVERGED means what it says: the residual measured anew, and the distance to the answer.
    # Measuring it anew rounds anew, hence the epsilons.
    done = sol.status == CONVERGED
    eps = torch.finfo(dtype).eps
    residual = relative_residual(problem.f, sol.value, *operands, *weights)
    assert (residual[done] <= RTOL[dtype] * 1.001 + 8 * eps).all()
    torch.testing.assert_close(
        sol.stats.residual[done], residual[done], rtol=1e-3, atol=8 * eps, check_dtype=False
    )
    if problem.known:
        solution = flat(problem.solution)
        error = (value.double() - solution).norm(dim=1)
        bound = problem.condition * RTOL[dtype] * (solution.norm(dim=1) + error)
        assert (error[done] <= 1.5 * bound[done]).all()

    statuses = [eq.Status(status) for status in sol.status.tolist()]
    assert statuses == expected(problem, solver, dtype)


def test_table_names_problems_and_solvers() -> None:
    """No entry of the table is out of date: each names a problem, a solver and real failures."""
    for key, entry in KNOWN_FAILURES.items():
        assert key[0] in BY_NAME and key[1] in SOLVERS and len(key) in (2, 3)
        statuses = entry if isinstance(entry, tuple) else (entry,)
        assert any(status != CONVERGED for status in statuses) or len(key) == 3


def test_list_covers_the_kinds() -> None:
    """Twenty problems and more with a known answer, of every kind."""
    assert sum(problem.known for problem in PROBLEMS) >= 20
    kinds = {problem.name.split("/")[0] for problem in PROBLEMS}
    assert kinds >= {"linear", "tanh", "scalar", "stiff", "tree", "image", "nan"}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_answer_is_a_fixed_point(problem: Problem) -> None:
    """The answers themselves are right: a wrong table would make wrong solvers pass."""
    if not problem.known:
        pytest.skip("no answer, or more than one")
    residual = relative_residual(problem.f, problem.solution, *problem.operands, *problem.weights)
    answered = flat(problem.solution).isfinite().all(1)
    assert answered.sum() >= 2
    assert (residual[answered] <= 1e-12).all()
