"""Maps without a fixed point, each with every solver: none may be called solved.

    python tests/oracle/unsolvable.py --maps 1000 --seed 0

A sample may be CONVERGED only if the criterion really holds, by what f was given and returned.
Where the residual is bounded from below it never can, unless the start is already within tolerance
or the bound is small beside f at the start. Of the maps whose residual goes to zero far out
(`VANISHING`) it may. Prints the recipe of every map that is called solved, with the solvers that
say so, and exits with 1 if the criterion does not hold, or if anything else that a solution says is
false.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

import equilibria as eq
from solves import Tally, deferred, parser, random_solver, solve, solver_names
from witness import History, Report, Witness, check

VANISHING = ("softplus", "hypotenuse")
REACH = {torch.float32: 100, torch.float64: 300}  # of the powers of two that maps are scaled by


@dataclass
class Numbers:
    """What a map is made of: a drift c (n,), matrices (n, n), and a small number."""

    drift: Tensor
    singular: Tensor
    outside: Tensor
    turn: Tensor
    w: Tensor
    small: float

    @classmethod
    def draw(cls, rng: np.random.Generator, n: int, dtype: torch.dtype) -> Numbers:
        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape)

        # I - A has rank n - 1, and `outside` leaves its range: the residual is at least 1 there.
        left, right = (np.linalg.qr(normal(n, n))[0] for _ in range(2))
        stretch = rng.uniform(0.1, 3.0, n)
        stretch[0] = 0.0
        singular = np.eye(n) - left @ np.diag(stretch) @ right
        turn = np.eye(n)  # about the origin, but for the last entry, which drifts
        turn[: n - 1, : n - 1] = np.linalg.qr(normal(n - 1, n - 1))[0] if n > 1 else 1
        parts = normal(n), singular.T, left[:, 0], turn, normal(n, n) / np.sqrt(n)
        tensors = [torch.as_tensor(part).to(dtype) for part in parts]
        return cls(*tensors, small=float(rng.uniform(0, 0.5)))


def singular_affine(z: Tensor, a: Numbers) -> Tensor:
    return z @ a.singular + a.outside + 0.3 * (a.drift - a.drift @ a.outside * a.outside)


def turn_and_drift(z: Tensor, a: Numbers) -> Tensor:
    last = torch.arange(z.shape[1]) == z.shape[1] - 1
    return z @ a.turn + last * (1 + a.small)


def swirl(z: Tensor, a: Numbers) -> Tensor:
    """An expanding turn of all entries but the last, which drifts."""
    last = torch.arange(z.shape[1]) == z.shape[1] - 1
    return torch.where(last, z + 1 + a.small * torch.sin(z @ a.w), (1 + a.small) * z @ a.turn)


MAPS: dict[str, Callable[[Tensor, Numbers], Tensor]] = {
    "z + 1": lambda z, a: z + 1,
    "z + c": lambda z, a: z + a.drift,
    "drift that varies": lambda z, a: z + 1 + a.small * torch.sin(z),
    "drift through a layer": lambda z, a: z + 1 + a.small * torch.tanh(z @ a.w),
    "singular affine": singular_affine,
    "turn and drift": turn_and_drift,
    "swirl": swirl,
    "exp": lambda z, a: torch.exp(z) + a.small,
    "exp of a layer": lambda z, a: z + torch.exp(-a.small * torch.tanh(z @ a.w)),
    "square": lambda z, a: z * z + 1 + a.small,
    "quadratic drift": lambda z, a: z + 1 + a.small * z * z,
    "absolute value": lambda z, a: z.abs() + 1 + a.small,
    "softplus": lambda z, a: z + softplus(z),
    "hypotenuse": lambda z, a: torch.sqrt(1 + z * z),
}


@dataclass
class Draw:
    """A map and how it is solved, but for the solver."""

    kind: str
    f: Callable[..., Tensor]
    z0: Tensor
    unit: float
    limits: dict[str, Any]
    options: dict[str, Any]
    deferred: bool
    rng: np.random.Generator

    def __str__(self) -> str:
        rows, n = self.z0.shape
        more = ["deferred"] * self.deferred + list(self.options)
        return f"{self.kind} x {self.unit:g}, {rows} x {n} {self.z0.dtype} {', '.join(more)}"


def draw(number: int, seed: int) -> Draw:
    """The map of a number; it does not depend on how many are drawn."""
    rng = np.random.default_rng([seed, number])
    dtype = [torch.float32, torch.float64][rng.integers(2)]
    kind = list(MAPS)[number % len(MAPS)]
    reach = REACH[dtype]
    unit = 1.0 if rng.random() < 0.5 else 2.0 ** int(rng.integers(-reach, reach + 1))
    rows, n = int(rng.integers(1, 5)), int(rng.integers(1, 9))
    numbers, g = Numbers.draw(rng, n, dtype), MAPS[kind]
    z0 = torch.zeros(rows, n, dtype=dtype)
    if rng.random() < 0.6:  # of the size of the drift: from far out, it is within the tolerance
        z0 = unit * torch.as_tensor(rng.standard_normal((rows, n))).to(dtype)
    limits = {
        "rtol": 10 ** rng.uniform(-6.5 if dtype == torch.float32 else -13, -1.5),
        "patience": None if rng.random() < 0.3 else int(rng.integers(5, 30)),
        "max_evals": int(rng.integers(20, 120)),
    }
    how = rng.random()
    options = {"drop_finished": True} if how < 0.3 else {"coupled": True} if how < 0.4 else {}
    return Draw(
        kind=kind,
        f=lambda z, row: unit * g(z / unit, numbers),
        z0=z0,
        unit=unit,
        limits=limits,
        options=options,
        deferred=bool(rng.random() < 0.3),
        rng=rng,
    )


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--maps", type=int, default=1000)
    arguments.add_argument("--only", type=int, metavar="NUMBER", help="a single one of the maps")
    given = arguments.parse_args()
    tally = Tally("solves of maps without a fixed point", every=700)
    found: Counter[str] = Counter()
    for number in range(given.maps) if given.only is None else [given.only]:
        one = draw(number, given.seed)
        rows = torch.arange(len(one.z0))
        sample = 0 * rows if "coupled" in one.options else rows
        far = "vanishing" if one.kind in VANISHING else "bounded"
        recipe, solved = f"--only {number} --seed {given.seed}: {one}", []
        for name in solver_names():
            solver = random_solver(one.rng, name, **one.limits)
            witness, status = Witness(one.f), []
            with warnings.catch_warnings(action="ignore"):
                try:
                    with deferred(one.deferred), torch.no_grad():
                        sol = solve(witness, one.z0, rows, solver=solver, **one.options)
                    seen = History.of(witness, sample)
                    report = check(sol, seen, solver, one.z0.dtype, one.deferred)
                    status = sol.status.tolist()
                except Exception as error:
                    report = Report([f"raised: {type(error).__name__}: {str(error)[:200]}"])
            if eq.Status.CONVERGED in status:
                solved.append(repr(solver) if far == "bounded" else name)
                false = any(line.startswith("CONVERGED") for line in report.false)
                which = "false" if false else "by the criterion"
                found[f"CONVERGED, {which}, {far} residual"] += status.count(eq.Status.CONVERGED)
            tally.add(f"{recipe} {solver}", report, status)
        if solved:
            print(f"CONVERGED, {far} residual: {recipe}: {', '.join(solved)}", flush=True)
    for kind, count in found.items():
        print(f"{count:7} x {kind}")
    return int(not tally.close())


if __name__ == "__main__":
    sys.exit(main())
