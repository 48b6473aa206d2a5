"""What the default solver chooses, beside the best solver by hindsight.

    python benchmarks/choices.py evaluations [steps]
    python benchmarks/choices.py times [rounds]

The first prints, for eight cells as large as networks have, at random weights and after `steps`
(200) steps of training, evaluations of the default and of the best of Picard, Anderson and Broyden,
and products of the default adjoint and of the best of GMRES, Anderson, Broyden and Neumann, at
three tolerances. The second prints, for eighteen small tanh layers, times of the default, and how
many times as fast it is as the fastest of torchdeq's three solvers by hindsight, in a solve and in
a training step: interleaved medians of processor time, one thread. Ratios are above 1 where the
default is better.
"""

import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import equilibria as eq
from papers.bench import choices
from papers.bench.cells import Case, State, large, small
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


# --- small layers ---------------------------------------------------------------------------------


def compare_times(rounds: int) -> None:
    """Print times beside torchdeq's."""
    from torchdeq import get_deq  # pyright: ignore[reportMissingTypeStubs, reportMissingImports]

    torch.set_num_threads(1)
    rtol, names = 1e-4, ("fixed_point_iter", "anderson", "broyden")
    limits: dict[str, Any] = {"f_max_iter": MOST, "b_max_iter": MOST, "f_tol": rtol, "b_tol": rtol}
    modes: dict[str, Any] = {"f_stop_mode": "rel", "b_stop_mode": "rel", "ift": True}
    theirs: Any = {name: get_deq(f_solver=name, b_solver=name, **limits, **modes) for name in names}
    ratios: dict[str, list[float]] = {"solve": [], "step": []}
    for layer_name, case in small().items():
        cell: Any = case.cell
        x = case.x
        solver, linear = eq.Auto(rtol=rtol, max_evals=MOST), eq.Fallback(rtol=rtol)
        layer = eq.DEQ(cell, solver=solver, adjoint=eq.Implicit(linear=linear))
        calls: dict[str, Callable[[], Tensor]] = {"ours": lambda x=x, f=layer: f(x).value}
        for name in names:
            calls[name] = lambda d=theirs[name], f=cell, x=x: d(
                lambda z: f(z, x), torch.zeros_like(x)
            )[0][-1]
        line = f"{layer_name}:"
        for what in ratios:
            took = measure(calls, cell, theirs, rounds, step=what == "step")
            best = min(took[name] for name in names)
            ratios[what].append(best / took["ours"])
            line += f"  {what} {1e3 * took['ours']:.2f} ms, x {best / took['ours']:.2f}"
        print(line, flush=True)
    for what, found in ratios.items():
        print(f"{what}: {summary(found)}")


def measure(
    calls: dict[str, Callable[[], Tensor]], cell: nn.Module, theirs: Any, rounds: int, *, step: bool
) -> dict[str, float]:
    """Median seconds of processor time of a solve, or of one with its backward."""
    for each in theirs.values():
        each.train(step)
    took: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 2):
        for name, call in calls.items():
            cell.zero_grad()
            begin = time.thread_time()
            with torch.set_grad_enabled(step):
                value = call()
            if step:
                Tensor.backward(value.square().mean())
            if turn > 1:
                took[name].append(time.thread_time() - begin)
    return {name: statistics.median(each) for name, each in took.items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    what, *numbers = sys.argv[1:] or ["evaluations"]
    if what == "times":
        compare_times(int(numbers[0]) if numbers else 15)
    else:
        compare_evaluations(int(numbers[0]) if numbers else 200)
