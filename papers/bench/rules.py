"""After how many evaluations each of several rules says CONVERGED, and the relative error of z
there; "false" where there is no fixed point."""

# Each map is iterated once, without a rule; each rule then says where it would have stopped.

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from equilibria.run.studies.results import Frame
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import Pivot, first
from equilibria.solve import GROWTH, SHARE

RTOL, EVALS, D = 1e-3, 6000, 8
RULES = (
    *("relative", "share of first", "share of start"),
    *("grown: share of largest", "grown: share of start"),
)
Map = Callable[[Tensor], Tensor]


def iterate(f: Map, z: Tensor) -> Tensor:
    for _ in range(2000):
        z = f(z)
    return z


def maps() -> dict[str, tuple[Map, Tensor, Tensor | None]]:
    """Maps by name, each with its start and its fixed point, None where there is none."""
    generator = torch.Generator().manual_seed(0)
    b, w, x = (torch.randn(n, D, generator=generator, dtype=torch.float64) for n in (1, D, 1))
    q, zero, small = torch.linalg.qr(w)[0], torch.zeros_like(b), 2.0**-30

    def tanh(z: Tensor) -> Tensor:
        return torch.tanh(0.8 * z @ q + x)

    def steep(z: Tensor) -> Tensor:
        return torch.tanh(3 * z + 1e-10)

    def linear(z: Tensor) -> Tensor:
        return 0.5 * z @ q + x

    def excursion(z: Tensor) -> Tensor:
        return z + b * torch.where(((z / b).mean() - 20).abs() < 5, 200.0, 1.0)

    at, upper = iterate(tanh, zero), iterate(steep, torch.ones_like(zero))
    return {
        "z + 1": (lambda z: z + 1, zero, None),
        "z + b (1 + .5 tanh(W z))": (lambda z: z + b * (1 + 0.5 * (z @ w).tanh()), zero, None),
        "z + b sqrt(1 + abs z)": (lambda z: z + b * (1 + z.abs()).sqrt(), zero, None),
        "z + b (1 + abs z)": (lambda z: z + b * (1 + z.abs()), zero, None),
        "z + b, 200 b on a stretch of the way": (excursion, zero, None),
        ".999 z + b": (lambda z: 0.999 * z + b, zero, 1000 * b),
        ".9 z + b": (lambda z: 0.9 * z + b, zero, 10 * b),
        "tanh(.8 Q z + x)": (tanh, zero, at),
        "the same times 2^-30": (lambda z: small * tanh(z / small), zero, small * at),
        "the same, warm start 1 % off": (tanh, 1.01 * at, at),
        "the same, warm start .01 % off": (tanh, 1.0001 * at, at),
        "the same, z0 = z*": (tanh, at, at),
        ".5 Q z + x": (linear, zero, iterate(linear, zero)),
        "tanh(3 z + 1e-10)": (steep, zero, upper),
        "the same in float32": (steep, zero.float(), upper),
        "z / 2, z0 = 0": (lambda z: z / 2, zero, zero),
        "z^2 / 2, z0 = 1": (lambda z: z**2 / 2, zero + 1, zero),
    }


def course(f: Map, z: Tensor) -> tuple[Tensor, Tensor]:
    """z and f(z) `(evals, d)` of plain iteration, until nothing moves or `EVALS` are spent."""
    iterates: list[Tensor] = [z[0]]
    for _ in range(EVALS):
        iterates.append(f(iterates[-1][None])[0])
        moved = (iterates[-1] - iterates[-2]).norm()
        if not bool(moved > 0) or not bool(torch.isfinite(iterates[-1].norm())):
            break
    return torch.stack(iterates[:-1]), torch.stack(iterates[1:])


def stops(context: Context) -> Iterable[dict[str, Any]]:
    """After how many evaluations each rule stops, and the relative error of z there."""
    f, z0, answer = maps()[str(context.factors["map"])]
    z, image = course(f, z0)
    scale, size = image.norm(dim=1), (image - z).norm(dim=1)
    relative, start = size <= RTOL * scale, torch.maximum(scale[0], size[0])
    kept = scale <= GROWTH * start
    # The largest residual so far, none larger beside ||f(z)|| now than beside its own.
    share = size / scale
    so_far = (torch.fmin(size[:k], share[:k] * scale[k - 1]) for k in range(1, len(scale) + 1))
    largest = torch.stack([each.max() for each in so_far])

    def below(reference: Tensor) -> Tensor:
        return size + torch.finfo(scale.dtype).eps * scale <= SHARE * reference

    shares = (relative & below(reference) for reference in (size[0], start))
    grown = (relative & (kept | below(reference)) for reference in (largest, start))
    for rule, where in zip(RULES, (relative, *shares, *grown), strict=True):
        row: dict[str, Any] = {"rule": rule}
        if where.any():
            row["evals"] = k = int(where.nonzero()[0]) + 1
            if answer is not None:
                distance = float((z[k - 1].double() - answer).norm())
                row["error"] = distance / (float(answer.norm()) or 1.0)
        yield row


def describe(rows: Frame) -> str:
    """Where a rule stops; it is wrong to stop where there is no fixed point."""
    evals, error = rows["evals"].iloc[0], first("error")(rows)
    if evals != evals:
        return "never"
    return f"**{evals:.0f}: false**" if error is None else f"{evals:.0f}: {100 * error:.2g} %"


STUDY = Study(
    title="Rules that could say CONVERGED",
    points=lambda scale: [
        Point(
            {"map": name},
            [stops],
            settings={"rtol": RTOL, "evals": EVALS, "growth": GROWTH, "share": SHARE},
        )
        for name in maps()
    ],
    views=[
        Pivot(
            title="Where each rule stops",
            index={"map": "map"},
            each="rule",
            across="rule",
            words={"rule": {rule: rule for rule in RULES}},
            values={"{level}": describe},
            note=f"Plain iteration from 0 in float64 unless something else is said, rtol {RTOL:g}, "
            f"at most {EVALS} evaluations. Beside the relative test the rules ask for a residual "
            f"below {SHARE:g} times the first (share of first), or {SHARE:g} S, where S is the "
            "larger of ‖f(z₀)‖ and the first residual (share of start); or only where ‖f(z)‖ is "
            f"over {GROWTH:g} S, below {SHARE:g} times the largest on the way (grown: share of "
            f"largest), or {SHARE:g} S (grown: share of start), which is the rule in use.",
        )
    ],
)
