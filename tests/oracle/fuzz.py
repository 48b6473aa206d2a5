"""Random problems with random options: what solutions say, their values and their gradients.

    python tests/oracle/fuzz.py --solves 400 --deferred 250 --seed 0

Solves: statuses, counts and residuals are compared with what f was given and returned
(`witness.check`), and residuals are measured again. On contractions the value of a CONVERGED sample
must be as close to a dense float64 solution as its residual says, and the gradient through
`eq.Implicit` as close to the dense float64 gradient as both tolerances allow. Deferred: each solve
is judged evaluation by evaluation and several evaluations at once, as on a device; status, count,
residual and value must be equal, the last two up to what kernels round where finished samples leave
the batch. Exits with 1 if anything is false.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

import equilibria as eq
from random_problems import Problem, dense, draw_problem
from solves import Tally, deferred, parser, random_limits, random_solver, solve, solver_names
from witness import History, Report, Witness, check, flat, rms, zero

FORWARD = ("Picard", "Anderson", "Auto", "Broyden")  # judged in blocks
LINEAR = ("Fallback", "GMRES", "BiCGSTAB", "DirectSolve", "Neumann", "Anderson", "Broyden")
FOR_NOTHING = "solves in which a block went beyond the end"


def random_adjoint(rng: np.random.Generator, dtype: torch.dtype) -> Any:
    if rng.random() < 0.2:
        return eq.Implicit()
    name = str(rng.choice(LINEAR))
    rtol = 10 ** rng.uniform(-5.5 if dtype == torch.float32 else -11, -2)
    return eq.Implicit(linear=getattr(eq, name)(rtol=rtol, max_evals=300))


# --- solves ---------------------------------------------------------------------------------------


def solved(number: int, seed: int) -> tuple[str, Report, list[int]]:
    """Run one solve and compare it with f, with its dense solution and gradient."""
    rng = np.random.default_rng([seed, number])
    dtype = [torch.float32, torch.float64][rng.integers(2)]
    eps = torch.finfo(dtype).eps
    problem, options = draw_problem(rng, dtype)
    names = solver_names()
    limits = random_limits(rng, dtype, 1.0) | {"max_evals": int(rng.integers(10, 150))}
    solver = random_solver(rng, names[number % len(names)], **limits)
    adjoint = random_adjoint(rng, dtype)
    z0 = (problem.scale * torch.as_tensor(rng.standard_normal(problem.x.shape))).to(dtype)
    if rng.random() < 0.5:
        z0 = torch.zeros_like(z0)
    about = (
        f"--solves, number {number}, seed {seed}: {problem.kind} {problem.rate} {problem.shape} "
        f"{tuple(z0.shape)} {dtype} {', '.join(options)} {solver} {adjoint}"
    )
    x, a = problem.x.clone().requires_grad_(), problem.a.clone().requires_grad_()
    row, witness, sample = torch.arange(len(z0)), Witness(problem), problem.sample
    start = problem.state(z0)
    sol = solve(witness, start, row, x, eq.shared(a), solver=solver, adjoint=adjoint, **options)
    seen = History.of(witness, sample)
    report = check(sol, seen, solver, dtype, deferred=False)
    value = problem.rows(sol.value).detach()
    with torch.no_grad():
        image = flat(problem(problem.state(value), row, problem.x, problem.a)).double()
    size, scale = (rms(each[None], sample)[0] for each in (image - value.double(), image))
    relative = torch.where(size == 0, 0.0, size / scale)
    told = sol.stats.residual.double()
    apart = (relative - told).abs() > 1e-4 * relative + 60 * eps * problem.spread
    nothing = (zero(seen, dtype, 1e-4) & seen.at(value)).any(0)
    apart &= ~((told == 0) & nothing)  # 0 / 0 is 0
    report.false += [
        f"residual measured again: sample {i}, {float(told[i]):.2e} is {float(relative[i]):.2e}"
        for i in apart.nonzero().flatten().tolist()
    ]
    done = sol.status == eq.Status.CONVERGED
    if problem.margin > 0 and bool(done.any()):
        weights = torch.as_tensor(rng.standard_normal(z0.shape)) / problem.scale
        z, by_x, by_a = dense(problem, weights)
        error = rms((value.double() - z)[None], sample)[0]
        bound = 1.01 * (size + 30 * eps * scale) / problem.margin
        report.false += [
            f"value: sample {i} is {float(error[i] / scale[i]):.1e} from the dense solution"
            for i in (done & ~(error <= bound)).nonzero().flatten().tolist()
        ]
        compare_gradients(report, problem, sol, x, a, weights, adjoint, by_x, by_a)
    return about, report, sol.status.tolist()


def compare_gradients(
    report: Report,
    problem: Problem,
    sol: Any,
    x: Tensor,
    a: Tensor,
    weights: Tensor,
    adjoint: Any,
    by_x: Tensor,
    by_a: Tensor,
) -> None:
    """Compare the gradients of samples that have converged, forward and backward."""
    loss = (problem.rows(sol.value) * weights.to(x)).sum()
    found_x, found_a = torch.autograd.grad(loss, (x, a))
    done = (sol.status == eq.Status.CONVERGED) & (sol.adjoint.status == eq.Status.CONVERGED)
    reached = sol.stats.residual.double() + adjoint.linear.rtol
    bound = (20 * reached + 200 * torch.finfo(x.dtype).eps) / problem.margin**2
    tight = done & (bound < 0.3)
    error, size = (rms(each[None], problem.sample)[0] for each in (found_x.double() - by_x, by_x))
    report.false += [
        f"gradient of x: sample {i}, {float(error[i] / size[i]):.1e} apart, {float(bound[i]):.1e}"
        for i in (tight & ~(error <= bound * size)).nonzero().flatten().tolist()
    ]
    report.remarks += int(tight.sum()) * ["gradients of samples compared"]
    report.remarks += int((done & ~tight).sum()) * ["gradients not compared: loose tolerances"]
    # What cancels between samples is no gradient to be precise about, nor what is zero to rounding.
    if bool((tight & (sol.stats.residual > 0)).all()):
        parts = by_a.flatten(1).norm(dim=1)
        apart, most = float((found_a.double() - by_a.sum(0)).norm()), float((bound * parts).sum())
        if not apart <= most:
            report.false.append(f"gradient of a: {apart:.1e} apart, {most:.1e} allowed")


# --- deferred judging -----------------------------------------------------------------------------


def judged_twice(number: int, seed: int) -> tuple[str, Report, list[int]]:
    """Run one solve, judged at once and in blocks."""
    rng = np.random.default_rng([seed, 1, number])
    dtype = [torch.float32, torch.float64][rng.integers(2)]
    problem, options = draw_problem(rng, dtype)
    limits = random_limits(rng, dtype, 1.0) | {"max_evals": int(rng.integers(10, 150))}
    name = str(rng.choice([name for name in FORWARD if hasattr(eq, name)]))
    solver = random_solver(rng, name, **limits)
    # Rows that converge fast, slowly, not at all, that diverge, and that turn NaN on the way.
    gain = torch.ones(len(problem.x), 1, dtype=dtype)
    if rng.random() < 0.6:
        gain = torch.as_tensor(10 ** rng.uniform(-3, 1, (len(problem.x), 1))).to(dtype)
    broken = 10 ** rng.uniform(0, 4) if rng.random() < 0.5 else 0.0
    start = problem.state(torch.zeros_like(problem.x))
    about = (
        f"--deferred, number {number}, seed {seed}: {problem.kind} {problem.rate} {problem.shape} "
        f"{tuple(problem.x.shape)} {dtype} NaN above {broken:.0f} {', '.join(options)} {solver}"
    )

    def f(state: Any, row: Tensor, x: Tensor) -> Any:
        out = gain[row] * problem.rows(problem(state, row, x, problem.a))
        away = broken * problem.scale[row].to(out)
        return problem.state(torch.where((out.abs() > away) & (away > 0), torch.nan, out))

    found, witnesses = [], [Witness(f), Witness(f)]
    for in_blocks, witness in enumerate(witnesses):
        with deferred(bool(in_blocks)), torch.no_grad():
            rows = torch.arange(len(problem.x))
            found.append(solve(witness, start, rows, problem.x, solver=solver, **options))
    once, late = found
    report = check(late, History.of(witnesses[1], problem.sample), solver, dtype, deferred=True)
    if len(witnesses[1].calls) > len(witnesses[0].calls):
        report.remarks.append(FOR_NOTHING)
    one, other = problem.rows(once.value), problem.rows(late.value)
    same = {
        "status": torch.equal(once.status, late.status),
        "evals": torch.equal(once.stats.evals, late.stats.evals),
        "residual": torch.equal(once.stats.residual, late.stats.residual),
        "value": torch.equal(one, other),
    }
    if options.get("drop_finished"):  # kernels round otherwise in a smaller batch
        done = once.status == eq.Status.CONVERGED
        slack = 1e-3 if dtype == torch.float32 else 1e-8
        apart = (one - other).norm(dim=1) <= slack * one.norm(dim=1)
        report.remarks += ["equal to rounding"] * (not all(same.values()))
        same |= {"residual": True, "value": bool((apart | ~done).all())}
    ends = [
        [sol.status.tolist(), sol.stats.evals.tolist(), sol.stats.residual.tolist()]
        for sol in (once, late)
    ]
    report.false += [f"not equal: {name}, {ends}" for name, it in same.items() if not it]
    return about, report, once.status.tolist()


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--solves", type=int, default=400)
    arguments.add_argument("--deferred", type=int, default=250, metavar="SOLVES")
    given = arguments.parse_args()
    right = True
    for what, count, run in (
        ("random solves", given.solves, solved),
        ("solves judged twice", given.deferred, judged_twice),
    ):
        tally = Tally(what, every=100)
        for number in range(count):
            with warnings.catch_warnings(action="ignore"):
                try:
                    tally.add(*run(number, given.seed))
                except Exception as error:
                    report = Report([f"raised: {type(error).__name__}: {str(error)[:200]}"])
                    tally.add(f"{what}, number {number}, seed {given.seed}", report)
        right = tally.close() and right
        if run is judged_twice and count >= 100 and not tally.kinds[FOR_NOTHING]:
            right = False
            print("no solve was judged in blocks: has the switch in solves.deferred lost its use?")
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
