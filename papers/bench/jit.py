"""A solve by plain iteration and by the default, beside optimistix's fixed-point iteration under
`jax.jit`.

tanh layers, spectral radius 0.85, relative residual 1e-4 of each sample, float32, one thread each;
medians of interleaved rounds, compilation left out. optimistix solves the whole batch as one system
and is given, by hindsight, the absolute tolerance by which it stops at the evaluation at which the
last sample is within tolerance.
"""

import dataclasses
import importlib
import itertools
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

import equilibria as eq
from equilibria.run.bench.contestants import OURS, require_peers
from equilibria.run.bench.count import interleave
from equilibria.run.bench.solvers import relative_residual
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import Pivot, of, ratio
from papers.bench.cells import Dense
from papers.bench.choices import MOST, RTOL

SIZES = {"10 us": (32, 64), "100 us": (256, 96), "1 ms": (64, 800)}
"""About how long f takes on one thread, and its samples and width."""

RADIUS, ROUNDS = 0.85, 101
CPU = torch.device("cpu")


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch has one thread inside; and JAX, if it starts inside, for good."""
    threads, processors = torch.get_num_threads(), os.environ.get("NPROC")
    torch.set_num_threads(1)
    os.environ["NPROC"] = "1"  # as many threads as JAX has, whatever XLA_FLAGS say
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        del os.environ["NPROC"]
        if processors is not None:
            os.environ["NPROC"] = processors


def calibrate(cell: Dense, x: Tensor, rtol: float) -> tuple[float, int]:
    """Return a bound between the RMS residuals, of all entries, of the first iterate at which all
    samples are within tolerance and of the one before; and the evaluations until then."""
    z, before = torch.zeros_like(x), math.inf
    for evals in itertools.count(1):
        image = cell(z, x)
        now = float((image - z).square().mean().sqrt())
        if bool((relative_residual(image, z) <= rtol).all()):
            return math.sqrt(now * before), evals
        z, before = image, now
    raise AssertionError


def peer(cell: Dense, x: Tensor, atol: float) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a solve by optimistix, compiled: its value and the evaluations; and f alone."""
    jax, optimistix = importlib.import_module("jax"), importlib.import_module("optimistix")
    args = tuple(jax.numpy.asarray(each.detach().numpy()) for each in (cell.weight, x))
    start = jax.numpy.zeros_like(args[1])
    solver = optimistix.FixedPointIteration(rtol=0.0, atol=atol, norm=optimistix.rms_norm)

    def f(z: Any, args: Any) -> Any:
        weight, x = args
        return jax.numpy.tanh(z @ weight + x)

    def solve(z: Any, args: Any) -> Any:
        found = optimistix.fixed_point(f, solver, z, args, max_steps=MOST, throw=False)
        return found.value, found.stats["num_steps"]

    jitted = [jax.jit(each) for each in (solve, f)]
    first, second = (lambda g=g: jax.block_until_ready(g(start, args)) for g in jitted)
    return first, second


def race(context: Context, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """A row for each solver: evaluations, residual of what it returns, and milliseconds."""
    require_peers("jax", "optimistix")
    batch, width = SIZES[str(context.factors["f"])]
    torch.manual_seed(width)
    cell, x = Dense(width, RADIUS), 0.3 * torch.randn(batch, width)
    z0, calls = torch.zeros_like(x), dict[str, Callable[[], Any]]()
    rows: list[dict[str, Any]] = []

    def judge(solver: str, value: Tensor, evals: int) -> None:
        residual = float(relative_residual(cell(value, x), value).max())
        rows.append({"solver": solver, "evals": evals, "residual": residual})

    with one_thread(), torch.no_grad():
        for name in ("Picard", "default"):
            solver: Any = dataclasses.replace(OURS[name], rtol=RTOL, max_evals=MOST)
            calls[name] = lambda solver=solver: eq.fixed_point(cell, z0, x, solver=solver)
            sol = calls[name]()
            judge(name, sol.value, int(sol.stats.evals.max()))
        atol, needed = calibrate(cell, x, RTOL)
        calls["optimistix"], compiled = peer(cell, x, atol)
        value, evals = calls["optimistix"]()
        judge("optimistix", torch.from_numpy(np.array(value)), int(evals))
        z = z0 + 0.1
        calls |= {"torch": lambda: cell(z, x), "jax": compiled}
        for call in calls.values():
            call()
        took = {name: 1e3 * each for name, each in interleave(calls, CPU, rounds=rounds).items()}
    for row in rows:
        row["ms"] = took[row["solver"]]
        row["f_ms"] = took["jax" if row["solver"] == "optimistix" else "torch"]
    rows[0]["needed"] = needed
    return rows


def faster(name: str) -> Any:
    return ratio(of("ms", solver="optimistix"), of("ms", solver=name))


STUDY = Study(
    title="Beside a compiled solve",
    points=lambda scale: [
        Point({"f": f}, [race], settings={"rtol": RTOL, "rounds": ROUNDS, "sizes": list(SIZES[f])})
        for f in SIZES
    ],
    peers=("jax", "optimistix"),
    views=[
        Pivot(
            title="Times as fast as optimistix under jax.jit",
            index={"f": "f, about"},
            each="solver",
            values={"plain": faster("Picard"), "default": faster("default")},
        ),
        Pivot(
            title="Beside optimistix: all figures",
            index={"f": "f, about", "solver": "solver"},
            each="solver",
            values={
                "ms": "ms",
                "evaluations": "evals",
                "residual": of("residual", spec="{:.1e}"),
                "f alone, ms": "f_ms",
            },
            note="Residual: the largest of a sample, of what is returned, by the same f in torch. "
            "f alone: called from Python, compiled by JAX for optimistix.",
        ),
    ],
)
