"""Where plain iteration stops converging; where the theory has the radius reach 1."""

from functools import partial
from typing import Any

import numpy as np

from equilibria.run.studies.results import Frame
from equilibria.run.studies.study import Study
from equilibria.run.studies.views import Chart, Pivot, curve, first
from papers.initialisation import wide
from papers.initialisation.common import PAPER, lines


def half(rows: Frame) -> float | None:
    """The scale at which the share of what converges first falls to a half, interpolated."""
    shares = rows.set_index("scale")["converged"].dropna()
    below = np.flatnonzero(shares <= 0.5)
    if not len(below):
        return None
    last = shares.iloc[max(0, below[0] - 1) : below[0] + 1][::-1]
    return float(np.interp(0.5, last, last.index))


def _rules(low: float, high: float) -> list[Any]:
    """A vertical rule at each predicted scale; Gaussian and orthogonal weights share one."""
    return [
        curve(f"sqrt(V*) {label}", (low, high), float, lambda _, at=at: at(), color=color)
        for label, at, color in (
            ("Gaussian, orthogonal", partial(wide.critical, "gaussian"), 7),
            ("GOE, the paper's theory", partial(wide.critical, "goe", reaction=False), 5),
            ("GOE, with the reaction", partial(wide.critical, "goe"), 3),
        )
    ]


STUDY = Study(
    item="Figure 4",
    title="Where plain iteration stops converging",
    points=wide.points,
    rows_of="initialisation/variance",
    views=[
        Pivot(
            title="Figure 4: the scale at which plain iteration stops converging, hard-tanh",
            index={"ensemble": "ensemble"},
            each="scale",
            words={"ensemble": PAPER},
            values={
                "sqrt(V*), the paper's theory": lambda rows: wide.critical(
                    rows["ensemble"].iloc[0], reaction=False
                ),
                "sqrt(V*), with the reaction": lambda rows: wide.critical(rows["ensemble"].iloc[0]),
                "half converge up to sqrt(V)": half,
                "first scale at which one fails": lambda rows: rows.loc[
                    rows["converged"] < 1, "scale"
                ].min(),
            },
            note=f"{wide.AVERAGED}. Converged: ||h_(t+1) - h_t|| < {wide.SETTLED:g} ||h_t|| at the "
            "last step; the half is interpolated between scales. Two effects keep it below the "
            f"prediction: {wide.STEPS} steps reach {wide.SETTLED:g} only where the radius is below "
            f"{wide.SETTLED ** (1 / wide.STEPS):.3f}, and single draws of this width have a larger "
            "radius than the limit (Figure 3).",
        ),
        Pivot(
            title="Length of the last step and share that converged",
            index={"scale": "sqrt(V)"},
            each="scale",
            across="ensemble",
            words={"ensemble": PAPER},
            values={
                "{level}: ||h_(t+1) - h_t||": "residual",
                "{level}: converged, %": first("converged", 100),
            },
            note=f"{wide.AVERAGED}; mean length.",
        ),
        Chart(
            title=f"Fig. 4: the last of {wide.STEPS} steps",
            x="sqrt(V)",
            y="||h_(t+1) - h_t||",
            marks=[lines(x="scale", y="residual", style="marked"), *_rules(1e-10, 1e2)],
            log_y=True,
            span_y=(1e-10, 1e3),
        ),
        Chart(
            title=f"converged within {wide.STEPS} steps",
            x="sqrt(V)",
            y="samples, %",
            marks=[lines(x="scale", y="converged", scale=100, style="marked"), *_rules(0, 100)],
            span_y=(-5, 105),
        ),
    ],
)
