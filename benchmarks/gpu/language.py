"""Train a recipe of the papers' size in calls of a few minutes, each of which goes on where the
last one ended.

``python benchmarks/gpu/language.py lm-ptb-trellisnet-paper --budget 9`` trains for nine minutes,
saves and says how far it is; the same line goes on. At the end results/gpu-<recipe>.json and .svg
have perplexity, time, evaluations and tokens a second of each epoch, and of the test text.
"""

from collections.abc import Sequence
from typing import Any

from training import call

from equilibria.bench.record import Table
from equilibria.experiments.case import Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import Page


def show(done: Results) -> Page:
    """Perplexity, time and evaluations of each epoch, and of the test text at the end."""
    rows: list[list[Any]] = []
    series: list[Series] = []
    for key, found in done.items():
        value = found.value
        minutes = 0.0
        times: list[float] = []
        for epoch in value["metrics"]:
            minutes += epoch["seconds"] / 60
            times.append(minutes)
            rows.append([key, epoch["epoch"], minutes, *_figures(epoch, "valid")])
        if value["evaluation"] is not None:
            whole = {"test": value["evaluation"]}
            rows.append([key, "test", minutes, *_figures(whole, "test")])
        perplexity = [epoch["valid"]["perplexity"] for epoch in value["metrics"]]
        series.append(Series(label=key, x=times, y=perplexity, style="marked"))
    return Page(
        [
            Table(
                title="Training at the papers' size",
                columns=[
                    *("recipe", "epoch", "minutes", "perplexity", "evaluations, mean"),
                    *("converged, %", "tokens a second"),
                ],
                rows=rows,
                note="Perplexity of the validation text after each epoch, and of the test text at "
                "the end; minutes of training steps alone.",
            )
        ],
        [
            Panel(
                title="validation perplexity",
                x="minutes",
                y="perplexity",
                series=series,
                log_y=True,
            )
        ],
    )


def _figures(epoch: dict[str, Any], split: str) -> list[Any]:
    forward = epoch[split]["forward"]
    evals, status = forward["evals"], forward["status"]
    return [
        epoch[split]["perplexity"],
        None if evals is None else evals["mean"],
        None if status is None else 100 * status["CONVERGED"],
        epoch["tokens"] / epoch["seconds"] if "seconds" in epoch else None,
    ]


def _said(epoch: dict[str, Any]) -> str:
    return f"validation perplexity {epoch['valid']['perplexity']:.2f}"


def main(argv: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    call(
        "language.py",
        argv,
        description=__doc__ or "",
        example="lm-ptb-trellisnet-paper",
        paper="Bai et al. 2019 and 2021",
        show=show,
        said=_said,
    )


if __name__ == "__main__":
    main()
