"""What a run has recorded: per epoch, and at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from equilibria.run.studies.study import Context


def summary(context: Context) -> dict[str, Any]:
    """Figures of the finished run: on the test split, and its cost.

    `parameters`, `source` of the data, `seconds` of all steps, `conditions` that these depend on,
    `last_epoch`, `diverged` (the message), every metric of the task on the test split, and `evals`
    and `converged` (a share) of its solves.
    """
    run = context.run
    figures = {k: v for k, v in run.evaluation.items() if isinstance(v, int | float)}
    return {
        "parameters": run.info["parameters"],
        "source": run.info.get("source"),
        "seconds": run.seconds,
        "conditions": run.origin.conditions,
        "last_epoch": len(run.metrics),
        "diverged": run.diverged,
        **figures,
        **solves(run.evaluation.get("forward")),
    }


def epochs(context: Context) -> Iterable[dict[str, Any]]:
    """One row for each epoch: `epoch`, `step`, `epoch_seconds`; training's and held-out metrics.

    Metrics are called `train_loss` or `valid_accuracy`, after the split; the means of training's
    solves `forward`, `adjoint`, and the share that converged `forward_converged`,
    `adjoint_converged`; the mean spectral radius `radius`; what was probed `probe_NAME`.
    """
    for record in context.run.metrics:
        row: dict[str, Any] = {name: record[name] for name in ("epoch", "step")}
        row["epoch_seconds"] = record["seconds"]
        for split in ("train", "valid", "test"):
            figures = record.get(split) or {}
            row |= {f"{split}_{k}": v for k, v in figures.items() if isinstance(v, int | float)}
        for name in ("forward", "adjoint"):
            found = solves(record["train"].get(name))
            row |= {name: found.get("evals"), f"{name}_converged": found.get("converged")}
        row["radius"] = (record.get("spectral_radius") or {}).get("mean")
        row |= {f"probe_{k}": v for k, v in (record.get("probe") or {}).items()}
        yield row


def solves(tally: Mapping[str, Any] | None) -> dict[str, Any]:
    """Mean and maximum of the evaluations of solves, and the share that converged; {} of none."""
    if not tally or tally.get("evals") is None:
        return {}
    evals, status = tally["evals"], tally["status"]
    return {"evals": evals["mean"], "evals_max": evals["max"], "converged": status["CONVERGED"]}
