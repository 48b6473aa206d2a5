"""Figures 1a, 1b and 10a: residuals and Jacobian grow in training, and not with the penalty."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments.case import Case, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.jacobian import images
from equilibria.experiments.published import BAI_2021

__all__ = ["EXPERIMENT", "NAMES", "cases", "show"]

NAMES = ("plain", "decay", images.regularised(images.BEST))
FORWARD, ADJOINT = images.PROBED
Epoch = Mapping[str, Any]
Figure = Callable[[Epoch], float | None]


def cases(scale: Scale) -> Sequence[Case]:
    """The trainings, which probe the network after each epoch, seed by seed."""
    return [
        images.case(name, scale, seed)
        for seed in images.ALL
        for name in NAMES
        if seed in images.SEEDS[name]
    ]


def _probed(figure: str) -> Figure:
    return lambda epoch: (epoch.get("probe") or {}).get(figure)


def _radius(epoch: Epoch) -> float | None:
    return (epoch.get("spectral_radius") or {}).get("mean")


def _evals(epoch: Epoch) -> float | None:
    evals = epoch["train"]["forward"]["evals"]
    return None if evals is None else evals["mean"]


def _accuracy(epoch: Epoch) -> float | None:
    judged = epoch.get("valid") or epoch.get("test")
    return None if judged is None else 100 * judged["accuracy"]


FIGURES: Mapping[str, Figure] = {
    f"forward residual after {FORWARD}": _probed("forward"),
    f"adjoint residual after {ADJOINT}": _probed("adjoint"),
    "||J||² / d": _probed("norm"),
    "spectral radius": _radius,
}


def show(done: Results) -> Page:
    """A panel for each figure, means over the seeds, and how far each network has come."""
    titles = {
        f"forward residual after {FORWARD}": f"Fig. 1a: forward residual after {FORWARD}",
        f"adjoint residual after {ADJOINT}": f"Fig. 10a: adjoint residual after {ADJOINT}",
        "||J||² / d": "Fig. 1b: ||J||² / d at z*",
        "spectral radius": "Fig. 7: spectral radius of J at z*",
    }
    panels = [_panel(done, titles[name], figure) for name, figure in FIGURES.items()]
    panels += [_scatter(done), _panel(done, "evaluations in training, mean", _evals, log=False)]
    return Page([_table(done)], panels)


def _runs(done: Results, name: str) -> list[Sequence[Epoch]]:
    """Metrics of the seeds that are done."""
    found = [done.get(images.key(name, seed)) for seed in images.SEEDS[name]]
    return [each.value["metrics"] for each in found if each is not None and each.value["metrics"]]


def _judged(done: Results) -> str:
    """The images of which epochs are judged: those set aside, or the test images without any."""
    epochs = [epoch for name in NAMES for run in _runs(done, name) for epoch in run]
    return "test" if epochs and "valid" not in epochs[0] else "validation"


def _course(runs: Sequence[Sequence[Epoch]], figure: Figure) -> list[list[float]]:
    """The figure of all seeds that have it, epoch by epoch."""
    longest = max((len(run) for run in runs), default=0)
    return [
        [value for run in runs if epoch < len(run) and (value := figure(run[epoch])) is not None]
        for epoch in range(longest)
    ]


def _panel(done: Results, title: str, figure: Figure, *, log: bool = True) -> Panel:
    series: list[Series] = []
    for colour, name in enumerate(NAMES):
        values = _course(_runs(done, name), figure)
        many = any(len(each) > 1 for each in values)
        series.append(
            Series(
                label=images.WORDS[name],
                x=list(range(1, len(values) + 1)),
                y=[statistics.fmean(each) if each else None for each in values],
                low=[min(each, default=None) for each in values] if many else (),
                high=[max(each, default=None) for each in values] if many else (),
                colour=colour,
                style="marked",
            )
        )
    return Panel(title=title, x="epoch", y="", series=series, log_y=log, whole_x=True, zero=not log)


def _scatter(done: Results) -> Panel:
    series: list[Series] = []
    for colour, name in enumerate(NAMES):
        epochs = [epoch for run in _runs(done, name) for epoch in run]
        series.append(
            Series(
                label=images.WORDS[name],
                x=[_probed("norm")(epoch) for epoch in epochs],
                y=[_probed("forward")(epoch) for epoch in epochs],
                colour=colour,
                style="points",
            )
        )
    return Panel(
        title="Fig. 1b: forward residual against ||J||² / d",
        x="||J||² / d",
        y=f"residual after {FORWARD}",
        series=series,
        log_x=True,
        log_y=True,
    )


def _table(done: Results) -> Table:
    rows: list[list[Any]] = []
    for name in NAMES:
        for seed in images.SEEDS[name]:
            found = done.get(images.key(name, seed))
            head: list[Any] = [images.WORDS[name], seed]
            metrics = [] if found is None else found.value["metrics"]
            if found is None or not metrics:
                ended = NOT_RUN if found is None else "diverged in the first epoch"
                rows.append([*head, ended, *[None] * (2 * len(FIGURES) + 1)])
                continue
            first, last = metrics[0], metrics[-1]
            diverged = found.value["diverged"]
            row = [*head, "diverged" if diverged else _accuracy(last), _evals(last)]
            for figure in FIGURES.values():
                row += [figure(first), figure(last)]
            rows.append(row)
    return Table(
        title="Residuals and Jacobian over the training of an MDEQ on images",
        columns=[
            *("network", "seed", f"{_judged(done)} accuracy, %"),
            "evaluations in training, last epoch",
            *(f"{name}, {when} epoch" for name in FIGURES for when in ("first", "last")),
        ],
        rows=rows,
        note="Residuals: relative, of held-out images, without dropout, after so many evaluations "
        "or products whatever training allows itself "
        f"({images.LIMIT} of either without the penalty, {images.THIRD} with it). Weight decay: "
        f"{images.DECAY:g}, of the others the recipe's. The paper's figure shows the unregularised "
        "residuals growing over the training, an adjoint residual above .05 with weight decay, "
        "and neither with the penalty; its values are not printed.",
    )


EXPERIMENT = Experiment(
    name="jacobian/growth",
    paper=BAI_2021,
    subject="Figures 1a, 1b, 10a",
    description="Residuals and the Jacobian's norm over the training of an MDEQ, by the penalty.",
    cases=cases,
    show=show,
)
