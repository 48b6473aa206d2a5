"""Figure 5.1 and Theorem 4: how far inexact gradients are from the exact one."""

from __future__ import annotations

from equilibria.experiments.published import BAI_2022
from equilibria.experiments.studies.inexact._synthetic import (
    DRAWS,
    cosines,
    theorem,
    trained,
)
from equilibria.experiments.study import Point, Scale, Study
from equilibria.experiments.training import Training
from equilibria.experiments.views import Chart, Lines, Pivot, first, mean, spread
from equilibria.train import recipe as recipes

SCALED = {"norm": "spectral norm .9, as published", "radius": "spectral radius .9"}
FACTORS = (1.0, 2.0, 10.0)


def points(scale: Scale) -> list[Point]:
    digits = [recipes.load("digits", ["--seed", str(seed)]) for seed in range(3)]
    return [
        *(
            Point(factors={"what": "cosine", "scaled": scaled, "seed": seed}, measures=[cosines])
            for scaled in SCALED
            for seed in range(10)
        ),
        *(
            Point(factors={"what": "theorem", "factor": factor, "seed": 0}, measures=[theorem])
            for factor in FACTORS
        ),
        *(
            Point(
                factors={"what": "trained", "seed": seed},
                measures=[trained],
                runs={"run": Training(recipe=recipe, minutes=0.5)},
            )
            for seed, recipe in enumerate(digits)
        ),
    ]


STUDY = Study(
    paper=BAI_2022,
    item="Figure 5.1, Theorem 4",
    title="Inexact gradients of a random layer",
    description="Cosines with the exact gradient, and the condition under which they are safe.",
    note="z+ = tanh(W (z + x)) of width 100, float64, 10 seeds. The paper scales W to a spectral "
    "norm of .9; the spectral radius of such a matrix is about half of that, which flatters "
    "inexact gradients. Beside it the same with a spectral radius of .9. k = 1 undamped is the "
    "Jacobian-free gradient. Reference: solved to 1e-13, cross-checked by backpropagation through "
    "1,000 iterations.",
    points=points,
    views=[
        Pivot(
            title="Figure 5.1: cosine with the exact gradient",
            index={"estimator": "gradient", "damping": "damping", "steps": "k"},
            each="steps",
            where={"what": "cosine"},
            across="scaled",
            words={"scaled": SCALED},
            values={"{level}": spread("cosine", 1, ".4f")},
            note="k of SHINE: iterations that refine it.",
        ),
        Pivot(
            title="Cross-checks",
            index={"scaled": "W"},
            each="estimator",
            where={"what": "cosine"},
            words={"scaled": SCALED},
            values={
                "1 - cosine of BPTT, largest": lambda rows: f"{1 - rows['bptt'].min():.1e}",
                "UPG from NPG, relative, largest": lambda rows: f"{rows['difference'].max():.1e}",
            },
        ),
        Pivot(
            title="Theorem 4",
            index={"factor": "A at most this far, in bounds of (5.4)"},
            where={"what": "theorem"},
            values={
                "draws": first("draws"),
                "counter-examples": first("counter_examples"),
                "smallest eigenvalue, over sigma_min^2": first("smallest"),
            },
            note=f"{DRAWS:,} draws of J, df/dtheta and A, half of A in the worst direction; a "
            "counter-example is a draw for which some gradient of the loss is turned by 90 degrees "
            "or more. Beyond the bound there are such, so the condition is not idle.",
        ),
        Pivot(
            title="The condition (5.8) on trained layers",
            index={"estimator": "gradient"},
            each="met",
            where={"what": "trained"},
            values={
                "test samples that meet it, %": mean("met", 100),
                "||(I - J) D - I||, median": mean("error"),
                "1 / kappa^2, median": mean("bound"),
            },
            note="The recipe digits, 3 seeds, 8 test samples each. The condition is sufficient "
            "and far from necessary: what gradients do without it, inexact/images shows.",
        ),
        *(
            Chart(
                title=f"Figure 5.1: {words}",
                x="k",
                y="cosine",
                marks=[
                    Lines(
                        x="steps",
                        y="cosine",
                        by=["damping"],
                        where={"what": "cosine", "scaled": scaled, "estimator": "NPG"},
                        label=lambda damping: f"NPG, damping {damping:g}",
                        band=True,
                        style="marked",
                    )
                ],
                whole_x=True,
            )
            for scaled, words in SCALED.items()
        ),
    ],
)
