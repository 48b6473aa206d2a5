"""Per-process state, redistributed when a run resumes with a different number of processes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch.utils import _pytree as pytree

from equilibria.run import processes
from equilibria.run.tally import Tally
from equilibria.run.tasks import Part
from equilibria.stability.audit import AdjointAudit, Audit

__all__ = ["deal"]


def deal(
    states: Sequence[Mapping[str, Any]], part: Part, rows: int, *, seed: int, step: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the state of one process, computed from those of a different number of processes.

    State of samples moves with them. Running sums go to the first process. The draws of a step are
    keyed to its samples and need no state; the global random generators, which other code may have
    used, are reseeded, differently for each process and step.

    Args:
        states: of all processes that saved the run, in order.
        part: the share of this process.
        rows: rows per step, over all processes.
        seed: of the run.
        step: number of steps taken so far.

    Returns:
        The state, and a note on everything that differs from an uninterrupted run.
    """
    first, notes = states[0], []
    found = dict(first)
    found["random"] = processes.seeded(seed + part.index)
    if any(s["random"] != processes.seeded(seed + index) for index, s in enumerate(states)):
        again = random.Random(f"resumed {seed} {step} {part.index}").getrandbits(32)
        found["random"] = processes.seeded(again)
        notes.append("the global random generators, from which draws were taken, are reseeded")
    empty = Tally().state()
    found["tally"] = empty if part.index else Tally.total(s["tally"] for s in states).state()
    if first["stabiliser"] is not None:
        found["stabiliser"] = _stabiliser([s["stabiliser"] for s in states], part.index)
    found["carry"] = _carry([s["carry"] for s in states], part, rows)
    if first.get("neural") is not None:
        found["neural"] = states[part.index % len(states)]["neural"]
        if part.count > len(states):
            notes.append("each additional process uses the learned solver of an earlier one")
        else:
            notes.append("the learned solvers of processes that no longer exist are lost")
    return found, notes


def _stabiliser(states: Sequence[Mapping[str, Any]], index: int) -> dict[str, Any]:
    """Return the state with all sums on the first process."""
    found = dict(states[0])
    names = dict.fromkeys(name for s in states for name in s["counts"])
    total = {name: sum(s["counts"].get(name, 0.0) for s in states) for name in names}
    found["counts"] = {} if index else total
    for name in ("evals", "samples"):
        found[name] = 0 * states[0][name] if index else sum(s[name] for s in states)
    return found


def _carry(carries: Sequence[Any], part: Part, rows: int) -> Any:
    """Return this process's rows of the carry; rows are ordered by process, then by micro-batch."""
    if any(carry is None for carry in carries):
        return None
    pieces = [piece for carry in carries for piece in carry]
    if any(piece is None for piece in pieces):
        return [None] * len(carries[0])
    leaves = [pytree.tree_flatten(piece) for piece in pieces]
    spec = leaves[0][1]
    whole = [torch.cat(each) for each in zip(*(flat for flat, _ in leaves), strict=True)]
    count = len(carries[0])
    return [
        pytree.tree_unflatten(
            [each[part.cut(number, count).of(rows)].clone() for each in whole], spec
        )
        for number in range(count)
    ]


# --- auditing -------------------------------------------------------------------------------------

# The audit of an inexact gradient in training, and what a checkpoint keeps of it.


def audit_state(audit: AdjointAudit) -> dict[str, Any]:
    """Return the latest finding, as plain numbers; `restore` takes it back."""
    if audit.latest is not None:
        return asdict(audit.latest)
    adjoint = audit.adjoint
    return {"step": None, "adjoint": type(adjoint.now).__name__, "level": adjoint.level}


def restore_audit(audit: AdjointAudit, found: Mapping[str, Any]) -> None:
    """Go back to a `state`."""
    audit.resume(found["level"])
    audit.latest = None if found["step"] is None else Audit(**found)
