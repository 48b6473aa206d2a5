"""The audit of an inexact gradient in training, and what a checkpoint keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from equilibria.stability.audit import AdjointAudit, Audit


def state(audit: AdjointAudit) -> dict[str, Any]:
    """Return the latest finding, as plain numbers; `restore` takes it back."""
    if audit.latest is not None:
        return asdict(audit.latest)
    adjoint = audit.adjoint
    return {"step": None, "adjoint": type(adjoint.now).__name__, "level": adjoint.level}


def restore(audit: AdjointAudit, found: Mapping[str, Any]) -> None:
    """Go back to a `state`."""
    audit.resume(found["level"])
    audit.latest = None if found["step"] is None else Audit(**found)
