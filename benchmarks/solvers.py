"""Time the forward solvers, next to torchdeq's where it is installed; write results/solvers.json.

Contestants take turns, and the fastest of many turns counts, so that a disturbance hits all of
them. Each must reach the same relative residual; what did not says so.
"""

import argparse
import os

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # idle threads must not hinder small operations

import functools
import importlib
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass

import record
import torch
from torch import Tensor

import equilibria as eq
from equilibria.solve import Solver

RTOL = 1e-4
MAX_EVALS = 100


@dataclass(frozen=True)
class Problem:
    """A fixed point z = f(z), solved from z0."""

    name: str
    f: Callable[[Tensor], Tensor]
    z0: Tensor


def problems(device: str) -> list[Problem]:
    """Tanh networks of three shapes."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    def dense(batch: int, width: int) -> Problem:
        weight = 0.9 * torch.linalg.qr(normal(width, width))[0].T.contiguous()
        bias = 0.3 * normal(batch, width)
        f = lambda z: torch.tanh(z @ weight + bias)  # noqa: E731
        return Problem(f"dense, {batch} x {width}", f, torch.zeros_like(bias))

    def conv(batch: int, channels: int, size: int) -> Problem:
        kernel = normal(channels, channels, 3, 3)
        kernel = kernel / kernel.flatten(1).norm(dim=1, keepdim=True)[..., None, None]
        bias = 0.3 * normal(batch, channels, size, size)
        f = lambda z: torch.tanh(torch.conv2d(z, kernel, padding=1) + bias)  # noqa: E731
        return Problem(f"conv, {batch} x {channels} x {size} x {size}", f, torch.zeros_like(bias))

    return [dense(64, 512), dense(256, 6), conv(32, 32, 14)]


Solve = Callable[[Problem], tuple[Tensor, Tensor]]  # the solution, and evaluations a sample


def ours(solver: Solver, problem: Problem) -> tuple[Tensor, Tensor]:
    """Solve with equilibria."""
    sol = eq.fixed_point(problem.f, problem.z0, solver=solver)
    return sol.value, sol.stats.evals


def theirs(name: str, problem: Problem) -> tuple[Tensor, Tensor]:
    """Solve with torchdeq, its own defaults but for tolerance and budget."""
    found, info = _torchdeq(name)(problem.f, problem.z0)
    return found[-1], info["nstep"]


@functools.cache
def _torchdeq(name: str) -> Callable[..., tuple[list[Tensor], dict[str, Tensor]]]:
    options = {"f_tol": RTOL, "f_stop_mode": "rel", "f_max_iter": MAX_EVALS}
    return importlib.import_module("torchdeq").get_deq(f_solver=name, **options).eval()


def contestants() -> dict[str, Solve]:
    """Every solver by name."""
    named: dict[str, Solve] = {
        f"equilibria {kind.__name__}": functools.partial(ours, kind(rtol=RTOL, max_evals=MAX_EVALS))
        for kind in (eq.Picard, eq.Anderson, eq.Broyden)
    }
    if importlib.util.find_spec("torchdeq"):
        for name in ("fixed_point_iter", "anderson", "broyden"):
            named[f"torchdeq {name}"] = functools.partial(theirs, name)
    return named


@torch.no_grad()
def measure(problem: Problem, solve: Solve) -> tuple[float, Tensor, Tensor]:
    """Milliseconds of one solve, evaluations, and the residual of each sample."""
    synchronise = torch.cuda.synchronize if problem.z0.is_cuda else lambda: None
    synchronise()
    start = time.perf_counter()
    value, evals = solve(problem)
    synchronise()
    milliseconds = 1e3 * (time.perf_counter() - start)
    image = problem.f(value)
    residual = (image - value).flatten(1).norm(dim=1) / image.flatten(1).norm(dim=1)
    return milliseconds, evals, residual


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--turns", type=int, default=15, help="solves by each contestant")
    args = parser.parse_args()
    named = contestants()
    rows: list[list[record.Cell]] = []
    for problem in problems(args.device):
        fastest = dict.fromkeys(named, float("inf"))
        told: dict[str, list[record.Cell]] = {}
        for turn in range(args.turns + 1):
            for name, solve in named.items():
                milliseconds, evals, residual = measure(problem, solve)
                if turn:  # the first is a warm-up
                    fastest[name] = min(fastest[name], milliseconds)
                reached = 100 * (residual <= RTOL * 1.01).float().mean().item()
                told[name] = [f"{evals.float().mean().item():.1f}", f"{reached:.0f}"]
        for name in named:
            rows.append([problem.name, name, f"{fastest[name]:.2f}", *told[name]])
            print(*rows[-1], sep=" | ")
    path = record.write(
        "solvers" if args.device == "cpu" else f"solvers-{args.device}",
        command="make bench"
        if args.device == "cpu"
        else "python benchmarks/solvers.py --device cuda",
        columns=["problem", "solver", "ms a solve", "evaluations, mean", "reached the residual, %"],
        rows=rows,
        note=f"One solve of the whole batch without gradients to a relative residual of {RTOL:g}, "
        f"at most {MAX_EVALS} evaluations; fastest of {args.turns}, contestants taking turns.",
    )
    print(f"\nwritten: {path}")


if __name__ == "__main__":
    main()
