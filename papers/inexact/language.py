"""A DEQ-Transformer on Penn Treebank trained by the exact gradient and by UPG.

The recipe lm-ptb, with its Jacobian penalty, and only the adjoint changed; published rows are of
WikiText-103 at 98M parameters. UPG's steps are part of the forward, in evaluation too. Steps are
timed on the trained networks, interleaved in one process.
"""

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Scale, Study, grid
from equilibria.run.studies.views import Lines, Pivot, mean, number, spread
from papers.inexact.common import TEXT, step_times, text_training, times
from papers.published import BAI_2022, read_published

SEEDS = (0, 1)


def points(scale: Scale) -> list[Point]:
    runs = {name: {seed: text_training(name, scale, seed) for seed in SEEDS} for name in TEXT}
    return [
        *(
            Point(each, [summary, epochs], {"run": runs[str(each["gradient"])][int(each["seed"])]})
            for each in grid(seed=SEEDS, gradient=TEXT)
        ),
        Point(
            {"gradient": "times", "seed": 0},
            [times],
            {name: of_seeds[0] for name, of_seeds in runs.items()},
            minutes=2,
        ),
    ]


PUBLISHED = [
    [f"published: {row['row']}", None, row["perplexity"], None, f"{row['speed']:g}"]
    for row in read_published(BAI_2022, "Table 5.2")
    if "perplexity" in row
]

STUDY = Study(
    item="Table 5.2",
    title="Text by inexact gradients",
    points=points,
    views=[
        Pivot(
            title="Table 5.2: text",
            index={"gradient": "trained by"},
            where={"gradient": list(TEXT)},
            values={
                "seeds": number("perplexity"),
                "test perplexity": spread("perplexity", 1, ".1f"),
                "test solves that converged, %": mean("converged", 100),
            },
            above=[row[:-1] for row in PUBLISHED],
        ),
        step_times([[row[0], None, row[-1]] for row in PUBLISHED]),
        Lines("epoch", "valid_perplexity", by=["gradient"], band=True).chart(
            "Validation perplexity", "epoch", "perplexity", log_y=True
        ),
    ],
)
