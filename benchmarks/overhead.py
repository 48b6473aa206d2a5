"""Time what a solve does beyond f, in microseconds an evaluation.

    python benchmarks/overhead.py                  # the form that is installed
    python benchmarks/overhead.py --form torch     # torch's own operations

f is a tanh layer, on one thread. Two rows a size: `step` is an evaluation at which nothing happens,
from solves of two lengths; `solve` is a whole solve to the default tolerance, its beginning and end
included, over its evaluations. The time of f alone is measured in turns with the solve and is
subtracted. Processor time, the minimum and the median over the repetitions. `ratio` is the median
whole solve over its evaluations of f.
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
Call = Callable[[], object]


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

    def solve(**limits: object) -> Call:
        solver = method(**limits)  # pyright: ignore[reportArgumentType]
        return lambda: eq.fixed_point(f, z, x, solver=solver)

    short, long = 6, 11  # nothing happens between them: no look, no sample that arrives
    limits = {"rtol": 1e-6, "patience": None}
    calls = [solve(**limits, max_evals=short), solve(**limits, max_evals=long), solve()]
    evals = int(eq.fixed_point(f, z, x, solver=method()).stats.evals.max())
    alone, a, b, whole = clock([iterate_alone, *calls], repeats)
    rows = []
    for pick in (min, statistics.median):
        once = pick(alone) / 20
        rows.append((once, (pick(b) - pick(a)) / (long - short) - once, pick(whole) / evals - once))
    ratio = statistics.median(whole) / evals / (statistics.median(alone) / 20)
    cells = [f"{least:8.1f} {middle:8.1f}" for least, middle in zip(*rows, strict=True)]
    print(f"{samples:4}x{width:<4} {method.__name__:9} {evals:4} {' '.join(cells)} {ratio:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--form", choices=("fused", "torch"), default="fused")
    parser.add_argument("--repeats", type=int, default=40)
    given = parser.parse_args()
    if given.form == "torch":
        fused.operators = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    torch.set_num_threads(1)
    eq.show_config()
    print("size      solver    evals   f: min   median step: min median solve: min median    ratio")
    with torch.no_grad():
        for samples, width in SIZES:
            for method in (eq.Picard, eq.Auto, eq.Anderson):
                measure(samples, width, method, given.repeats)


if __name__ == "__main__":
    main()
