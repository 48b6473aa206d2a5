"""Figure 1c and Tables 1 and 5: what regularised DEQ-Transformers reach, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

from equilibria.bench.record import Table
from equilibria.experiments import variants
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.duration import time_ratio
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.published import BAI_2021, JACOBIAN, Regularised
from equilibria.experiments.training import load
from equilibria.models import EquilibriumModel
from equilibria.train import evaluation

__all__ = ["EXPERIMENT", "cases", "show"]

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
MIB = 2**20


def cases(scale: Scale) -> Sequence[Case]:
    """The short trainings, and the unregularised network stopped early on the test text."""
    names = [name for name in ROWS.values() if name != "early"]
    return [
        *(variants.case(name, scale) for name in names),
        Case(
            key="early",
            description=f"reads the test text with solves stopped at {EARLY}",
            minutes=0.5,
            run=_stopped_early,
            settings={"max_evals": EARLY},
            needs=(variants.key("post"),),
        ),
    ]


def _stopped_early(place: Place) -> Mapping[str, Any]:
    trained = load(place, variants.key("post"))
    accelerator = evaluation.accelerator(trained.recipe.precision)
    model = cast(EquilibriumModel, trained.model.to(accelerator.device))
    (result,) = evaluation.budgets(
        model,
        trained.data,
        accelerator,
        batch_size=trained.recipe.eval_batch_size,
        limits=[EARLY],
    )
    return result


def show(done: Results) -> Page:
    """The paper's table with our figures beside, and perplexity against training time."""
    return Page([_table(done)], [_curves(done)])


def _table(done: Results) -> Table:
    return Table(
        title="Table 5 (and 1): regularised DEQ-Transformers",
        columns=[
            *("model", "size", "perplexity", "time", "evaluations, training", "validation", "GB"),
            *("ours: perplexity", "time", "evaluations, training", "validation", "MiB"),
        ],
        rows=[[*_published(row), *_ours(done, row.model)] for row in JACOBIAN],
        note="Left the paper's, on WikiText-103; right ours, the small recipe on Penn Treebank, "
        f"{variants.EPOCHS['cpu']} times {variants.STEPS['cpu']} steps at CPU scale: what can be "
        "compared is the order of the rows. Perplexity: of the test text (the paper's is of "
        "WikiText-103's). Time: of all training steps, the explicit network being 1; ours is a "
        f"weight-tied stack of {variants.trainings.LAYERS} layers where the paper's is an untied "
        "one of 18; none where both trainings did not run with as many threads on one machine. "
        "The cell is not quite the paper's, whichever the row: the input also enters the residual "
        "sum (direct), through a kernel over 2 tokens (injection_kernel). Evaluations: means of "
        "ours, limits of the paper's. MiB: a step without embeddings, its solves taking as many "
        "evaluations as the nearest measured depth to the limit; of regularised networks one "
        "with the penalty, its solves as they are.",
    )


def _published(row: Regularised) -> list[Any]:
    diverged = row.perplexity is None
    return [
        row.model,
        row.size,
        "diverged" if diverged else row.perplexity,
        None if row.time is None else f"{row.time:g}x",
        row.train,
        row.valid,
        row.memory,
    ]


def _ours(done: Results, model: str) -> list[Any]:
    name = ROWS.get(model)
    if name is None:
        return [None] * 5
    source = "post" if name == "early" else name
    found = done.get(variants.key(source))
    if found is None or (name == "early" and "early" not in done):
        return [NOT_RUN] * 5
    value = found.value
    if value["diverged"]:
        return ["diverged", *[None] * 4]
    evaluated = done["early"].value if name == "early" else value["evaluation"]
    explicit = done.get(variants.key("tied"))
    ratio = None if explicit is None else time_ratio(found, explicit)
    return [
        evaluated["perplexity"],
        None if ratio is None else f"{ratio:.2f}x",
        _mean(value["metrics"][-1]["train"]),
        _mean(evaluated),
        _memory(value, variants.VARIANTS[source].limit),
    ]


def _mean(figures: Mapping[str, Any]) -> float | None:
    evals = figures["forward"]["evals"]
    return None if evals is None else evals["mean"]


def _memory(value: Mapping[str, Any], limit: int) -> float | None:
    """Of an explicit network its step; of a DEQ the one at the depth nearest to its limit."""
    if value["penalised_bytes"] is not None:
        return value["penalised_bytes"] / MIB
    mine = [point for point in value["memory"] if point["kind"] in ("deq", "explicit")]
    nearest = min(mine, key=lambda point: abs(point["evals"] - limit), default=None)
    return None if nearest is None else nearest["bytes"] / MIB


def _curves(done: Results) -> Panel:
    series: list[Series] = []
    for name in CURVES:
        found = done.get(variants.key(name))
        metrics = found.value["metrics"] if found is not None else []
        series.append(
            Series(
                label=variants.VARIANTS[name].words,
                x=[seconds / 60 for seconds in accumulate(epoch["seconds"] for epoch in metrics)],
                y=[epoch["valid"]["perplexity"] for epoch in metrics],
                style="marked",
            )
        )
    return Panel(
        title="Fig. 1c: validation perplexity against time",
        x="minutes of training steps",
        y="perplexity",
        series=series,
        log_y=True,
    )


EXPERIMENT = Experiment(
    name="jacobian/language",
    paper=BAI_2021,
    subject="Figure 1c, Tables 1 and 5",
    description="Perplexity, time, evaluations and memory with and without the Jacobian penalty.",
    cases=cases,
    show=show,
)
