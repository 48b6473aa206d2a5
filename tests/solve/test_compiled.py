"""f and the solvers' steps compile without a graph break."""

import pytest
import torch
from problems import normal

import equilibria as eq
from equilibria.solve.rows import length
from equilibria.solve.solvers.base import Point

WEIGHT = 0.1 * normal(16, 16, seed=5).float()
X = normal(4, 16, seed=6).float()


def f(z, x):
    return torch.tanh(z @ WEIGHT + x)


@pytest.mark.parametrize(
    "solver",
    [eq.Picard(), eq.Picard(damping=0.5), eq.Anderson(), eq.AlternatingAnderson(), eq.Broyden()],
    ids=repr,
)
@torch.no_grad()
def test_evaluation_and_step_are_one_graph(solver) -> None:
    """Tracing alone is tested: the backend runs the graph as it is."""
    stepper = solver.start(False, None)

    def step(z):
        image = [f(z[0], X)]
        residual = stepper.residual(image, z)
        return stepper.step(Point(z, image, residual, length(residual)))

    torch.compiler.reset()
    z = [torch.zeros_like(X)]
    for _ in range(24):
        z = step(z)
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    for _ in range(4):
        z = compiled(z)
    torch.compiler.reset()
    wanted = eq.fixed_point(f, torch.zeros_like(X), X, solver=eq.Picard(rtol=1e-6)).value
    torch.testing.assert_close(z[0], wanted, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_a_compiled_cell_is_solved() -> None:
    compiled = torch.compile(f, backend="eager", fullgraph=True)
    sol = eq.fixed_point(compiled, torch.zeros_like(X), X)
    assert (sol.status == eq.Status.CONVERGED).all()
    assert torch.equal(sol.value, eq.fixed_point(f, torch.zeros_like(X), X).value)
    torch.compiler.reset()
