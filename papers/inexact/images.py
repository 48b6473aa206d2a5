"""An MDEQ on CIFAR-10 trained by the exact gradient and by inexact ones.

At CPU scale the network without penalty of jacobian/tables: 5,000 images of 16 x 16, unstable by
itself. Only the adjoint differs. UPG's steps are part of the forward, in evaluation too. Steps are
timed on the trained networks, interleaved in one process; the published factors are of whole
trainings on GPUs. Cosines are at the network's weights after each epoch, on the first images of the
validation split, of all parameters of the layer, with the solution and the exact adjoint at 1e-5 or
as near as they get.
"""

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Scale, Study, grid
from equilibria.run.studies.views import Lines, Pivot, mean, number, spread
from papers.inexact.common import ESTIMATORS, IMAGES, SEEDS, image_training, step_times, times
from papers.published import BAI_2022, read_published


def points(scale: Scale) -> list[Point]:
    runs = {(name, seed): image_training(name, scale, seed) for seed in SEEDS for name in IMAGES}
    return [
        *(
            Point(each, [summary, epochs], {"run": runs[tuple(each.values())]})
            for each in (
                {"gradient": str(p["gradient"]), "seed": int(p["seed"])}
                for p in grid(seed=SEEDS, gradient=IMAGES)
            )
        ),
        *(
            Point(
                {"gradient": "times", "seed": seed},
                [times],
                {name: runs[name, seed] for name in IMAGES},
                minutes=2,
            )
            for seed in SEEDS
        ),
    ]


PUBLISHED = [
    [f"published: {row['row']}", None, row["accuracy"], None, f"{row['speed']:g}"]
    for row in read_published(BAI_2022, "Table 5.2")
    if "accuracy" in row
]

STUDY = Study(
    item="Figure 5.2, Table 5.2",
    title="Images by inexact gradients",
    points=points,
    views=[
        Pivot(
            title="Table 5.2: CIFAR-10",
            index={"gradient": "trained by"},
            where={"gradient": list(IMAGES)},
            values={
                "seeds": number("accuracy"),
                "test accuracy, %": spread("accuracy", 100),
                "test solves that converged, %": mean("converged", 100),
            },
            above=[row[:-1] for row in PUBLISHED],
        ),
        step_times([[row[0], None, row[-1]] for row in PUBLISHED], note="Means over the seeds."),
        *(
            Lines(
                "epoch",
                [f"probe_cosine {each}" for each in ESTIMATORS],
                where={"gradient": name},
                label={f"probe_cosine {each}": each for each in ESTIMATORS},
                band=True,
            ).chart(
                f"Figure 5.2: cosine with the exact gradient, trained by {name}",
                "epoch",
                "cosine",
                whole_x=True,
            )
            for name in IMAGES
        ),
    ],
)
