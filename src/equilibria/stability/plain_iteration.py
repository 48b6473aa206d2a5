"""What plain iteration, z <- f(z), does where a solve has failed: its path, and the kind of it.

A signal that travels through the state, a cycle and a divergence all end with a residual that has
not fallen, and each has another remedy. The path tells them apart.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.stability.fixed_points import Settled

Kind = Literal["converges", "front", "cycle", "diverges", "drifts", "slow", "wanders"]
"""What a path does: it converges; it carries a signal that travels through the state, entry by
entry; it comes back to a state that it has been in; its residual grows without end; it goes on in
one direction, by steps of one length; its residual falls, but slowly; or none of these."""

KINDS: tuple[Kind, ...] = typing.get_args(Kind)

BUDGET = 400
"""Evaluations of a path, at most."""

LATE = 20
"""Evaluations after which the largest change of an entry is that of a signal that has arrived, and
in which a residual that falls by less than 1 % stands still."""

REST = 1e-3
"""Change of an entry at rest, over its largest so far."""

LOOK = 16
"""Evaluations after which a path is looked at, whether it has ended: each look waits for a GPU."""

GROWTH = 1e10
"""Growth of a residual, over the larger of its first value and the size of f there, that ends a
path."""


@dataclass(frozen=True)
class PlainPath:
    """The path z_(k+1) = f(z_k) of each sample, all `(evals, samples)`.

    Attributes:
        step: ||f(z_k) - z_k||, infinite from where it is not finite.
        size: ||f(z_k)||, likewise.
        arrived: share of the entries whose largest change came after `LATE` evaluations, and that
            have been at rest since before z_k.
        distance: ||f(z_k) - z||, z an earlier iterate: the one `gap` evaluations before f(z_k),
            which is z_k itself at a gap of 1.
        gap: (evals,), 1 to 1, 1 to 2, 1 to 4, and so on.
        evals: (samples,), evaluations until a sample converged or diverged, or of the whole path.
            What its columns hold beyond these is of no meaning.
        rtol: relative residual of a solution.
    """

    step: Tensor
    size: Tensor
    arrived: Tensor
    distance: Tensor
    gap: Tensor
    evals: Tensor
    rtol: float


class Behaviour(NamedTuple):
    """What the path of a sample does; `evals` until it converges, or the `period` of a cycle."""

    kind: Kind
    evals: int | None = None
    period: int | None = None


# --- path -----------------------------------------------------------------------------------------


@torch.no_grad()
def record_path(begun: Settled, rtol: float, budget: int = BUDGET) -> PlainPath:
    """Iterate plainly until all samples have converged or diverged, at most `budget` evaluations.

    What is recorded of a sample does not depend on the others. The cost is that of the evaluations;
    six states are held.

    Args:
        begun: the layer with a start, such as `fixed_points.begin_unsolved` returns.
        rtol: relative residual of a solution.
        budget: evaluations, at least 1.
    """
    layer, z = begun.layer, begun.z
    rows = _flatten(z, layer.coupled)
    anchor, gap, longest = rows, 0, 1
    largest, largest_at = torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.int32)
    moved_at = torch.zeros_like(largest_at)
    ended = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    evals = torch.zeros_like(ended, dtype=torch.int64)
    steps, sizes, distances, gaps = list[Tensor](), list[Tensor](), list[Tensor](), list[int]()
    for k in range(budget):
        z = layer.cell(z, *begun.plain)
        image = _flatten(z, layer.coupled)
        change = (image - rows).abs()
        size = image.norm(dim=1)
        evals += ~ended
        grown = (change >= largest) & ~ended[:, None]
        largest_at[grown & (change > 0)] = k
        largest = torch.where(grown, change, largest)
        moved_at[(change > REST * largest) & ~ended[:, None]] = k + 1
        gap += 1
        steps.append(change.norm(dim=1))
        sizes.append(size)
        distances.append((image - anchor).norm(dim=1))
        gaps.append(gap)
        if gap == longest:
            anchor, gap, longest = image, 0, 2 * longest
        rows = image
        ended = ended | _has_ended(steps, sizes, rtol)
        if len(steps) % LOOK == 0 and bool(ended.all()):
            break
    last = int(evals.max())
    return PlainPath(
        step=_known(steps[:last]),
        size=_known(sizes[:last]),
        arrived=_share_arrived(largest_at >= LATE, moved_at, last),
        distance=_known(distances[:last]),
        gap=torch.tensor(gaps[:last]),
        evals=evals.cpu(),
        rtol=rtol,
    )


def _flatten(z: Any, coupled: bool | Tensor) -> Tensor:
    """All entries of each sample in one row, (samples, entries)."""
    leaves: Sequence[Tensor] = pytree.tree_leaves(z)
    samples = 1 if coupled is not False else len(leaves[0])
    return torch.cat([leaf.reshape(samples, -1) for leaf in leaves], 1)


def _has_ended(steps: Sequence[Tensor], sizes: Sequence[Tensor], rtol: float) -> Tensor:
    step, size = steps[-1], sizes[-1]
    far = step > GROWTH * torch.maximum(steps[0], sizes[0])
    return (step <= rtol * size) | far | ~torch.isfinite(step + size)


def _known(values: Sequence[Tensor]) -> Tensor:
    """In one tensor of float64, infinite from the first that is not finite."""
    found = torch.stack([*values]).double().cpu()
    return torch.where((~found.isfinite()).cumsum(0) > 0, math.inf, found)


def _share_arrived(late: Tensor, moved_at: Tensor, evals: int) -> Tensor:
    """The share of entries that are `late` and have not moved since, at each evaluation."""
    samples, entries = late.shape
    counts = torch.zeros(samples, evals + 1, dtype=torch.float64, device=late.device)
    counts.scatter_add_(1, moved_at.long(), late.double())
    return (counts.cumsum(1) / entries).T[:evals].cpu()


# --- kind -----------------------------------------------------------------------------------------

_ARRIVED = 0.1  # share of the entries at which a signal arrives on a path that converges
_ARRIVING = 0.03  # and in the second half of one that goes on
_FELL = 0.95  # what is left of the residual after the second half of a path that converges slowly
_KEPT = 0.5  # and of one that carries a signal, at least, beside what has come to rest
_FAR = 10.0  # growth of the residual in the second half of a path that diverges
_HIGH = 0.1  # what is left of the residual, at least, where a signal keeps it from falling
_NEAR = 0.1  # distance to a state of a cycle, over the step to the next one
_BETWEEN = 0.5  # likewise, where the period is none of a whole number of evaluations
_SMOOTH = 1.5  # and one evaluation earlier and later
_LONG = 6  # evaluations from which on a period may be such
_STRAIGHT = 1.6  # length of two steps of it, over that of one
_DIRECT = 0.9  # distance to an earlier state, over the length of the way, on a path that drifts
_FLOOR = 1e-4  # relative residual below which rounding may go around in a cycle


def classify(path: PlainPath) -> list[Behaviour]:
    """Tell of each sample what its path does."""
    return [_classify(path, sample) for sample in range(path.step.shape[1])]


def _classify(path: PlainPath, sample: int) -> Behaviour:
    evals = int(path.evals[sample])
    step, size, arrived = (x[:evals, sample] for x in (path.step, path.size, path.arrived))
    solved = (step <= path.rtol * size).nonzero()
    if len(solved):
        end = int(solved[0])
        front = float(arrived[end]) >= _ARRIVED or _stands_still(step[: end + 1])
        return Behaviour("front" if front else "converges", evals=end + 1)
    before, after = _mean_of_quarter(step, 1), _mean_of_quarter(step, 3)
    first = max(float(step[0]), float(size[0]))
    if not math.isfinite(after) or float(step[-1]) > GROWTH * first or after > _FAR * before:
        return Behaviour("diverges")
    flat = after >= _FELL * before and float(step[-1]) > _FLOOR * float(size[-1])
    if flat and (period := _find_period(path, sample)) is not None:
        return Behaviour("cycle", period=period)
    # Who rests has to rest for some time: one that wanders may stand still for a moment.
    early, late = (float(arrived[k]) for k in (len(arrived) // 2, max(0, len(arrived) - LATE)))
    kept = _KEPT * ((1 - late) / (1 - early)) ** 0.5 if early < 1 else 0.0
    if late - early >= _ARRIVING and after >= kept * before:
        return Behaviour("front")
    if flat and _goes_straight(path, sample):
        return Behaviour("drifts")
    falls = float(step[3 * len(step) // 4 :].max()) < _FELL * before
    return Behaviour("slow" if falls else "wanders")


def _stands_still(step: Tensor) -> bool:
    """Does the least residual so far fall by less than 1 % in `LATE` evaluations, while high?"""
    best = step.cummin(0).values
    before, after = best[: max(0, len(best) - LATE)], best[LATE:]
    return bool(((after > 0.99 * before) & (before > _HIGH * best[0])).any())


def _mean_of_quarter(values: Tensor, number: int) -> float:
    """Of the second or the last of four parts, 1 and 3."""
    begin = number * len(values) // 4
    return float(values[begin : max(begin + 1, (number + 1) * len(values) // 4)].mean())


def _goes_straight(path: PlainPath, sample: int) -> bool:
    """Have many steps led as far as their lengths together, nearly?"""
    far = int(path.gap.argmax())
    gap = float(path.gap[far])
    distance, step = (float(x[far, sample]) for x in (path.distance, path.step))
    return gap >= LATE and _DIRECT * gap * step <= distance < math.inf


def _find_period(path: PlainPath, sample: int) -> int | None:
    """The least number of evaluations, 2 or more, after which the path is where it was.

    It is there again after twice, three and four times as many, as far as that was seen: a path
    that wanders may pass by an earlier state, but does not keep to it. One that goes around in 12.3
    evaluations is near after 12, 25 and 37.
    """
    begins = (path.gap == 1).nonzero().flatten().tolist()
    for begin, end in zip(begins, [*begins[1:], len(path.gap)], strict=True):
        if end <= len(path.gap) // 2:
            continue
        ratio = path.distance[begin:end, sample] / path.step[begin:end, sample]
        for gap in range(2, len(ratio) // 2 + 1):
            multiples = range(1, min(4, len(ratio) // gap) + 1)
            if all(float(ratio[k * gap - 1]) <= _NEAR for k in multiples):
                return gap
            # Two steps of one that turns by 60 degrees or less lead 1.7 times as far as one.
            smooth = _LONG <= gap <= len(ratio) // 4 and _STRAIGHT <= ratio[1] <= ratio[2]
            if smooth and float(ratio[gap - 2 : gap + 1].max()) <= _SMOOTH:
                spread = [slice(k * gap - k // 2 - 1, k * gap + k // 2) for k in multiples]
                if all(float(ratio[each].min()) <= _BETWEEN for each in spread):
                    return gap
    return None
