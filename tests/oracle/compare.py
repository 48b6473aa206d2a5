"""Compare what two versions of the library make of the same draws.

    python tests/oracle/compare.py OLD.npz NEW.npz

A draw differs if a status is another, a count differs by more than one (`slack`), or a value, a
residual or a gradient is apart by more than the tolerances of both solves allow: 20 rtol / (1 - L)
of its size for values, that over 1 - L for gradients, and again for second derivatives, with L the
Lipschitz constant of f (0.9 where f does not contract). Of samples that did not converge, values
may be a tenth apart and residuals a factor of two, but of an expanding f only statuses and counts
are compared; gradients are not, since they are those of no fixed point. Prints one line for each
draw that differs, with its reason from `REASONS`; exits with 1 if one has none. The reasons are
those of differences from `before-core`, the last three from the default before `Auto` chose.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draws import Draw, draw

REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"Implicit autocast$",
        r"adjoint_(status|evals)",
        "the tolerance of the linear solve, 1e-4, is no finer than what f rounds to, 3.9e-3",
    ),
    (
        r"expanding .* Implicit\(Neumann\) \w+$",
        r"adjoint_evals",
        "a series that diverges is given up after one search for a stall, not two",
    ),
    (
        r"Implicit\(Neumann\) autocast$",
        r"adjoint_evals",
        "the residual of a series is its next term, which has the rounding of all before",
    ),
    (
        r"symmetric 0\.9 Auto Implicit\(BiCGSTAB\) autocast$",
        r"adjoint_status",
        "a state that has grown is solved at 10 rtol of its start: forward ends at another state",
    ),
    (
        r" Auto ",
        r"status|evals|residual|value|adjoint_(status|evals)|grad_\w|second_\w",
        "Auto begins as plain iteration now, and accelerates from where that pays",
    ),
    (
        r"Implicit \w+$",
        r"adjoint_(status|evals)|grad_\w|second_\w",
        "so does the default adjoint, Fallback(first=Auto()): gradients to its rtol of 1e-4",
    ),
    (
        r" Unrolled \w+$",
        r"records|grad_\w|second_\w",
        "the value is the step after the last evaluation, of which every sample has the gradient",
    ),
)
"""Expected differences: patterns of the draw and of the first words of all that differs in it, and
why. The first four were confirmed: with the old rule put back, the differences are gone."""

CONVERGED, STOPPED = 0, (1, 2)  # MAX_EVALS and STALLED


def bound(given: Draw, key: str) -> float:
    """How far two right answers may be apart, as a fraction of their size."""
    margin = 1 - given.rate if given.rate < 1 else 0.1
    power = {"value": 1, "grad": 2, "second": 3}[key.partition("_")[0]]
    rounding = {"autocast": 0.05, "float32": 2e-5}.get(given.mode, 1e-9)
    floor = 1e-5 if power == 3 else 0.0  # through an unrolled solve, rounding is amplified
    return min(0.5, max(floor, (20 * given.rtol + rounding) / margin**power))


def slack(given: Draw) -> int:
    """How far counts may be apart: rounding decides more of them where f expands or is coarse."""
    return 3 if given.mode == "autocast" or given.rate >= 1 else 1


def apart(old: np.ndarray, new: np.ndarray) -> float:
    """||old - new|| / ||old||; infinite where only one of them is finite."""
    finite = np.isfinite(old)
    if not np.array_equal(finite, np.isfinite(new)):
        return float("inf")
    old, new = np.where(finite, old, 0), np.where(finite, new, 0)
    return float(np.linalg.norm(old - new) / max(np.linalg.norm(old), 1e-300))


def differences(
    given: Draw, old: dict[str, np.ndarray], new: dict[str, np.ndarray]
) -> Iterator[str]:
    """What differs between two records of a draw."""
    if old.keys() != new.keys():
        yield f"records {', '.join(sorted(set(old) ^ set(new)))} in one version only"
        return
    if "error" in old:
        if str(old["error"]) != str(new["error"]):
            yield f"raises {new['error']}, was {old['error']}"
        return
    for key in sorted(old):
        if old[key].shape != new[key].shape:
            yield f"{key} has the shape {new[key].shape}, was {old[key].shape}"
            return
    for key in ("status", "adjoint_status", "bytes"):
        if key in old and not np.array_equal(old[key], new[key]):
            yield f"{key} {new[key].tolist()}, was {old[key].tolist()}"
    for key in ("evals", "adjoint_evals"):
        if key in old and np.abs(old[key] - new[key]).max(initial=0) > slack(given):
            yield f"{key} {new[key].tolist()}, was {old[key].tolist()}"
    good = old["status"] == CONVERGED
    low = np.minimum(old["residual"][good], new["residual"][good])
    high = np.maximum(old["residual"][good], new["residual"][good])
    if (high > np.maximum(1.5 * given.rtol, 1e3 * low)).any():
        yield f"residual {new['residual'].tolist()}, was {old['residual'].tolist()}"
    rows = good if good.ndim < old["value"].ndim else np.ones(len(old["value"]), bool)
    stopped = np.isin(old["status"], STOPPED) & (given.problem != "expanding")
    ratio = new["residual"][stopped] / np.maximum(old["residual"][stopped], 1e-30)
    if (np.abs(np.log2(np.maximum(ratio, 1e-30))) > 1).any():
        yield f"residual {new['residual'].tolist()}, was {old['residual'].tolist()}"
    if stopped.shape == old["value"].shape[: stopped.ndim]:
        for i in np.argwhere(stopped):
            place = tuple(i)
            if (distance := apart(old["value"][place], new["value"][place])) > 0.1:
                yield f"value of sample {i.tolist()}, not converged, is {distance:.1e} apart"
    if rows.shape != old["value"].shape[: rows.ndim]:
        rows = np.full(old["value"].shape[:1], good.all())
    for i in np.argwhere(rows):
        place = tuple(i)
        if (distance := apart(old["value"][place], new["value"][place])) > bound(given, "value"):
            yield f"value of sample {i.tolist()} is {distance:.1e} apart"
    if not good.all() or ("adjoint_status" in old and old["adjoint_status"].any()):
        return  # the gradient of a state that is no fixed point
    for key in sorted(old):
        if not key.startswith(("grad", "second")):
            continue
        # Row by row, so that a small sample is not lost beside a large one.
        each = (
            zip(old[key], new[key], strict=True) if key.endswith("_x") else [(old[key], new[key])]
        )
        distance = max((apart(*pair) for pair in each), default=0.0)
        if distance > bound(given, key):
            yield f"{key} is {distance:.1e} apart"


def read(path: Path) -> tuple[dict[str, Any], dict[int, dict[str, np.ndarray]]]:
    """What a record says of itself, and the record of each draw."""
    with np.load(path) as file:
        about = json.loads(str(file["about"]))
        records: dict[int, dict[str, np.ndarray]] = {n: {} for n in range(about["count"])}
        for name in file.files:
            number, _, key = name.partition("/")
            if key:
                records[int(number)][key] = file[name]
    return about, records


def reason_for(given: Draw, found: Sequence[str]) -> str | None:
    """The reason that explains all differences of a draw; None if there is none."""
    for draws, keys, why in REASONS:
        words = [line.partition(" ")[0] for line in found]
        if re.search(draws, str(given)) and all(re.fullmatch(keys, word) for word in words):
            return why
    return None


def compare(old: Path, new: Path) -> list[str]:
    """Lines on the draws that differ and for which `REASONS` has no reason; prints all."""
    (about, before), (other, after) = read(old), read(new)
    for key in ("seed", "count"):
        if about[key] != other[key]:
            sys.exit(f"{old} has the {key} {about[key]}, {new} has {other[key]}")
    unexplained, differing = [], 0
    for number in sorted(before):
        given = draw(number, about["seed"])
        found = list(differences(given, before[number], after[number]))
        if not found:
            continue
        differing += 1
        line = f"{given}: {'; '.join(found)}"
        reason = reason_for(given, found)
        print(f"{line}\n    {reason or 'NO REASON'}")
        if reason is None:
            unexplained.append(line)
    print(f"{len(before)} draws, {differing} differ, {len(unexplained)} without a reason")
    return unexplained


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    given = parser.parse_args()
    sys.exit(1 if compare(given.old, given.new) else 0)


if __name__ == "__main__":
    main()
