"""Time what a solve does beyond f, in microseconds an evaluation.

    python benchmarks/overhead.py                  # the form that is installed
    python benchmarks/overhead.py --form torch     # torch's own operations

f is a tanh layer, on one thread. `step`: what lies between one evaluation of f and the next, its
minimum over the repetitions for each evaluation; the median and the mean over the evaluations of a
solve, in most of which nothing happens. `solve`: a whole solve to the default tolerance over its
evaluations, less the time of f alone, which is measured in turns with it; the minimum and the
median over the repetitions. `ratio`: the median of whole solves over that of their evaluations of
f. All times are processor time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # before torch: see docs/measured.md

import torch

import equilibria as eq
from equilibria.solve import fused

SIZES = ((32, 16), (32, 256), (48, 640), (128, 128), (256, 256), (400, 400))
Call = Callable[..., object]


def clock(calls: list[Call], repeats: int) -> list[list[float]]:
    """Microseconds of processor time of each call, in turns."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, times in zip(calls, found, strict=True):
            start = time.thread_time()
            call()
            times.append(1e6 * (time.thread_time() - start))
    return found


def measure(samples: int, width: int, method: type[eq.Solver], repeats: int) -> None:
    torch.manual_seed(0)
    w = 0.9 * torch.linalg.qr(torch.randn(width, width))[0]
    z, x = torch.zeros(samples, width), torch.randn(samples, width)

    def f(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(z @ w + x)

    def iterate_alone() -> None:
        y = z
        for _ in range(20):
            y = f(y, x)

    marks: list[float] = []

    def marked(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        marks.append(time.thread_time())
        out = f(z, x)
        marks.append(time.thread_time())
        return out

    def solve(f: Call = f) -> eq.Solution:
        return eq.fixed_point(f, z, x, solver=method())

    gaps: list[list[float]] = []
    for _ in range(repeats):
        marks.clear()
        solve(marked)
        gaps.append([1e6 * (b - a) for a, b in zip(marks[1:-1:2], marks[2::2], strict=True)])
    steps = [min(each) for each in zip(*gaps, strict=True)]
    evals = int(solve().stats.evals.max())
    alone, whole = clock([iterate_alone, solve], repeats)
    beyond = [pick(whole) / evals - pick(alone) / 20 for pick in (min, statistics.median)]
    cells = [min(alone) / 20, statistics.median(steps), statistics.fmean(steps), *beyond]
    ratio = statistics.median(whole) / evals / (statistics.median(alone) / 20)
    numbers = "".join(f"{cell:9.1f}" for cell in cells)
    print(f"{samples:4}x{width:<4} {method.__name__:9}{evals:5}{numbers}{ratio:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--form", choices=("fused", "torch"), default="fused")
    parser.add_argument("--repeats", type=int, default=40)
    given = parser.parse_args()
    if given.form == "torch":
        fused.operators = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    torch.set_num_threads(1)
    eq.show_config()
    print(" size     solver   evals        f  step: median  mean  solve: min median  ratio")
    with torch.no_grad():
        for samples, width in SIZES:
            for method in (eq.Picard, eq.Auto, eq.Anderson):
                measure(samples, width, method, given.repeats)


if __name__ == "__main__":
    main()
