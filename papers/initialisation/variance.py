"""How long h* is: Theorem 3.1 fits Gaussian and orthogonal weights; GOE needs more."""

from functools import partial

from equilibria.nn.init import Ensemble
from equilibria.run.studies.study import Study
from equilibria.run.studies.views import Chart, Derived, curve, first
from papers.initialisation import wide
from papers.initialisation.common import lines


def square(ensemble: Ensemble, scale: float, *, reaction: bool) -> float | None:
    """h*.h* / N; with the reaction beyond the transition too: where iteration wanders, it fits."""
    found = wide.field(ensemble, scale, reaction=reaction)
    return found and found.square


PLAIN, CAVITY = partial(square, reaction=False), partial(square, reaction=True)
REACTION = partial(curve, "GOE, with the reaction", wide.LINES, partial(CAVITY, "goe"), color=3)
VIEWS = [
    wide.table(
        title="Figure 2: h*.h* / N against theory, hard-tanh",
        values={
            "measured": "length",
            "Theorem 3.1": "plain",
            "with the reaction": "cavity",
            "deviation from Theorem 3.1, %": "off_plain",
            "deviation with the reaction, %": "off_cavity",
            "converged, %": first("converged", 100),
        },
        note=f"{wide.AVERAGED}. Where the iteration does not converge, h is its last state. The "
        "reaction of symmetric weights (cavity method) is not in the paper; its equations have no "
        "solution at large scales, and it is zero for the other ensembles.",
    ),
    Chart(
        title="Fig. 2: measured against predicted",
        x="Var h* by Theorem 3.1",
        y="h*.h* / N",
        marks=[
            lines(x="plain", y="length", style="marked"),
            curve("Theorem 3.1", (0, 4), partial(PLAIN, "goe"), partial(PLAIN, "goe")),
            REACTION(partial(PLAIN, "goe")),
        ],
    ),
    Chart(
        title="the same against the scale",
        x="sqrt(V)",
        y="h*.h* / N",
        marks=[
            lines(x="scale", y="length", style="points"),
            curve("Theorem 3.1", wide.LINES, partial(PLAIN, "gaussian")),
            REACTION(),
        ],
        log_y=True,
    ),
]

STUDY = Study(
    item="Figure 2",
    title="The length of h*",
    points=wide.points,
    views=[Derived(wide.add_predictions("length", square), view) for view in VIEWS],
)
