"""How the scripts that check solutions draw a solver, run it, and count what they find.

Used by `inject.py`, `unsolvable.py`, `fuzz.py` and `threads.py`.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import equilibria as eq
from witness import Report


def solver_names() -> list[str]:
    """The public solvers of this version of the library."""
    found = [name for name in dir(eq) if isinstance(getattr(eq, name), type)]
    return [name for name in found if issubclass(getattr(eq, name), eq.Solver) and name != "Solver"]


def random_solver(rng: np.random.Generator, name: str, **limits: Any) -> Any:
    """A public solver with options drawn at random; `limits` are those that all have."""
    damping = float(rng.choice([1.0, 1.0, 0.7, 1.2]))
    history = int(rng.integers(1, 8))
    memory = None if rng.random() < 0.5 else int(rng.integers(2, 8))
    options = {
        "Picard": {"damping": damping},
        "Anderson": {"history": history, "damping": damping},
        "AlternatingAnderson": {"history": history, "damping": damping},
        "Broyden": {"memory": memory},
        "NeuralSolver": {"history": history, "fallback": int(rng.integers(1, 4))},
    }
    return getattr(eq, name)(**options.get(name, {}), **limits)


def random_limits(rng: np.random.Generator, dtype: torch.dtype, unit: float) -> dict[str, Any]:
    """Tolerances and patience: relative, absolute in units of the state, or both."""
    finest = -6.5 if dtype == torch.float32 else -13.0
    rtol = 10 ** rng.uniform(finest, -1.0)
    atol = 0.0 if rng.random() < 0.7 else unit * 10 ** rng.uniform(finest, -1.0)
    if atol and rng.random() < 0.3:
        rtol = 0.0
    patience = [None, 1, 5, 10, 20][rng.integers(5)]
    return {"rtol": rtol, "atol": atol, "patience": patience}


def random_unit(rng: np.random.Generator, dtype: torch.dtype) -> float:
    """A power of two that a problem is scaled by, most often 1."""
    reach = 60 if dtype == torch.float32 else 300
    return 2.0 ** int(rng.integers(-reach, reach + 1)) if rng.random() < 0.3 else 1.0


def solve(f: Any, z0: Any, *operands: Any, solver: Any, **options: Any) -> Any:
    """`eq.fixed_point`; a learned solver gets random weights, which a layer has to hold."""
    if not isinstance(solver, eq.NeuralSolver):
        return eq.fixed_point(f, z0, *operands, solver=solver, **options)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mixer = eq.learned.GramMixer(solver.history)
        nn.init.normal_(mixer.out.weight)
    of_layer = {name: options.pop(name) for name in ("adjoint", "drop_finished") if name in options}
    layer = eq.DEQ(f, solver=solver, **of_layer)
    layer.neural = eq.learned.Learned(None, mixer)
    return layer(*operands, z0=z0, **options)


@contextmanager
def deferred(on: bool = True) -> Generator[list[None]]:
    """Judge several evaluations at once, as on a device, whose numbers have to be waited for.

    There is no public way to choose it: as `tests/solve/test_deferred.py` does, the library is told
    that no tensor can be read without waiting. Yields a list that grows each time it asks.
    """
    asked: list[None] = []
    if not on:
        yield asked
        return
    try:
        private = importlib.import_module("equilibria.solve.private")
        plain = private.free_to_read
    except (ImportError, AttributeError) as error:
        raise SystemExit("deferred judging is chosen elsewhere now: see test_deferred") from error

    def free_to_read(tensor: Tensor) -> bool:
        asked.append(None)
        return False

    setattr(private, "free_to_read", free_to_read)  # noqa: B010
    try:
        yield asked
    finally:
        setattr(private, "free_to_read", plain)  # noqa: B010


class Tally:
    """Counts what was checked and what was found, and says so on the way."""

    def __init__(self, what: str, every: int = 500) -> None:
        self.what = what
        self.every = every
        self.began = time.monotonic()
        self.checked = self.false = self.samples = 0
        self.ends: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()

    def add(self, about: str, report: Report, status: Iterable[int] = ()) -> None:
        """Take note of one solve: prints it if something it says is false."""
        codes = [eq.Status(code).name for code in status]
        self.checked += 1
        self.samples += len(codes)
        self.ends.update(codes)
        self.kinds.update(line.partition(":")[0] for line in (*report.false, *report.remarks))
        if report.false:
            self.false += 1
            print(about, *report.false, sep="\n    ", flush=True)
        if self.checked % self.every == 0:
            taken = time.monotonic() - self.began
            print(f"{self.checked} {self.what}, {self.false} false, {taken:.0f} s", flush=True)

    def close(self) -> bool:
        """Print the counts; was nothing false?"""
        for kind, count in self.kinds.most_common():
            print(f"{count:7} x {kind}")
        each = ", ".join(f"{self.ends[status.name]} {status.name}" for status in eq.Status)
        ends = f", {self.samples} samples ({each})" if self.samples else ""
        print(f"{self.checked} {self.what}{ends}: {self.false} false", flush=True)
        return not self.false


def parser(text: str | None) -> argparse.ArgumentParser:
    """A parser with what all of these scripts take; sets torch to one thread."""
    torch.set_num_threads(1)
    found = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--seed", type=int, default=0)
    return found
