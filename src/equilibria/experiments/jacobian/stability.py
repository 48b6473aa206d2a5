"""Figures 3, 7, 8, 10b and 10c: what keeps a DEQ-Transformer stable, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments import variants
from equilibria.experiments.case import Case, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import Experiment, Page, Scale
from equilibria.experiments.published import BAI_2021

__all__ = ["EXPERIMENT", "cases", "show"]

FIGURE_3 = ("post", "pre", "unnormalised", "post-jr", "pre-jr")
FIGURE_7 = ("post", "post-15", "post-jr")
FIGURE_8 = ("post", "decay", "decay-more", "post-jr")
PROBED = variants.PROBED
NAMES = tuple(dict.fromkeys((*FIGURE_3, *FIGURE_7, *FIGURE_8)))
Epoch = Mapping[str, Any]


def cases(scale: Scale) -> Sequence[Case]:
    """The short trainings, which probe the network after each epoch."""
    return [variants.case(name, scale) for name in NAMES]


def show(done: Results) -> Page:
    """A panel for each of the paper's, and what each variant came to."""
    panels = [
        _panel(done, FIGURE_3, f"Fig. 3a: forward residual after {PROBED}", _probed("forward")),
        _panel(done, FIGURE_3, f"Fig. 3b: adjoint residual after {PROBED}", _probed("adjoint")),
        _panel(done, FIGURE_7, "Fig. 7: spectral radius, mean", _radius),
        _panel(done, FIGURE_7, "Fig. 7: validation perplexity", _perplexity),
        _panel(done, FIGURE_8, f"Fig. 8: forward residual after {PROBED}", _probed("forward")),
        _scatter(done),
        _panel(done, FIGURE_8, "Fig. 10c: ||J||² / d", _probed("norm")),
    ]
    return Page([_table(done)], panels)


def _table(done: Results) -> Table:
    rows: list[list[Any]] = []
    for name in NAMES:
        variant = variants.VARIANTS[name]
        found = done.get(variants.key(name))
        metrics = found.value["metrics"] if found is not None else []
        if found is None or not metrics:
            ended = None if found is None else "diverged in the first epoch"
            rows.append([variant.words, variant.limit, ended, *[None] * 6])
            continue
        last, first = metrics[-1], metrics[0]
        rows.append(
            [
                variant.words,
                variant.limit,
                "diverged" if found.value["diverged"] else _perplexity(last),
                _probed("forward")(first),
                _probed("forward")(last),
                _probed("adjoint")(last),
                _radius(last),
                _probed("norm")(first),
                _probed("norm")(last),
            ]
        )
    return Table(
        title="Stability of DEQ-Transformers, short trainings on Penn Treebank",
        columns=[
            *("network", "limit in training", "validation perplexity"),
            *("forward residual, first epoch", "last epoch", "adjoint residual, last epoch"),
            *("spectral radius, last epoch", "||J||²/d, first epoch", "last epoch"),
        ],
        rows=rows,
        note=f"Residuals: relative, after {PROBED} evaluations or products, without dropout; one "
        "seed. The paper trains 60 to 100 thousand steps on WikiText-103: there pre-LN collapses "
        "at 25 thousand and no weight norm at 18 thousand, weight decay (1e-6) does not help, and "
        "the penalty holds residual and radius. Its figures' values are not printed.",
    )


def _panel(
    done: Results, names: Sequence[str], title: str, figure: Callable[[Epoch], float | None]
) -> Panel:
    series: list[Series] = []
    for name in names:
        found = done.get(variants.key(name))
        metrics = found.value["metrics"] if found is not None else []
        series.append(
            Series(
                label=_short(name),
                x=[epoch["step"] for epoch in metrics],
                y=[figure(epoch) for epoch in metrics],
                colour=NAMES.index(name),
                style="marked",
            )
        )
    return Panel(title=title, x="step", y="", series=series, log_y=True, whole_x=True)


def _scatter(done: Results) -> Panel:
    series: list[Series] = []
    for name in NAMES:
        found = done.get(variants.key(name))
        metrics = found.value["metrics"] if found is not None else []
        series.append(
            Series(
                label=_short(name),
                x=[_probed("norm")(epoch) for epoch in metrics],
                y=[_probed("forward")(epoch) for epoch in metrics],
                colour=NAMES.index(name),
                style="points",
            )
        )
    return Panel(
        title="Fig. 10b: forward residual against ||J||² / d",
        x="||J||² / d",
        y="",
        series=series,
        log_x=True,
        log_y=True,
    )


def _short(name: str) -> str:
    return variants.VARIANTS[name].words.removeprefix("DEQ, ")


def _probed(figure: str) -> Callable[[Epoch], float | None]:
    return lambda epoch: (epoch.get("probe") or {}).get(figure)


def _radius(epoch: Epoch) -> float | None:
    return (epoch.get("spectral_radius") or {}).get("mean")


def _perplexity(epoch: Epoch) -> float | None:
    return epoch["valid"]["perplexity"]


EXPERIMENT = Experiment(
    name="jacobian/stability",
    paper=BAI_2021,
    subject="Figures 3, 7, 8, 10b, 10c",
    description="Pre- and post-LN, weight norm, weight decay, Jacobian penalty: residuals, radius.",
    cases=cases,
    show=show,
)
