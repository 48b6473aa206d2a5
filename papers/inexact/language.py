"""The text of Table 5.2: language models trained by inexact gradients."""

from __future__ import annotations

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Scale, Study, grid
from equilibria.run.studies.views import Chart, Lines, Pivot, mean, spread
from papers.inexact.common import TEXT, step_times, text_training, times
from papers.published import BAI_2022, published

SEEDS = (0, 1)


def points(scale: Scale) -> list[Point]:
    runs = {name: {seed: text_training(name, scale, seed) for seed in SEEDS} for name in TEXT}
    return [
        *(
            Point(
                factors=each,
                measures=[summary, epochs],
                runs={"run": runs[str(each["gradient"])][int(each["seed"])]},
            )
            for each in grid(seed=SEEDS, gradient=TEXT)
        ),
        Point(
            factors={"gradient": "times", "seed": 0},
            measures=[times],
            runs={name: of_seeds[0] for name, of_seeds in runs.items()},
            minutes=2,
        ),
    ]


PUBLISHED = [
    [f"published: {row['row']}", None, row["perplexity"], None, f"{row['speed']:g}"]
    for row in published(BAI_2022, "Table 5.2")
    if "perplexity" in row
]

STUDY = Study(
    paper=BAI_2022,
    item="Table 5.2",
    title="Text by inexact gradients",
    description="A DEQ-Transformer on Penn Treebank trained by the exact gradient and by UPG.",
    note="The recipe lm-ptb, with its Jacobian penalty, and only the adjoint changed; published "
    "rows are of WikiText-103 at 98M parameters. UPG's steps are part of the forward, in "
    "evaluation too. Steps are timed on the trained networks, interleaved in one process.",
    points=points,
    views=[
        Pivot(
            title="Table 5.2: text",
            index={"gradient": "trained by"},
            where={"gradient": list(TEXT)},
            values={
                "seeds": lambda rows: int(rows["perplexity"].count()),
                "test perplexity": spread("perplexity", 1, ".1f"),
                "test solves that converged, %": mean("converged", 100),
            },
            above=[row[:-1] for row in PUBLISHED],
        ),
        step_times([[row[0], None, row[-1]] for row in PUBLISHED]),
        Chart(
            title="Validation perplexity",
            x="epoch",
            y="perplexity",
            marks=[Lines(x="epoch", y="valid_perplexity", by=["gradient"], band=True)],
            log_y=True,
        ),
    ],
)
