"""Equilibrium networks against explicit ones.

The cells of the CPU recipes differ from the papers': the Transformer's input also enters the
residual sum (direct), through a kernel over 2 tokens (injection_kernel); the TrellisNet is solved
in pieces of 8 tokens (subsequence), by plain iteration. The tied stack has the same cell.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.measures.timing import ROUNDS
from equilibria.run.studies.study import Point, Scale, Study, grid
from equilibria.run.studies.views import NOT_RUN, Lines, Pivot, Table, first, of
from papers.deq import common
from papers.deq.common import core, quality, times
from papers.measures.memory import step_memory
from papers.published import BAI_2019, read_published

NETWORKS = {
    **{f"deq-{cell}": f"DEQ-{name}" for cell, name in common.NAMES.items()},
    **{f"tied-{cell}": name for cell, name in common.STACKS.items()},
}
SEEDS = {seed: f"ours, seed {seed}" for seed in common.SEEDS["transformer"]}
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
    for each in grid(network=common.NETWORKS, seed=common.COPY_SEEDS):
        run = common.copy_memory(each["network"], scale, each["seed"])
        factors = {"data": "copy-memory", **each}
        yield Point(factors, [summary, epochs], {"run": run})
    for cell in common.CELLS:
        data, language = {"data": "ptb", "cell": cell}, partial(common.language, cell, scale)
        for kind, seed in itertools.product(("deq", "tied"), common.SEEDS[cell]):
            further = [partial(quality, rtol=common.TOLERANCE)] if kind == "deq" else []
            yield Point(
                {**data, "network": f"{kind}-{cell}", "seed": seed},
                [summary, core, step_memory, *further, epochs],
                {"run": language(seed, tied=kind == "tied")},
                minutes=2,
            )
        yield Point(
            {**data, "network": f"both-{cell}", "seed": 0},
            [times],
            {"deq": language(), "tied": language(tied=True)},
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
        for row in read_published(BAI_2019, item)
    ]


STUDY = Study(
    item="Tables 1 to 4",
    title="Copy memory, Penn Treebank, run times",
    points=lambda scale: list(points(scale)),
    views=[
        common.COMPARISON,
        common.AGAINST,
        common.TABLE_1,
        Pivot(
            title="Table 2: Penn Treebank, words",
            index={"network": "model", "seed": "whose"},
            where={"network": [*common.DEQ, *common.TIED]},
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
        common.TIMES,
        Lines(
            "epoch",
            "valid_perplexity",
            by=["network"],
            where={"data": "ptb", "seed": 0},
            label=NETWORKS,
            style=dict.fromkeys(common.TIED, "dashed"),
            colors=dict(zip(NETWORKS, (0, 1, 0, 1), strict=True)),
        ).chart(
            "Penn Treebank: validation perplexity", "epoch", "perplexity", log_y=True, whole_x=True
        ),
        common.CHART,
    ],
)
