"""Contractions in which f misbehaves for a while, or for good, and what solutions then claim.

    python tests/oracle/inject.py --faults 6000 --seed 0

A fault is NaN, noise, a jump, another map from some evaluation on, and so on, of all samples or of
one. Everything that a solution says is compared with what f was given and returned: see
`witness.check`. Where only one sample is affected, the others must end as they do without the
fault. Prints each solution that is false, and exits with 1 if there is one.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import equilibria as eq
from solves import (
    Tally,
    deferred,
    parser,
    random_limits,
    random_solver,
    random_unit,
    solve,
    solver_names,
)
from witness import History, Report, Witness, check

# --- faults ---------------------------------------------------------------------------------------


@dataclass
class Call:
    """One evaluation: what f was given and should return, and what a fault may need.

    Attributes:
        number: of the evaluation, from 0.
        size: how large the fault is, in units of `rms`, that of `out` (rows, 1).
        unit: the power of two that the problem is scaled by.
        normal: noise, and `kept`: what f returned before, both like `out`.
    """

    number: int
    z: Tensor
    out: Tensor
    size: float
    unit: float
    normal: Tensor
    kept: Tensor

    @property
    def rms(self) -> Tensor:
        return self.out.detach().square().mean(1, keepdim=True).sqrt() + 1e-30 * self.unit


def overflow(call: Call) -> Tensor:
    return call.out * (1 + (call.z / call.rms).abs()) ** 6


def floor(call: Call) -> Tensor:
    """No finer than a grid, so that the residual has a floor; the gradient is that of `out`."""
    step = call.size * call.rms
    return call.out + (torch.round(call.out / step) * step - call.out).detach()


def halve_precision(call: Call) -> Tensor:
    return call.out.bfloat16().to(call.out.dtype)


def add_noise(call: Call) -> Tensor:
    return call.out + call.size * call.rms * call.normal


def be_huge(call: Call) -> Tensor:
    """Finite, but its square is not."""
    return torch.full_like(call.out, 1e30 if call.out.dtype == torch.float32 else 1e250)


def one_entry(number: float) -> Callable[[Call], Tensor]:
    first = lambda call: torch.arange(call.out.shape[1]) == call.number % call.out.shape[1]  # noqa: E731
    return lambda call: torch.where(first(call), number, call.out)


def expand(call: Call) -> Tensor:
    return call.out - (1.5 + call.size) * call.z.roll(1, dims=1)


WHEN = {"once": lambda n, at: n == at, "from": lambda n, at: n >= at, "always": lambda n, at: True}
FAULTS: dict[str, tuple[str, Callable[[Call], Tensor]]] = {
    "none": ("once", lambda call: call.out),
    "NaN once": ("once", one_entry(math.nan)),
    "NaN from": ("from", lambda call: call.out * math.nan),
    "inf once": ("once", one_entry(math.inf)),
    "-inf from": ("from", one_entry(-math.inf)),
    "noise": ("always", add_noise),
    "noise from": ("from", add_noise),
    "jump": ("once", lambda call: call.out + call.size * call.rms),
    "far jump": ("once", lambda call: call.out + 1e9 * call.size * call.rms),
    "large": ("once", lambda call: call.out * 1e12),
    "huge": ("once", be_huge),
    "tiny": ("once", lambda call: call.out * 1e-35),
    "zeros": ("once", lambda call: call.out * 0),
    "echo": ("once", lambda call: call.z),
    "stale": ("once", lambda call: call.kept),
    "mates exchanged": ("once", lambda call: call.out.flip(0)),
    "limit moves": ("from", lambda call: call.out + call.size * call.unit),
    "sign changes": ("from", lambda call: -call.out),
    "held": ("from", lambda call: call.kept),
    "expanding": ("always", expand),
    "expanding from": ("from", expand),
    "overflow": ("from", overflow),
    "floor": ("always", floor),
    "flicker": ("always", lambda call: call.out + call.size * call.rms * (-1) ** call.number),
    "half precision": ("always", halve_precision),
}


# --- contractions that are affected ---------------------------------------------------------------


@dataclass
class Faulty:
    """A contraction f(z, row, x) of (rows, entries), with a fault; `hit` are the rows affected."""

    kind: str
    fault: str
    rate: float
    a: Tensor
    hit: Tensor
    size: float
    fault_at: int
    seed: int
    kept: Tensor
    unit: float
    calls: int = 0
    noise: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.noise.manual_seed(self.seed)

    def clean(self, z: Tensor, x: Tensor) -> Tensor:
        if self.kind == "affine":
            return z @ self.a + x
        if self.kind == "tanh":
            return self.unit * torch.tanh(z / self.unit @ self.a + x / self.unit)
        return self.unit * self.rate * torch.cos(z / self.unit) + x

    def __call__(self, z: Tensor, row: Tensor, x: Tensor) -> Tensor:
        number, out = self.calls, self.clean(z, x)
        self.calls += 1
        when, change = FAULTS[self.fault]
        # Drawn whether it is used or not, and for all rows: it does not depend on who has left.
        noise = torch.randn(self.kept.shape, generator=self.noise, dtype=torch.float64).to(out)
        hit = self.hit[row]
        if WHEN[when](number, self.fault_at) and bool(hit.any()):
            call = Call(number, z, out, self.size, self.unit, noise[row], self.kept[row])
            out = torch.where(hit[:, None], change(call), out)
        if when == "once" or number < self.fault_at:
            self.kept[row] = out.detach()
        return out


@dataclass
class Draw:
    """A solve: all that decides it."""

    f: Faulty
    z0: Tensor
    x: Tensor
    solver: Any
    options: dict[str, Any]
    sample: Tensor
    deferred: bool
    graph: bool
    about: str


def draw(number: int, seed: int) -> Draw:
    """The solve of a number; it does not depend on how many are drawn."""
    rng = np.random.default_rng([seed, number])
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    dtype = [torch.float32, torch.float64][rng.integers(2)]
    rows, n = int(rng.integers(1, 7)), int(rng.integers(1, 11))
    unit, rate = random_unit(rng, dtype), float(rng.choice([0.1, 0.5, 0.8, 0.95]))
    names = solver_names()
    name = names[number % len(names)]
    fault = list(FAULTS)[rng.integers(len(FAULTS))]
    options: dict[str, Any] = {}
    sample = torch.arange(rows)
    how = rng.random()
    if how < 0.3:
        options["drop_finished"] = True
    elif how < 0.4:
        options["coupled"], sample = True, torch.zeros(rows, dtype=torch.int64)
    elif how < 0.5:
        some = torch.randint(0, 3, (rows,), generator=generator)
        options["coupled"] = sample = torch.unique(some, return_inverse=True)[1]
    a = torch.randn(n, n, generator=generator, dtype=torch.float64)
    a = (a * (rate / torch.linalg.matrix_norm(a, 2))).to(dtype)
    x = unit * torch.randn(rows, n, generator=generator, dtype=torch.float64).to(dtype)
    z0 = torch.zeros_like(x)
    if rng.random() < 0.5:
        z0 = unit * torch.randn(rows, n, generator=generator, dtype=torch.float64).to(dtype)
    hit = torch.ones(rows, dtype=torch.bool)
    if rng.random() < 0.5:
        hit = torch.arange(rows) == int(rng.integers(rows))
    f = Faulty(
        kind=str(rng.choice(["affine", "tanh", "cosine"])),
        fault=fault,
        rate=rate,
        a=a,
        hit=hit,
        size=10 ** rng.uniform(-7, 1),
        fault_at=int(rng.integers(0, 12) if rng.random() < 0.7 else rng.integers(0, 40)),
        seed=number,
        kept=z0.clone(),
        unit=unit,
    )
    limits = random_limits(rng, dtype, unit) | {"max_evals": int(rng.integers(3, 80))}
    solver = random_solver(rng, name, **limits)
    delay, graph = bool(rng.random() < 0.3), bool(rng.random() < 0.2)
    about = (
        f"--faults, number {number}, seed {seed}: {fault} at {f.fault_at} of size {f.size:.1e}, "
        f"{f.kind} {rate} {dtype} unit {unit:g}, rows {rows} x {n}, "
        f"hit {hit.nonzero().flatten().tolist()} {'deferred ' if delay else ''}"
        f"{', '.join(options)} {solver}"
    )
    return Draw(f, z0, x, solver, options, sample, delay, graph, about)


def run(given: Draw) -> tuple[Any, Witness]:
    witness = Witness(given.f)
    row = torch.arange(len(given.z0))
    with deferred(given.deferred), torch.set_grad_enabled(given.graph):
        sol = solve(witness, given.z0, row, given.x, solver=given.solver, **given.options)
    return sol, witness


def disturbed(given: Draw, sol: Any) -> Iterator[str]:
    """Samples that the fault of another one has changed by more than kernels round.

    Compared where it is promised: on contractions, for tolerances that rounding does not decide.
    """
    f, solver = given.f, given.solver
    eps = torch.finfo(given.x.dtype).eps
    decided = solver.rtol * (1 - f.rate) > 1e3 * eps
    if bool(f.hit.all()) or "coupled" in given.options or not decided:
        return
    alone = replace(f, fault="none", kept=given.z0.clone(), calls=0, noise=torch.Generator())
    other, _ = run(replace(given, f=alone))
    for i in (~f.hit).nonzero().flatten().tolist():
        status, expected = int(sol.status[i]), int(other.status[i])
        evals, wanted = int(sol.stats.evals[i]), int(other.stats.evals[i])
        if max(evals, wanted) == solver.max_evals:
            continue
        if status != expected or abs(evals - wanted) > 1:
            before, after = f"{expected} after {wanted}", f"{status} after {evals}"
            yield f"disturbed: sample {i} has the status {after}, without the fault {before}"
        elif status == eq.Status.CONVERGED:
            size = other.value[i].double().square().mean().sqrt()
            apart = (sol.value[i] - other.value[i]).double().square().mean().sqrt()
            if apart > 10 * (solver.rtol * size + solver.atol) / (1 - f.rate):
                yield f"disturbed: the value of sample {i} is {float(apart / size):.1e} apart"


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--faults", type=int, default=6000, metavar="SOLVES")
    arguments.add_argument("--only", type=int, metavar="NUMBER", help="a single one of the solves")
    given = arguments.parse_args()
    tally = Tally("solves with faults")
    for number in range(given.faults) if given.only is None else [given.only]:
        one, status = draw(number, given.seed), []
        with warnings.catch_warnings(action="ignore"):
            try:
                sol, witness = run(one)
                seen = History.of(witness, one.sample)
                report = check(sol, seen, one.solver, one.x.dtype, one.deferred)
                report.false.extend(disturbed(one, sol))
                status = sol.status.tolist()
            except Exception as error:
                report = Report([f"raised: {type(error).__name__}: {str(error)[:200]}"])
        tally.add(one.about, report, status)
    return int(not tally.close())


if __name__ == "__main__":
    sys.exit(main())
