"""Figure 1c and Tables 1 and 5: what regularised DEQ-Transformers reach, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from equilibria.experiments.data import Data
from equilibria.experiments.measures.epochs import epochs, summary
from equilibria.experiments.measures.memory import step_memory
from equilibria.experiments.measures.sequences import reading
from equilibria.experiments.published import BAI_2021, published
from equilibria.experiments.studies.deq._trainings import LAYERS
from equilibria.experiments.studies.jacobian._variants import EPOCHS, STEPS, VARIANTS, training_of
from equilibria.experiments.study import Point, Scale, Study
from equilibria.experiments.views import DIVERGED, NOT_RUN, Chart, Table, last, of, time_ratio
from equilibria.report.panel import Series

__all__ = ["STUDY"]

# The paper's row that each of our trainings is the small likeness of.
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
EARLY = 12
CURVES = ("tied", "post", "post-jr", "pre-jr")


def point(network: str, scale: Scale) -> Point:
    """Return the point of one of our rows; the one stopped early is the unregularised network's."""
    early = network == "early"
    variant = "post" if early else network
    further = [partial(reading, max_evals=EARLY)] if early else []
    memory = partial(step_memory, nearest=VARIANTS[variant].limit)
    return Point(
        factors={"network": network},
        measures=[summary, memory, *further, epochs],
        runs={"run": training_of(variant, scale)},
        minutes=1,
    )


def rows(data: Data) -> Iterator[Sequence[Any]]:
    """The paper's rows, ours beside them."""
    for row in published(BAI_2021, "Table 5"):
        time = f"{row['time']:g}x" if "time" in row else None
        limits = (row.get(name) for name in ("train", "valid", "memory"))
        ours = _ours(data, ROWS[row["row"]]) if row["row"] in ROWS else ()
        yield row["row"], row["size"], row.get("perplexity", "diverged"), time, *limits, *ours


def _ours(data: Data, network: str) -> Sequence[Any]:
    point = data.get(network=network)
    if point is None or isinstance(point.get("diverged"), str):
        return [NOT_RUN if point is None else DIVERGED]

    def figure(column: str, scale: float = 1) -> Any:
        return of(column, scale, network=network)(data.points)

    return [
        figure("perplexity"),
        time_ratio({"network": network}, {"network": "tied"}, "{:.2f}x")(data.points),
        last("forward")(data.series("epoch", network=network)),
        figure("evals"),
        figure("penalised_bytes", 2**-20) or figure("step_bytes", 2**-20),
    ]


def curves(data: Data) -> Iterator[Series]:
    """Perplexity after each epoch, against the time of all steps until then."""
    for name in CURVES:
        trained = data.series("epoch", network=name)
        if not trained.empty:
            minutes = (trained["epoch_seconds"].cumsum() / 60).tolist()
            y = trained["valid_perplexity"].tolist()
            yield Series(label=VARIANTS[name].words, x=minutes, y=y, style="marked")


STUDY = Study(
    paper=BAI_2021,
    item="Figure 1c, Tables 1 and 5",
    title="What regularised DEQ-Transformers reach",
    description="Perplexity, time, evaluations and memory with and without the Jacobian penalty.",
    points=lambda scale: [point(network, scale) for network in ROWS.values()],
    views=[
        Table(
            title="Table 5 (and 1): regularised DEQ-Transformers",
            columns=[
                *("model", "size", "perplexity", "time", "evaluations, training", "validation"),
                *("GB", "ours: perplexity", "time", "evaluations, training", "validation", "MiB"),
            ],
            rows=rows,
            note="Left the paper's, on WikiText-103; right ours, the small recipe on Penn "
            f"Treebank, {EPOCHS['cpu']} times {STEPS['cpu']} steps at CPU scale: what can be "
            "compared is the order of the rows. Perplexity: of the test text. Time: of all "
            "training steps, the explicit network being 1; ours is a weight-tied stack of "
            f"{LAYERS} layers where the paper's is an untied one of 18; none where threads or "
            "machines differ. The cell differs from the paper's in every row: the input also "
            "enters the residual sum (direct), through a kernel over 2 tokens (injection_kernel). "
            "Evaluations: means of ours, limits of the paper's. MiB: a step without embeddings, "
            "at the measured depth nearest to the limit; of regularised networks a step with the "
            "penalty, its solves as they are.",
        ),
        Chart(
            title="Fig. 1c: validation perplexity against time",
            x="minutes of training steps",
            y="perplexity",
            marks=[curves],
            log_y=True,
        ),
    ],
)
