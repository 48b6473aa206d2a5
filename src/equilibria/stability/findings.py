"""From numbers to words: all findings of an examination.

Every function that is called here looks at one part of an examination and returns one finding. Its
docstring says where its thresholds lie and why there. A sentence about solutions is said of the
samples that converged, and of no others.
"""

from __future__ import annotations

from equilibria.metric import Metric
from equilibria.stability import findings_forward as forward
from equilibria.stability.examination import (
    Depth,
    Examination,
    Finding,
    Severity,
    share_converged,
    unsolved,
)
from equilibria.stability.findings_backward import backward, derivatives, error, gradient
from equilibria.words import percent, plural

# --- findings depth -------------------------------------------------------------------------------

# The finding about depth: what further evaluations buy.


def depth(examination: Examination) -> Finding | None:
    """Is the depth used, and is all of it needed?

    Used: one evaluation alone costs 1 % of the figure or more (where nothing judges the answer:
    leaves the state 1 % or more away). Otherwise the layer works like an ordinary one, and is only
    dearer: watch. The advice names the fewest evaluations within half a per cent of the full solve.

    Where nothing converged there is no full solve to compare with, and a network whose answers are
    no better than chance shows nothing about depth: the finding says just that.
    """
    found = examination.depth
    first, final = found.points[0], found.figure
    if final is None or first.figure is None:
        if unsolved(examination):
            return None  # the distance from where a solve was given up says nothing
        text = f"One evaluation leaves the state {percent(first.distance)} away from the answer"
        return _praise(text) if first.distance >= 0.01 else _warn(text)
    metric = Metric(**found.metric)
    text = (
        f"{metric.title} is {metric.format(first.figure)} after one evaluation and "
        f"{metric.format(final)} {_end(examination)}"
    )
    if unsolved(examination):
        return Finding(
            "Depth",
            "watch",
            f"{text}: what a full solve would give is not known.",
            "See Convergence first.",
        )
    if found.chance is not None and not _worse(found, found.chance, final) > 0:
        return Finding(
            "Depth",
            "watch",
            f"{text}, no better than the same answers, exchanged among the samples, may be by "
            f"chance ({metric.format(found.chance)}): whether depth helps cannot be seen.",
            "The network has not learnt to tell these samples apart. Train it further, or examine "
            "more samples.",
        )
    gain = _worse(found, first.figure, final)
    if gain <= -0.01:
        return Finding(
            "Depth",
            "watch",
            f"{text}: further evaluations make it worse.",
            "The network was not trained for the solution that it is judged by. Train with the "
            "solver and the tolerance in use, and see Uniqueness.",
        )
    if gain < 0.01:
        return _warn(text)
    enough = [
        p.evals
        for p in found.points
        if p.figure is not None and _worse(found, p.figure, final) <= 0.005
    ]
    full = share_converged(examination) == 1
    if full and enough and enough[0] < examination.forward.evals.mean:
        count = plural(enough[0], "evaluation")
        return _praise(text, f"To save time, stop after {count}: within 0.5 % of a full solve.")
    return _praise(text)


def _end(examination: Examination) -> str:
    """Where the last figure belongs."""
    share = share_converged(examination)
    if share == 1:
        return "at the solution"
    return (
        "where the solver stops"
        if share == 0
        else f"where the solves end, of which {percent(share)} converged"
    )


def _worse(found: Depth, figure: float, end: float) -> float:
    """What a figure is worse than that of the full solve, relative to it."""
    worse = end - figure if Metric(**found.metric).higher_is_better else figure - end
    return worse / (abs(end) or 1.0)


def _praise(text: str, advice: str = "") -> Finding:
    return Finding("Depth", "healthy", f"{text}: the depth is used.", advice)


def _warn(text: str) -> Finding:
    return Finding(
        "Depth",
        "watch",
        f"{text}: the layer hardly uses its depth.",
        "If the network is as good as it should be, an ordinary layer would do as well here. Depth "
        "shows on harder tasks, and with a smaller cell.",
    )


# --- findings -------------------------------------------------------------------------------------


_ORDER: tuple[Severity, ...] = ("unhealthy", "watch", "healthy")


def findings(examination: Examination) -> tuple[Finding, ...]:
    """All findings, the worst first."""
    if examination.broken:
        return (forward.weights(examination),)
    if examination.forward.status.get("NONFINITE", 0.0) == 1:
        return (forward.convergence(examination),)  # nothing else could be measured
    found = (
        forward.convergence(examination),
        forward.accuracy(examination),
        forward.precision(examination),
        forward.cost(examination),
        forward.contraction(examination),
        forward.sensitivity(examination),
        forward.uniqueness(examination),
        derivatives(examination),
        gradient(examination),
        backward(examination),
        error(examination),
        depth(examination),
    )
    return tuple(
        sorted((f for f in found if f is not None), key=lambda f: _ORDER.index(f.severity))
    )
