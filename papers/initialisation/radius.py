"""Largest eigenvalue of the Jacobian at the fixed point, predicted and measured."""

from functools import partial

from equilibria.nn.init import Ensemble
from equilibria.run.studies.study import Study
from equilibria.run.studies.views import Chart, Derived, curve, mean
from equilibria.theory import radius_at
from papers.initialisation import wide
from papers.initialisation.common import PAPER, lines


def radius(ensemble: Ensemble, scale: float, *, reaction: bool) -> float | None:
    """Return the predicted radius; without the reaction of symmetric weights, as the paper does."""
    if ensemble == "goe" and reaction and scale >= wide.critical(ensemble):
        return None
    found = wide.field(ensemble, scale, reaction=reaction)
    return None if found is None else radius_at(found)


PLAIN, CAVITY = partial(radius, reaction=False), partial(radius, reaction=True)


def _chart(ensemble: Ensemble, name: str) -> Chart:
    """Of an ensemble, against the scale."""
    where = {"ensemble": ensemble}
    marks = [
        lines(x="scale", y="radius", where=where, label="each draw", merge=None, style="points"),
        curve("the paper's theory", wide.LINES, partial(PLAIN, ensemble)),
    ]
    if ensemble == "goe":
        marks.append(curve("with the reaction", wide.LINES, partial(CAVITY, ensemble), color=3))
    return Chart(
        title=f"{name}: against the scale",
        x="sqrt(V)",
        y="largest |eigenvalue|",
        marks=marks,
        levels=[("stable below", 1.0)],
        span_y=(0, 2.5),
    )


VIEWS = [
    wide.table(
        title="Figure 3: largest |eigenvalue| of W diag(phi'(h*)), hard-tanh",
        values={
            "measured": mean("radius"),
            "the paper's theory": "plain",
            "with the reaction": "cavity",
            "deviation from the paper's, %": mean("off_plain"),
            "deviation with the reaction, %": mean("off_cavity"),
        },
        note=f"{wide.AVERAGED}; one input of one draw (GOE: of each draw). The paper's theory "
        "takes the law of h from Theorem 3.1; with the reaction (cavity method), h of symmetric "
        "weights has another law. Theorem 3.2 for Gaussian and orthogonal weights, C.1 for GOE. "
        "Beyond 1, h is not a fixed point but the state at which the iteration stopped.",
    ),
    Chart(
        title="Fig. 3: measured against the paper's theory",
        x="predicted largest |eigenvalue|",
        y="measured",
        marks=[
            lines(x="plain", y="radius", style="marked"),
            curve("as predicted", (0, 2.5), float),
        ],
        span_x=(0, 2.5),
        span_y=(0, 2.5),
    ),
    *(_chart(*each) for each in PAPER.items()),
]

STUDY = Study(
    item="Figure 3",
    title="Spectral radius at the fixed point",
    points=wide.points,
    rows_of="initialisation/variance",
    views=[Derived(wide.add_predictions("radius", radius), view) for view in VIEWS],
)
