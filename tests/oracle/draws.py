"""Seeded solves of many kinds, and what a version of the library makes of each.

    python tests/oracle/draws.py RECORD.npz --count 2000 --seed 0

runs against the `equilibria` that Python finds first (PYTHONPATH), old or new: `NAMES` lists what
has been renamed. A draw crosses a problem, a solver, an adjoint and a mode; its record holds
statuses, counts, residuals, values and gradients, or the type of the error.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import equilibria as eq

# What has been renamed: the name in the draws, and what else it was or will be called.
NAMES = {
    "DirectSolve": ("DirectSolve", "Dense"),
    "Fallback": ("Fallback", "Relay"),
    "AlternatingAnderson": ("AlternatingAnderson", "Anderson"),
}
KEYWORDS = {
    "Fallback": {"then": ("then", "last")},
    "fixed_point": {"drop_finished": ("drop_finished", "per_sample")},
}

MODES = ("float64", "float32", "autocast", "vmap", "coupled", "per_row", "second")


def make(name: str, **options: Any) -> Any:
    """An object of the library by its name in the draws, with the keywords this version has."""
    kind = next(getattr(eq, each) for each in NAMES.get(name, (name,)) if hasattr(eq, each))
    if name == "AlternatingAnderson" and kind is eq.Anderson:
        options = {"period": 3, **options}
    known = kind.__dataclass_fields__
    for key, names in KEYWORDS.get(name, {}).items():
        if key in options:
            options[next(each for each in names if each in known)] = options.pop(key)
    return kind(**options)


# --- problems -------------------------------------------------------------------------------------


@dataclass
class Problem:
    """z = f(z, x, a): a state like `z0`, an operand x (batch, n), a shared matrix a (n, n)."""

    name: str
    f: Callable[..., Any]
    x: Tensor
    a: Tensor
    tree: bool = False

    def start(self, x: Tensor) -> Any:
        return {"one": torch.zeros_like(x), "two": torch.zeros_like(x)} if self.tree else x * 0


def matrix(generator: torch.Generator, n: int, kind: str, rate: float) -> Tensor:
    """A matrix (n, n) of spectral norm `rate`: of the kind named."""
    a = torch.randn(n, n, generator=generator, dtype=torch.float64)
    if kind == "symmetric":
        a = a + a.T
    elif kind == "rotation":
        a = torch.linalg.qr(a)[0]
    elif kind == "nilpotent":
        a = torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
    elif kind == "identity":
        a = torch.eye(n, dtype=torch.float64)
    return a * (rate / torch.linalg.matrix_norm(a, 2))


def affine(z: Tensor, x: Tensor, a: Tensor) -> Tensor:
    return z @ a + x


def squash(z: Tensor, x: Tensor, a: Tensor) -> Tensor:
    return torch.tanh(z @ a + x)


def rectify(z: Tensor, x: Tensor, a: Tensor) -> Tensor:
    return torch.relu(z @ a + x) + 0.1 * x


def elementwise(z: Tensor, x: Tensor, a: Tensor) -> Tensor:
    return torch.diagonal(a) * torch.cos(z) + x


def pair(z: dict[str, Tensor], x: Tensor, a: Tensor) -> dict[str, Tensor]:
    one, two = z["one"], z["two"]
    return {"one": torch.tanh(two @ a) + x, "two": 0.5 * torch.sin(one) + 0.3 * two}


def mix_rows(z: Tensor, x: Tensor, a: Tensor) -> Tensor:
    """Rows exchange with their mean: a map of the whole batch."""
    return torch.tanh((0.5 * z + 0.5 * z.mean(0, keepdim=True)) @ a + x)


def with_nan(z: Tensor, x: Tensor, a: Tensor) -> Tensor:
    """NaN for the samples whose operand begins with a positive number."""
    return torch.where(x[..., :1] > 0, torch.nan, squash(z, x, a))


PROBLEMS: dict[str, tuple[Callable[..., Any], str, tuple[float, ...]]] = {
    "affine": (affine, "any", (0.3, 0.7, 0.95)),
    "symmetric": (affine, "symmetric", (0.5, 0.9)),
    "rotation": (affine, "rotation", (0.5, 0.9)),
    "nilpotent": (affine, "nilpotent", (1.0,)),
    "tanh": (squash, "any", (0.4, 0.9, 1.4)),
    "relu": (rectify, "any", (0.4, 0.8)),
    "elementwise": (elementwise, "any", (0.3, 0.9)),
    "pair": (pair, "any", (0.4, 0.9)),
    "expanding": (affine, "rotation", (1.5,)),
    "drift": (affine, "identity", (1.0,)),
    "nan": (with_nan, "any", (0.5,)),
}


# --- draws ----------------------------------------------------------------------------------------

SOLVERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Picard", {}),
    ("Picard", {"damping": 0.7}),
    ("Anderson", {}),
    ("Anderson", {"history": 3, "damping": 0.8}),
    ("AlternatingAnderson", {}),
    ("Broyden", {}),
    ("Broyden", {"memory": 4}),
    ("NewtonKrylov", {}),
    ("Auto", {}),
)
ADJOINTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Implicit", {}),
    ("Implicit", {"linear": ("GMRES", {})}),
    ("Implicit", {"linear": ("BiCGSTAB", {})}),
    ("Implicit", {"linear": ("DirectSolve", {})}),
    ("Implicit", {"linear": ("Neumann", {})}),
    ("Implicit", {"linear": ("Anderson", {})}),
    ("Implicit", {"linear": ("Broyden", {})}),
    ("Phantom", {"steps": 3}),
    ("NeumannPhantom", {"steps": 3}),
    ("JacobianFree", {}),
    ("Shine", {}),
    ("Unrolled", {}),
)
EXACT_TWICE = ("Implicit", "Unrolled")  # adjoints with second derivatives


@dataclass
class Draw:
    """One solve: all that decides it."""

    number: int
    problem: str
    rate: float
    batch: int
    n: int
    solver: tuple[str, dict[str, Any]]
    adjoint: tuple[str, dict[str, Any]]
    mode: str
    rtol: float
    seed: int

    def __str__(self) -> str:
        linear = self.adjoint[1].get("linear", ("",))[0]
        adjoint = f"{self.adjoint[0]}({linear})" if linear else self.adjoint[0]
        return f"{self.number} {self.problem} {self.rate} {self.solver[0]} {adjoint} {self.mode}"


def draw(number: int, seed: int) -> Draw:
    """The draw of a number; it does not depend on how many are drawn."""
    rng = np.random.default_rng([seed, number])
    mode = MODES[number % len(MODES)]
    problem = str(rng.choice(list(PROBLEMS)))
    solver = SOLVERS[rng.integers(len(SOLVERS))]
    adjoints = [each for each in ADJOINTS if mode != "second" or each[0] in EXACT_TWICE]
    adjoint = adjoints[rng.integers(len(adjoints))]
    if adjoint[0] == "Shine" and number % 10:  # with any other solver it is an error
        solver = ("Broyden", {})
    if mode in ("coupled", "per_row") and problem in ("pair", "nan"):
        problem = "tanh"
    if problem == "expanding" and mode in ("float32", "autocast"):
        problem = "symmetric"  # what rounding decides is no property of a version
    if problem == "drift":  # no fixed point: accelerated, rounding decides what is tried
        solver = SOLVERS[number % 2]
        adjoint = ("JacobianFree", {}) if mode != "second" else ("Unrolled", {})
    rtol = {"autocast": 1e-2, "float32": 1e-5}.get(mode, 1e-8)
    rate = float(rng.choice(PROBLEMS[problem][2]))
    batch, n = int(rng.integers(1, 6)), int(rng.integers(2, 13))
    return Draw(number, problem, rate, batch, n, solver, adjoint, mode, rtol, seed)


def build(given: Draw) -> Problem:
    f, kind, _ = PROBLEMS[given.problem]
    generator = torch.Generator().manual_seed(1000 * given.seed + given.number)
    a = matrix(generator, given.n, kind, given.rate)
    x = torch.randn(given.batch, given.n, generator=generator, dtype=torch.float64)
    # Samples of different size and difficulty: a sample mixed up with another shows.
    x = x * torch.logspace(0, 1, given.batch, dtype=torch.float64)[:, None]
    if given.mode in ("coupled", "per_row"):
        f = mix_rows
    return Problem(given.problem, f, x, a, tree=given.problem == "pair")


def leaves(tree: Any) -> Tensor:
    """All entries of a state, sample by sample: (batch, entries)."""
    parts = [tree[key] for key in sorted(tree)] if isinstance(tree, dict) else [tree]
    return torch.cat([part.flatten(1) for part in parts], 1)


def solve(given: Draw) -> dict[str, np.ndarray]:
    """Run a draw and return its record."""
    problem = build(given)
    dtype = torch.float32 if given.mode in ("float32", "autocast") else torch.float64
    x = problem.x.to(dtype).requires_grad_()
    a = problem.a.to(dtype).requires_grad_()
    options = {"rtol": given.rtol, "max_evals": 150, **given.solver[1]}
    name, settings = given.adjoint
    if "linear" in settings:
        kind, more = settings["linear"]
        settings = {"linear": make(kind, rtol=given.rtol, max_evals=200, **more)}
    arguments: dict[str, Any] = {"adjoint": make(name, **settings)}
    if given.mode == "per_row":
        options["per_row"] = True
    if given.mode in ("coupled", "per_row"):
        half = torch.arange(given.batch) // 2
        arguments["coupled"] = True if given.number % 2 else half
        if given.number % 2 == 0:  # rows of a group exchange with their own mean
            problem.f = group_rows(half)
    arguments["solver"] = make(given.solver[0], **options)
    if given.mode == "vmap":
        return mapped(problem, x, a, arguments)
    with torch.autocast("cpu", torch.bfloat16, enabled=given.mode == "autocast"):
        sol = eq.fixed_point(problem.f, problem.start(x), x, eq.shared(a), **arguments)
        value = leaves(sol.value)
        loss = (value.square() + value).sum(1)
    record = {
        "status": sol.status,
        "evals": sol.stats.evals,
        "residual": sol.stats.residual,
        "value": value,
        "bytes": torch.tensor(value.dtype.itemsize),
    }
    healthy = value.isfinite().all(1)
    total = loss[healthy].sum() if healthy.any() else loss.sum()
    second = given.mode == "second"
    grads = torch.autograd.grad(total, (x, a), create_graph=second)
    record |= {"grad_x": grads[0], "grad_a": grads[1]}
    if sol.adjoint is not None:
        record |= {"adjoint_status": sol.adjoint.status, "adjoint_evals": sol.adjoint.stats.evals}
    if second:
        curved = sum(grad.square().sum() for grad in grads)
        twice = torch.autograd.grad(curved, (x, a))
        record |= {"second_x": twice[0], "second_a": twice[1]}
    return {key: each.detach().double().numpy() for key, each in record.items()}


def group_rows(index: Tensor) -> Callable[..., Tensor]:
    """`mix_rows` within the rows that have one index."""
    same = (index[:, None] == index).double()
    same = same / same.sum(1, keepdim=True)

    def f(z: Tensor, x: Tensor, a: Tensor) -> Tensor:
        return torch.tanh((0.5 * z + 0.5 * same.to(z) @ z) @ a + x)

    return f


def mapped(problem: Problem, x: Tensor, a: Tensor, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same solve under vmap over two matrices, with its gradients by torch.func."""
    both = torch.stack([a, 0.8 * a]).detach()

    def value(x: Tensor, a: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        sol = eq.fixed_point(problem.f, problem.start(x), x, eq.shared(a), **arguments)
        z = leaves(sol.value)
        some = (sol.status, sol.stats.evals, sol.stats.residual, z)
        return (z.square() + z).sum(), some

    gradient = torch.func.grad(value, argnums=(0, 1), has_aux=True)
    (grad_x, grad_a), some = torch.vmap(gradient, in_dims=(None, 0))(x.detach(), both)
    names = ("status", "evals", "residual", "value")
    record = dict(zip(names, some, strict=True)) | {"grad_x": grad_x, "grad_a": grad_a}
    return {key: each.detach().double().numpy() for key, each in record.items()}


def run(count: int, seed: int) -> dict[str, np.ndarray]:
    """Run the draws; return their records side by side, with the number of the draw in the key."""
    records: dict[str, np.ndarray] = {}
    began = time.monotonic()
    for number in range(count):
        given = draw(number, seed)
        with warnings.catch_warnings(action="ignore"):
            try:
                record = solve(given)
            except Exception as error:  # its type is the outcome: both versions must raise it
                record = {"error": np.array(type(error).__name__)}
        records |= {f"{number}/{key}": each for key, each in record.items()}
        if number % 100 == 99:
            print(f"{number + 1} of {count} draws, {time.monotonic() - began:.0f} s", flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path, help="where to write, an .npz file")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    records = run(given.count, given.seed)
    about = {"package": str(Path(eq.__file__).parent), "count": given.count, "seed": given.seed}
    np.savez_compressed(given.record, about=np.array(json.dumps(about)), **records)
    print(f"{given.record}: {given.count} draws by {about['package']}")


if __name__ == "__main__":
    main()
