"""What `equilibria flow` says of pairs of frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from equilibria.solve import Status
from equilibria.words import plural

_STARTS = {"zero": "from zero", "cut": "a cut: from zero", "last": "from the last"}


@dataclass
class Totals:
    """What all rows say together."""

    read: int = 0
    errors: list[str] = field(default_factory=list)
    evaluations: int = 0
    missed: int = 0
    warm: int = 0
    compared: int = 0
    cold: list[tuple[int, int, float]] = field(default_factory=list)
    """Of pairs solved both ways that converged both ways: evaluations from the last equilibrium and
    from zero, and how far apart their flows are."""
    cuts: int = 0
    stopped: int = 0
    late: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a row."""
        if row["result"] == "error":
            self.errors.append(row["error"])
            return
        self.read += 1
        self.evaluations += row["evaluations"]
        self.missed += row.get("status", Status.CONVERGED.name) != Status.CONVERGED.name
        self.warm += row.get("start") == "last"
        self.cuts += row.get("start") == "cut"
        self.stopped += bool(row.get("stopped"))
        self.late += bool(row.get("late"))
        if "evaluations_from_zero" not in row:
            return
        self.compared += 1
        if {row["status"], row["status_from_zero"]} == {Status.CONVERGED.name}:
            both = row["evaluations"], row["evaluations_from_zero"], row["distance_from_zero"]
            self.cold.append(both)


def describe_row(row: Mapping[str, Any], name: str) -> str:
    """What is said of a pair."""
    if row["result"] == "error":
        return f"{name}: {row['error']}"
    ended = f", {row['status']}" if "status" in row else ""
    parts = [f"{name}: {row['evaluations']} evaluations{ended}", f"moves {_pixels(row['moves'])}"]
    parts.append(f"{row['milliseconds']:.0f} ms")
    if (start := row.get("start")) is not None:
        parts.append(_STARTS[start])
    if "evaluations_from_zero" in row:
        parts[-1] += f", {row['evaluations_from_zero']} from zero"
    if row.get("stopped"):
        parts.append(f"stopped by the deadline at {row['allowed']}")
    if row.get("late"):
        parts.append("late")
    if "cut_to_512" in row:
        parts.append(f"{row['cut_to_512']:,} pixels cut to 512")
    return "; ".join(parts)


def _pixels(length: float) -> str:
    return f"{length:.2g} px"


def describe_saving(totals: Totals) -> str:
    """What warm starts have saved, as far as it was measured."""
    begun = (
        f"reuse: {totals.warm:,} of {plural(totals.read, 'pair')} started from the last solution; "
        f"{plural(totals.cuts, 'cut')} detected"
    )
    if not totals.warm:
        return f"{begun}; no evaluation was saved"
    if not totals.compared:
        return f"{begun}; the saving was not measured (--compare 10 does, on every tenth)"
    number = len(totals.cold)
    begun += (
        f"; {plural(totals.compared, 'pair')} solved from zero too, {number:,} converged both ways"
    )
    if not number:
        return begun
    warm, cold, apart = zip(*totals.cold, strict=True)
    return (
        f"{begun}: {sum(warm) / number:.1f} evaluations against {sum(cold) / number:.1f} "
        f"({sum(warm) / sum(cold):.2f} x), flows at most {_pixels(max(apart))} apart (RMS)"
    )
