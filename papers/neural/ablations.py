"""A learned solver without one of its parts, or trained with a different loss."""

from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import Pivot, count, mean, spread
from papers.neural.ablated import STEPS, STOPPED, VARIANTS, WORDS, ablate
from papers.neural.common import HORIZON, MDEQ, SEEDS, training_of

STUDY = Study(
    item="Figures 6.7 and 6.8",
    title="Ablations of a learned solver",
    note="The MDEQ of jacobian/tables without the penalty. Ours: an initial guess, and "
    "corrections to Anderson's weights from the Gram matrix, trained on log residuals. The "
    "papers': mixing weights and damping from pooled residuals, trained on distances from z*, "
    f"with neither trust region nor fallback. All are trained for {STEPS} steps through unrolled "
    f"solves of {HORIZON} evaluations, on batches of 32 samples.",
    points=lambda scale: [
        Point(
            {"variant": name, "seed": seed},
            [ablate],
            {"run": training_of(MDEQ, scale, seed)},
            settings={"fields": dict(VARIANTS.get(name, {}))},
            minutes=1,
        )
        for seed in SEEDS[MDEQ]
        for name in ("Anderson", *VARIANTS)
    ],
    views=[
        Pivot(
            title="Figures 6.7 and 6.8",
            index={"variant": "solver"},
            words={"variant": WORDS},
            values={
                "seeds": count("residual"),
                f"residual after {HORIZON}": mean("residual"),
                f"error after {HORIZON}": mean("error"),
                f"accuracy after {STOPPED}, %": spread("accuracy", 100, ".2f"),
                "training the solver, s": mean("seconds"),
            },
            note="Residual and error are relative: geometric means over test samples, arithmetic "
            "means over seeds.",
        )
    ],
)
