"""Compare rules that could say CONVERGED, over problems with and without a solution.

``python benchmarks/convergence_rules.py`` writes results/convergence-rules.json.

Each iteration is run once, without a rule, and ||f(z)|| and ||f(z) - z|| are kept beside its
iterates; each rule then says where it would have stopped.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass

import record
import torch
from torch import Tensor

from equilibria.solve.growth import GROWTH, SHARE

NAME = "convergence-rules"
COMMAND = "python benchmarks/convergence_rules.py"
RTOL, EVALS, D = 1e-3, 6000, 8
DTYPE = torch.float64


@dataclass(frozen=True)
class Course:
    """Of one sample, after each evaluation: z `(evals, d)`, ||f(z)|| and ||f(z) - z||."""

    z: Tensor
    scale: Tensor
    size: Tensor

    @property
    def relative(self) -> Tensor:
        return self.size <= RTOL * self.scale

    @property
    def rounded(self) -> Tensor:
        return self.size + torch.finfo(self.scale.dtype).eps * self.scale

    @property
    def start(self) -> Tensor:
        return torch.maximum(self.scale[0], self.size[0])

    def largest(self) -> Tensor:
        """The largest residual on the way, none larger beside ||f(z)|| now than beside its own."""
        out = torch.empty_like(self.size)
        for k in range(len(out)):
            ratio = self.size[: k + 1] / self.scale[: k + 1]
            out[k] = torch.fmin(self.size[: k + 1], ratio * self.scale[k]).max()
        return out


def where_grown(course: Course, reference: Tensor) -> Tensor:
    grown = course.scale > GROWTH * course.start
    return course.relative & (~grown | (course.rounded <= SHARE * reference))


RULES: dict[str, Callable[[Course], Tensor]] = {
    "relative": lambda c: c.relative,
    "share of first": lambda c: c.relative & (c.rounded <= SHARE * c.size[0]),
    "share of start": lambda c: c.relative & (c.rounded <= SHARE * c.start),
    "grown: share of largest": lambda c: where_grown(c, c.largest()),
    "grown: share of start": lambda c: where_grown(c, c.start),
}


@dataclass(frozen=True)
class Problem:
    """A map with its start; `answer` is None where there is none."""

    name: str
    f: Callable[[Tensor], Tensor]
    z0: Tensor
    answer: Tensor | None


def problems() -> list[Problem]:
    generator = torch.Generator().manual_seed(0)
    b, w, x = (torch.randn(n, D, generator=generator, dtype=DTYPE) for n in (1, D, 1))
    q = torch.linalg.qr(w)[0]
    zero = torch.zeros(1, D, dtype=DTYPE)
    tanh = lambda z: torch.tanh(0.8 * z @ q + x)  # noqa: E731
    linear = lambda z: 0.5 * z @ q + x  # noqa: E731
    at, to = (settled(f, zero) for f in (tanh, linear))
    upper = settled(lambda z: torch.tanh(3 * z + 1e-10), torch.ones_like(zero))
    excursion = lambda z: z + b * torch.where(((z / b).mean() - 20).abs() < 5, 200.0, 1.0)  # noqa: E731
    return [
        Problem("z + 1", lambda z: z + 1, zero, None),
        Problem(
            "z + b (1 + .5 tanh(W z))", lambda z: z + b * (1 + 0.5 * (z @ w).tanh()), zero, None
        ),
        Problem("z + b sqrt(1 + abs z)", lambda z: z + b * (1 + z.abs()).sqrt(), zero, None),
        Problem("z + b (1 + abs z)", lambda z: z + b * (1 + z.abs()), zero, None),
        Problem("z + b, 200 b on a stretch of the way", excursion, zero, None),
        Problem(".999 z + b", lambda z: 0.999 * z + b, zero, 1000 * b),
        Problem(".9 z + b", lambda z: 0.9 * z + b, zero, 10 * b),
        Problem("tanh(.8 Q z + x)", tanh, zero, at),
        Problem(
            "the same times 2^-30", lambda z: 2.0**-30 * tanh(2.0**30 * z), zero, 2.0**-30 * at
        ),
        Problem("the same, warm start 1 % off", tanh, 1.01 * at, at),
        Problem("the same, warm start .01 % off", tanh, 1.0001 * at, at),
        Problem("the same, z0 = z*", tanh, at, at),
        Problem(".5 Q z + x", linear, zero, to),
        Problem("tanh(3 z + 1e-10)", lambda z: torch.tanh(3 * z + 1e-10), zero, upper),
        Problem("the same in float32", lambda z: torch.tanh(3 * z + 1e-10), zero.float(), upper),
        Problem("z / 2, z0 = 0", lambda z: z / 2, zero, zero),
        Problem("z^2 / 2, z0 = 1", lambda z: z**2 / 2, zero + 1, zero),
    ]


def settled(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    for _ in range(2000):
        z = f(z)
    return z


def course(problem: Problem) -> Course:
    """Plain iteration, until nothing moves any more or the evaluations run out."""
    z, iterates, scales, sizes = problem.z0, [], [], []
    for _ in range(EVALS):
        image = problem.f(z)
        iterates.append(z[0])
        scales.append(image.norm())
        sizes.append((image - z).norm())
        if not bool(sizes[-1] > 0) or not bool(torch.isfinite(scales[-1])):
            break
        z = image
    return Course(torch.stack(iterates), torch.stack(scales), torch.stack(sizes))


def cell(problem: Problem, run: Course, rule: Callable[[Course], Tensor]) -> str:
    """After how many evaluations the rule stops, and how far from the answer."""
    here = rule(run).nonzero()
    if not len(here):
        return "never"
    k = int(here[0])
    if problem.answer is None:
        return f"**{k + 1}: false**"
    length = float(problem.answer.norm())
    error = float((run.z[k].double() - problem.answer).norm()) / (length or 1.0)
    return f"{k + 1}: {100 * error:.2g} %"


def measure() -> None:
    """Write the table."""
    rows = []
    for problem in problems():
        run = course(problem)
        rows.append([problem.name, *(cell(problem, run, rule) for rule in RULES.values())])
    record.write(
        NAME,
        command=COMMAND,
        columns=["map", *RULES],
        rows=rows,
        note=(
            f"Plain iteration from 0 in float64 where nothing else is said, rtol {RTOL:g}, at most "
            f"{EVALS} evaluations: after how many each rule says CONVERGED, and the relative "
            'error of z there; "false" where there is no fixed point. Beside the relative test the '
            f"rules ask for a residual below {SHARE:g} times the first (share of first), or "
            f"{SHARE:g} S, where S is the larger of ‖f(z₀)‖ and the first residual (share of "
            f"start); or only where ‖f(z)‖ is over {GROWTH:g} S, below {SHARE:g} times the "
            f"largest on the way (grown: share of largest), or {SHARE:g} S (grown: share of "
            "start), which is the rule in use."
        ),
    )


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()  # no options, but --help
    measure()
