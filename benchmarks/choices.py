"""What the default solver chooses, beside the best solver by hindsight.

    python benchmarks/choices.py [steps]

Prints, for eight cells as large as networks have, at random weights and after `steps` (200) steps
of training, evaluations of the default and of the best of Picard, Anderson and Broyden, and
products of the default adjoint and of the best of GMRES, Anderson, Broyden and Neumann, at three
tolerances. Ratios are above 1 where the default is better.
"""

import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import equilibria as eq
from papers.bench import choices
from papers.bench.cells import Case, State, large
from papers.bench.choices import MOST

TOLERANCES = (1e-2, 1e-3, 1e-4)
FORWARD = (eq.Picard(), eq.Anderson(), eq.Broyden())
BACKWARD = (eq.GMRES(), eq.Anderson(), eq.Broyden(), eq.Neumann())


def leaves(state: State) -> list[Tensor]:
    """The tensors of a state."""
    return [state] if isinstance(state, Tensor) else list(state)


def train(case: Case, steps: int) -> None:
    """Regress the state on a pattern of the input."""
    cell: Any = case.cell
    optimizer = torch.optim.Adam(cell.parameters(), 1e-3)
    wanted = [torch.sin(3 * leaf) for leaf in leaves(solve(case, eq.Anderson(), gradient=False))]
    for _ in range(steps):
        found = leaves(solve(case, eq.Anderson(rtol=1e-3, max_evals=60), gradient=True))
        loss = sum((a - b).square().mean() for a, b in zip(found, wanted, strict=True))
        optimizer.zero_grad()
        Tensor.backward(torch.as_tensor(loss))
        optimizer.step()


def solve(case: Case, solver: eq.Solver, *, gradient: bool) -> State:
    """The equilibrium."""
    with torch.set_grad_enabled(gradient):
        return eq.fixed_point(case.cell, case.z0, case.x, solver=solver, coupled=case.coupled).value


def evaluations(case: Case, solver: Any, rtol: float) -> float:
    """Of a solve, the mean over samples; infinite where one has not converged."""
    return mean_evals(choices.solve(case, solver, rtol))


def mean_evals(sol: Any) -> float:
    """Mean evaluations; infinite where a sample has not converged."""
    solved = bool((sol.status == eq.Status.CONVERGED).all())
    return float(sol.stats.evals.double().mean()) if solved else math.inf


def products(case: Case, linear: Any, rtol: float) -> float:
    """The same of a backward solve, at an accurate equilibrium."""
    adjoint = eq.Implicit(linear=replace(linear, rtol=rtol, max_evals=MOST))
    accurate = eq.Anderson(rtol=1e-5, max_evals=1000, history=20)
    sol = eq.fixed_point(
        case.cell, case.z0, case.x, solver=accurate, adjoint=adjoint, coupled=case.coupled
    )
    torch.manual_seed(3)
    values = leaves(sol.value)
    torch.autograd.backward(values, [torch.randn_like(leaf) for leaf in values])
    return mean_evals(sol.adjoint)


def compare_evaluations(steps: int) -> None:
    """Print the tables of evaluations and products."""
    for trained in (False, True):
        ratios: dict[str, list[float]] = {"forward": [], "adjoint": []}
        print(f"{'after training' if trained else 'random weights'}: the default, and the best")
        for name, case in large().items():
            if trained:
                train(case, steps)
            for rtol in TOLERANCES:
                line = f"{name:12} {rtol:g}"
                for what, count, default, others in (
                    ("forward", evaluations, eq.Auto(), FORWARD),
                    ("adjoint", products, eq.Fallback(), BACKWARD),
                ):
                    ours = count(case, default, rtol)
                    best = min(count(case, each, rtol) for each in others)
                    line += f"  {what} {ours:6.1f} {best:6.1f}"
                    if best < math.inf:
                        ratios[what].append(best / ours)
                print(line, flush=True)
        for what, found in ratios.items():
            print(f"{what}: {summary(found)} of {len(found)}")


def summary(ratios: Sequence[float]) -> str:
    """Geometric mean and worst; a ratio of 0 is a solve that failed."""
    solved = [each for each in ratios if each]
    mean = math.exp(sum(map(math.log, solved)) / len(solved))
    failed = f", {len(ratios) - len(solved)} failed" if len(solved) < len(ratios) else ""
    return f"geometric mean {mean:.3f}, worst {min(solved):.3f}{failed}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    compare_evaluations(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
