"""Perplexity, time, evaluations and memory with and without the Jacobian penalty."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from equilibria.run.report.panel import Series
from equilibria.run.studies import views
from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.results import Data, select
from equilibria.run.studies.study import Point, Scale, Study
from papers.deq.common import LAYERS
from papers.jacobian.common import EPOCHS, STEPS, VARIANTS, training_of
from papers.measures.memory import step_memory
from papers.measures.sequences import read_text
from papers.published import BAI_2021, read_published

ROWS = {
    "Transformer-XL (18 layers)": "tied",
    "DEQ, pre-LN": "pre",
    "DEQ, post-LN": "post",
    "DEQ, post-LN, stopped early": "early",
    "DEQ, post-LN, 20 evaluations": "post-20",
    "DEQ, post-LN, 15 evaluations": "post-15",
    "DEQ, pre-LN, regularised": "pre-jr",
    "DEQ, post-LN, regularised": "post-jr",
    "DEQ, post-LN, regularised, length 300": "post-jr-long",
}
"""The paper's rows, and of which of our trainings each is the likeness; that stopped early is the
unregularised network's."""


def _point(network: str, scale: Scale) -> Point:
    early = network == "early"
    variant = "post" if early else network
    memory = partial(step_memory, nearest=VARIANTS[variant].limit)
    return Point(
        {"network": network},
        [summary, memory, *([partial(read_text, max_evals=12)] if early else []), epochs],
        {"run": training_of(variant, scale)},
        minutes=1,
    )


def _rows(data: Data) -> Iterator[Sequence[Any]]:
    """The paper's rows, ours beside them."""
    for row in read_published(BAI_2021, "Table 5"):
        time = f"{row['time']:g}x" if "time" in row else None
        limits = (row.get(name) for name in ("train", "valid", "memory"))
        ours = _ours(data, ROWS[row["row"]]) if row["row"] in ROWS else ()
        yield row["row"], row["size"], row.get("perplexity", "diverged"), time, *limits, *ours


def _ours(data: Data, network: str) -> Sequence[Any]:
    own = select(data.points, {"network": network})
    perplexity = views.of("perplexity")(own)
    if perplexity in (views.NOT_RUN, views.DIVERGED):
        return [perplexity]
    return [
        perplexity,
        views.time_ratio({"network": network}, {"network": "tied"}, "{:.2f}x")(data.points),
        views.last("forward")(data.series("epoch", network=network)),
        views.of("evals")(own),
        views.first("penalised_bytes", 2**-20)(own) or views.first("step_bytes", 2**-20)(own),
    ]


def _curves(data: Data) -> Iterator[Series]:
    """Perplexity after each epoch, against the time of all steps until then."""
    for name in ("tied", "post", "post-jr", "pre-jr"):
        epochs = data.series("epoch", network=name)
        if not epochs.empty:
            x, y = epochs["epoch_seconds"].cumsum() / 60, epochs["valid_perplexity"]
            label = VARIANTS[name].words
            yield Series(label=label, x=x.tolist(), y=y.tolist(), style="marked")


STUDY = Study(
    item="Figure 1c, Tables 1 and 5",
    title="What regularised DEQ-Transformers reach",
    points=lambda scale: [_point(network, scale) for network in ROWS.values()],
    views=[
        views.Table(
            title="Table 5 (and 1): regularised DEQ-Transformers",
            columns=[
                *("model", "size", "perplexity", "time", "evaluations, training", "validation"),
                *("GB", "ours: perplexity", "time", "evaluations, training", "validation", "MiB"),
            ],
            rows=_rows,
            note="Left the paper's, on WikiText-103; right ours, the small recipe on Penn "
            f"Treebank, {EPOCHS['cpu']} times {STEPS['cpu']} steps at CPU scale: what can be "
            "compared is the order of the rows. Perplexity: of the test text. Time: of all "
            "training steps, the explicit network being 1, none where threads or machines differ; "
            f"ours is a weight-tied stack of {LAYERS} layers, the paper's an untied one of 18. In "
            "every row of ours the input also enters the residual sum (direct), through a kernel "
            "over 2 tokens (injection_kernel). Evaluations: means of ours, limits of the paper's. "
            "MiB: a step without embeddings, at the measured depth nearest to the limit; of "
            "regularised networks a step with the penalty, its solves as they are.",
        ),
        views.Chart(
            title="Fig. 1c: validation perplexity against time",
            x="minutes of training steps",
            y="perplexity",
            marks=_curves,
            log_y=True,
        ),
    ],
)
