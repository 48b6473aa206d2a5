"""What a function was given and returned in a solve, and whether the solution tells the truth.

Used by `inject.py`, `unsolvable.py` and `fuzz.py`. The criterion is written down here once more, as
the docstring of the solvers has it; nothing is computed by the library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import equilibria as eq

EXTRA = ("NewtonKrylov", "Auto")  # they call f beside the evaluations that are judged
SPARE = 3  # calls of f that deferred judging may make for nothing


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a state, in one order."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = [tree[key] for key in sorted(tree)] if isinstance(tree, dict) else tree
    return [leaf for part in parts for leaf in leaves(part)]


def flat(tree: Any) -> Tensor:
    """All entries of each row of a state side by side: (rows, entries)."""
    return torch.cat([leaf.detach().flatten(1) for leaf in leaves(tree)], 1)


class Witness(nn.Module):
    """A function f(z, row, x) that remembers every call.

    `row` holds the number of each row of the batch: finished samples may have left it. A module,
    since a layer counts the parts of its cell by modules.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f
        self.calls: list[tuple[Tensor, Tensor, Tensor]] = []

    def forward(self, z: Any, row: Tensor, *operands: Any) -> Any:
        out = self.f(z, row, *operands)
        self.calls.append((row.clone(), flat(z).clone(), flat(out).clone()))
        return out


@dataclass
class History:
    """Calls of f in order, in float64; NaN for rows that had left. Lengths are RMS norms.

    Attributes:
        z: what f was given, (calls, rows, entries).
        size: ||f(z) - z||, (calls, samples).
        scale: ||f(z)||, (calls, samples).
        given, returned: was all of z, and of f(z), finite? (calls, samples)
        there: was the sample in the batch? (calls, samples)
        sample: the sample of each row, (rows,).
    """

    z: Tensor
    size: Tensor
    scale: Tensor
    given: Tensor
    returned: Tensor
    there: Tensor
    sample: Tensor

    @classmethod
    def of(cls, witness: Witness, sample: Tensor) -> History:
        shape = (len(witness.calls), len(sample), witness.calls[0][1].shape[1])
        z, f = torch.full((2, *shape), torch.nan, dtype=torch.float64)
        there = torch.zeros(shape[:2], dtype=torch.bool)
        for number, (row, given, returned) in enumerate(witness.calls):
            z[number, row], f[number, row] = given.double(), returned.double()
            there[number, row] = True
        return cls(
            z=z,
            size=rms(f - z, sample),
            scale=rms(f, sample),
            given=every(z.isfinite().all(2), sample),
            returned=every(f.isfinite().all(2), sample),
            there=every(there, sample),
            sample=sample,
        )

    def at(self, value: Tensor) -> Tensor:
        """The calls at which f was given this state, (calls, samples)."""
        return every((self.z == value.double()).all(2), self.sample)


def rms(rows: Tensor, sample: Tensor) -> Tensor:
    """RMS norm over all entries of each sample, (calls, rows, entries) -> (calls, samples)."""
    count = int(sample.max()) + 1
    place = sample.expand(rows.shape[0], -1)
    unit = rows.new_zeros(rows.shape[0], count)
    unit = unit.scatter_reduce(1, place, rows.abs().amax(2), "amax")
    unit = torch.where(unit > 0, unit, 1.0)  # squares of large numbers overflow
    squares = (rows / unit.gather(1, place).unsqueeze(2)).square().sum(2)
    entries = torch.bincount(sample) * rows.shape[2]
    return unit * (torch.zeros_like(unit).scatter_add(1, place, squares) / entries).sqrt()


def every(mask: Tensor, sample: Tensor) -> Tensor:
    """Is it so of all rows of a sample? (calls, rows) -> (calls, samples)"""
    found = torch.ones(mask.shape[0], int(sample.max()) + 1, dtype=torch.int8)
    place = sample.expand(mask.shape[0], -1)
    return found.scatter_reduce(1, place, mask.to(torch.int8), "amin").bool()


def converged(seen: History, solver: Any, dtype: torch.dtype, slack: float) -> Tensor:
    """Does an evaluation meet the criterion of a solve, (calls, samples)?

    ||f(z) - z|| <= atol + rtol ||f(z)||; and where ||f(z)|| is over 4 times
    S = max(||f(z_0)||, ||f(z_0) - z_0||), the residual, with what f(z) is rounded by, is below
    atol + max(0.03 S, min(10 rtol, 0.3) ||f(z_0) - z_0||). A state that is zero to rounding beside
    S counts.

    Args:
        slack: lenient by this share, or where it is negative strict.
    """
    eps, more = torch.finfo(dtype).eps, 1 + slack
    rtol, atol = float(solver.rtol), float(solver.atol)
    size, scale = seen.size, seen.scale
    start = torch.maximum(size[0], scale[0])
    small = size <= more * (atol + rtol * scale)
    share = torch.maximum(0.03 * start, min(10 * rtol, 0.3) * size[0])
    fallen = size + eps * scale <= more * (atol + share)
    held = (scale > 4 * more * start) & ~fallen
    met = (small & ~held) | zero(seen, dtype, slack)
    return seen.there & (size + scale).isfinite() & met


def zero(seen: History, dtype: torch.dtype, slack: float) -> Tensor:
    """Is the state zero to rounding beside S, (calls, samples)?"""
    start = torch.maximum(seen.size[0], seen.scale[0])
    rounded = (1 + slack) * torch.finfo(dtype).eps ** 1.5 * start
    return (seen.size < rounded) & (seen.scale < rounded)


@dataclass
class Report:
    """What is false in a solution, and what is only remarkable; one line for each sample."""

    false: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def check(sol: Any, seen: History, solver: Any, dtype: torch.dtype, deferred: bool) -> Report:
    """Compare what a solution says with what f was given and returned.

    Remarkable: the residual is that of a later call at the same value, where a finished sample has
    stayed in the batch and f no longer returns the same; or f returned NaN only because the method
    gave it a state that was not finite.
    """
    slack = 1e-4 if dtype == torch.float32 else 1e-8
    simple = type(solver).__name__ not in EXTRA
    value, status, evals = flat(sol.value), sol.status, sol.stats.evals
    calls = torch.arange(len(seen.size)).unsqueeze(1)
    # Of those after a sample's last evaluation none may count. Newton's method makes one call more,
    # at its first step, which is not charged to samples that take no such step.
    taken = seen.there & (calls < evals + (0 if simple else 1))
    relative = torch.where(seen.size == 0, 0.0, seen.size / seen.scale)
    strict = converged(seen, solver, dtype, -slack) & taken
    lenient = converged(seen, solver, dtype, slack) & taken
    at = seen.at(value) & seen.there
    reported = sol.stats.residual.double()
    # Squares of a residual that is far smaller than rounding may vanish.
    same = (relative - reported).abs() <= slack * relative + torch.finfo(dtype).eps ** 2
    unknown = ~(seen.size + seen.scale).isfinite() | (seen.scale == 0)
    same = same | ((reported == 0) & zero(seen, dtype, slack)) | (reported.isinf() & unknown)
    start = torch.maximum(seen.size[0], seen.scale[0])
    bad = taken & ~seen.returned
    is_ = {each.name: status == each for each in eq.Status}
    made = seen.there.sum(0)
    spare = (SPARE if deferred else 0) + (0 if simple else 1)

    false = {
        "the value is not finite": ~every(value.isfinite().all(1)[None], seen.sample)[0],
        "f was not evaluated at the value": ~(at & taken).any(0),
        "the residual is not that of the value": at.any(0) & ~(at & same).any(0),
        "CONVERGED above the tolerance": is_["CONVERGED"] & ~(lenient & at).any(0),
        "NONFINITE, f never was": is_["NONFINITE"] & ~bad.any(0),
        "DIVERGED below 1e8 times the start": is_["DIVERGED"]
        & ~(taken & (seen.size > 0.99e8 * start)).any(0),
        "STALLED without patience": is_["STALLED"] & (evals <= (solver.patience or 2**60)),
        "more evaluations than max_evals": evals > solver.max_evals,
        "more calls of f than evaluations": made > evals.max() + spare,
    }
    if simple:
        ratio = seen.size / (solver.atol + solver.rtol * seen.scale) if solver.atol else relative
        ratio = torch.where(taken & ratio.isfinite() & seen.returned, ratio, torch.inf)
        best = torch.where(at, ratio, torch.inf).amin(0) <= (1 + slack) * ratio.amin(0)
        best = best | (at & zero(seen, dtype, slack)).any(0)
        grown = (taken & (seen.scale > 3.9 * start)).any(0)
        first = torch.where(strict, calls, 2**60).amin(0)
        end = torch.where(taken & ~(seen.returned & seen.given), calls, 2**60).amin(0)
        false |= {
            "went on after it had converged": (first < end) & (first < evals - 1),
            "not CONVERGED within the tolerance": (first < end) & ~is_["CONVERGED"],
            "went on after a NaN": (end < evals - 1) | ((end < evals) & ~is_["NONFINITE"]),
            "MAX_EVALS before": is_["MAX_EVALS"] & (evals < solver.max_evals),
            "not the best iterate": ~best & ~grown & ratio.isfinite().any(0),
        }
    remarks = {
        "residual of a later call": (at & same).any(0) & ~(at & same & taken).any(0),
        "NONFINITE by the method": is_["NONFINITE"] & ~(bad & seen.given).any(0) & bad.any(0),
    }

    def lines(found: dict[str, Tensor]) -> list[str]:
        return [
            f"{what}: sample {i}, {eq.Status(int(status[i])).name} after {int(evals[i])}"
            for what, who in found.items()
            for i in who.nonzero().flatten().tolist()
        ]

    return Report(lines(false), lines(remarks))
