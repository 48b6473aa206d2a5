"""Tables 1 to 4: copy memory, Penn Treebank, WikiText-103 and run times, ours below theirs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from equilibria.experiments.measures.epochs import epochs, summary
from equilibria.experiments.measures.memory import step_memory
from equilibria.experiments.measures.timing import ROUNDS
from equilibria.experiments.published import BAI_2019, published
from equilibria.experiments.studies.deq import _comparison as comparison
from equilibria.experiments.studies.deq import _copy_memory as copy_memory
from equilibria.experiments.studies.deq import _trainings as trainings
from equilibria.experiments.studies.deq._quality import core, quality, times
from equilibria.experiments.study import Point, Scale, Study, grid
from equilibria.experiments.views import NOT_RUN, Chart, Lines, Pivot, Table, first, of

NETWORKS = {
    **{f"deq-{cell}": f"DEQ-{name}" for cell, name in comparison.NAMES.items()},
    **{f"tied-{cell}": name for cell, name in comparison.STACKS.items()},
}
SEEDS = {seed: f"ours, seed {seed}" for seed in trainings.SEEDS["transformer"]}
WIKITEXT = ("DEQ-Transformer (700, inner 48000)", "ours", None, None, NOT_RUN)
TEXT = {
    "parameters": of("parameters", 1e-6, "{:.2f}M"),
    "without embedding": of("core", 1e-6, "{:.2f}M"),
    "test perplexity": of("perplexity"),
    "memory of a step": of("step_bytes", 2**-20, "{:.1f} MiB"),
    "minutes": first("seconds", 1 / 60),
}


def points(scale: Scale) -> Iterator[Point]:
    """Every training and what is measured of its network, and each cell's two networks timed."""
    for each in grid(network=copy_memory.NETWORKS, seed=trainings.COPY_SEEDS):
        run = trainings.copying(each["network"], scale, each["seed"])
        factors = {"data": "copy-memory", **each}
        yield Point(factors=factors, measures=[summary, epochs], runs={"run": run})
    for cell in trainings.CELLS:
        data, language = {"data": "ptb", "cell": cell}, partial(trainings.language, cell, scale)
        for kind, seed in itertools.product(("deq", "tied"), trainings.SEEDS[cell]):
            further = [partial(quality, rtol=comparison.TOLERANCE)] if kind == "deq" else []
            yield Point(
                factors={**data, "network": f"{kind}-{cell}", "seed": seed},
                measures=[summary, core, step_memory, *further, epochs],
                runs={"run": language(seed, tied=kind == "tied")},
                minutes=2,
            )
        yield Point(
            factors={**data, "network": f"both-{cell}", "seed": 0},
            measures=[times],
            runs={"deq": language(), "tied": language(tied=True)},
            settings={"rounds": ROUNDS},
            minutes=3,
        )


def theirs(item: str) -> list[Sequence[Any]]:
    """Return the paper's rows of a table of language models."""
    return [
        (
            *(row["row"], "paper", row.get("size"), row.get("core"), row["perplexity"]),
            f"{row['memory']:g} GB" if "memory" in row else None,
        )
        for row in published(BAI_2019, item)
    ]


STUDY = Study(
    paper=BAI_2019,
    item="Tables 1 to 4",
    title="Copy memory, Penn Treebank, run times",
    description="Equilibrium networks against explicit ones.",
    points=lambda scale: list(points(scale)),
    note="The cells of the CPU recipes differ from the papers': the Transformer's input also "
    "enters the residual sum (direct), through a kernel over 2 tokens (injection_kernel); the "
    "TrellisNet is solved in pieces of 8 tokens (subsequence), by plain iteration. The tied stack "
    "has the same cell.",
    views=[
        comparison.COMPARISON,
        copy_memory.AGAINST,
        copy_memory.TABLE_1,
        Pivot(
            title="Table 2: Penn Treebank, words",
            index={"network": "model", "seed": "whose"},
            where={"network": [*comparison.DEQ, *comparison.TIED]},
            words={"network": NETWORKS, "seed": SEEDS},
            values=TEXT,
            above=theirs("Table 2"),
            note="The paper's memory: length 150, batch 15. Ours: the recipe's length and batch, "
            "without embedding and softmax; of an equilibrium network the maximum over depths, "
            "solver's history included. Minutes: all training steps. At the paper's size: "
            "benchmarks/gpu.",
        ),
        Table(
            title="Table 3: WikiText-103, words",
            columns=["model", "whose", *TEXT],
            rows=lambda data: [*theirs("Table 3"), WIKITEXT],
            note="At the paper's size on a GPU: benchmarks/gpu. The widths of the models of 172, "
            "138 and 110 million parameters are not published.",
        ),
        comparison.TIMES,
        Chart(
            title="Penn Treebank: validation perplexity",
            x="epoch",
            y="perplexity",
            marks=Lines(
                x="epoch",
                y="valid_perplexity",
                by=["network"],
                where={"data": "ptb", "seed": 0},
                label=NETWORKS,
                style=dict.fromkeys(comparison.TIED, "dashed"),
                colours=dict(zip(NETWORKS, (0, 1, 0, 1), strict=True)),
            ),
            log_y=True,
            whole_x=True,
        ),
        copy_memory.CHART,
    ],
)
