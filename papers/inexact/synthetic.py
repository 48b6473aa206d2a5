"""Cosines with the exact gradient, and the condition under which they are safe.

z+ = tanh(W (z + x)) of width 100, float64, W Gaussian, a random linear loss of z*. The published
setting is a Lipschitz constant of .9, W's spectral norm: then the spectral radius is about half of
that, which flatters inexact gradients. Beside it a spectral radius of .9. How large the inputs are
is not published, and it matters: at a standard deviation of 1 or 2 tanh saturates, which shortens
the Jacobian; at .1 the layer is nearly linear.
"""

from equilibria.run import recipe as recipes
from equilibria.run.recipe import Recipe
from equilibria.run.studies.study import Point, Scale, Study, grid
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Lines, Pivot, first, mean, spread
from papers.inexact.random_layers import (
    BOUNDS,
    DRAWS,
    LAYERS,
    SAMPLES,
    check_condition,
    cosines,
    theorem,
)

SEEDS, TRAINED = range(10), range(3)
BOUNDED = {True: "norm of W below .95", False: "not bounded"}


def points(scale: Scale) -> list[Point]:
    return [
        *(Point({"what": "cosine", **each}, [cosines]) for each in grid(layer=LAYERS, seed=SEEDS)),
        *(Point({"what": "theorem", "bound": bound, "seed": 0}, [theorem]) for bound in BOUNDS),
        *(
            Point(
                {"what": "trained", **each},
                [check_condition],
                {"run": Training(_digits(**each), 0.5)},
            )
            for each in grid(bounded=BOUNDED, seed=TRAINED)
        ),
    ]


def _digits(bounded: bool, seed: int) -> Recipe:
    """The recipe digits, whose weights have a bounded norm, or without the bound."""
    words = ["--seed", str(seed), *([] if bounded else ["--model.bound", "null"])]
    return recipes.load("digits", words)


STUDY = Study(
    item="Figure 5.1, Theorem 4",
    title="Inexact gradients of a random layer",
    points=points,
    views=[
        Pivot(
            title="Figure 5.1: cosine with the exact gradient",
            index={"estimator": "gradient", "damping": "damping", "steps": "k"},
            each="steps",
            where={"what": "cosine"},
            across="layer",
            words={"layer": {name: name for name in LAYERS}},
            values={"{level}": spread("cosine", 1, ".4f")},
            note=f"Of W and x together, {len(SEEDS)} seeds, mean ± standard deviation. k = 1 "
            "undamped is the Jacobian-free gradient; k of SHINE: iterations that refine it. The "
            "exact gradient is at a solution to 1e-13; UPG and NPG begin at what at most 100 plain "
            "iterations to 1e-5 find, as published, SHINE at Broyden's.",
        ),
        Pivot(
            title="Figure 5.1: cross-checks",
            index={"layer": "layer"},
            where={"what": "cosine"},
            whole=True,
            values={
                "1 - cosine of BPTT, largest": lambda rows: f"{1 - rows['bptt'].min():.1e}",
                "UPG from NPG, relative, largest": lambda rows: f"{rows['difference'].max():.1e}",
            },
            note="BPTT: backpropagation through 1,000 plain iterations, beside the exact gradient. "
            "UPG and NPG of all k and dampings, at a solution to 1e-13, where theory has them "
            "equal.",
        ),
        Pivot(
            title="Theorem 4: is (5.5) ever wrong?",
            index={"bound": "|| (I - J) A - df/dtheta || below"},
            where={"what": "theorem"},
            values={
                "draws": first("draws"),
                "counter-examples": first("counter_examples"),
                "smallest <inexact, exact> / (sigma_min |h|)²": first("smallest"),
            },
            note=f"{DRAWS:,} draws of J, df/dtheta and A, half of them at .999 of the bound; h = "
            "(I - J)^-T dl/dz*. A counter-example is a draw in which some loss has an inexact "
            "gradient 90 degrees or more from the exact one. (5.4) is sufficient, and looser "
            "than it need be by kappa = sigma_max / sigma_min: below sigma_min it holds as well, "
            "and from there on it fails.",
        ),
        Pivot(
            title="Theorem 4 on trained layers: the condition (5.8)",
            index={"bounded": "weights", "estimator": "gradient"},
            each="met",
            where={"what": "trained"},
            words={"bounded": BOUNDED},
            values={
                "1 / kappa² met, % of samples": mean("met", 100),
                "1 / kappa met, % of samples": mean("sharp", 100),
                "within 90 degrees for every loss, %": mean("safe", 100),
                "||(I - J) D - I||, median": mean("error"),
                "kappa of df/dtheta, median": mean("kappa"),
            },
            note=f"The recipe digits, {len(TRAINED)} seeds, {SAMPLES} test samples each, the "
            "injection being one of the parameters. The recipe bounds the norm of W. A layer that "
            "meets no condition may still learn well: a loss has one gradient, not every one.",
        ),
        *(
            Lines(
                "steps",
                "cosine",
                by=["damping"],
                where={"what": "cosine", "layer": name, "estimator": "NPG"},
                label=lambda damping: f"NPG, damping {damping:g}",
                band=True,
                style="marked",
            ).chart(f"Figure 5.1: {name}", "k", "cosine", whole_x=True)
            for name in LAYERS
        ),
    ],
)
