"""Whether DEQ-Transformers train more steadily from orthogonal and GOE layers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from equilibria.nn.init import Ensemble
from equilibria.run.recipe import Recipe
from equilibria.run.studies import views
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Point, Scale, Study, grid
from papers.deq.common import load_recipe
from papers.initialisation.common import NAMES
from papers.initialisation.learning import perplexity
from papers.published import AGARWALA_2022, read_published

RECIPE = "lm-ptb-characters"
SCALES = (0.1, 1.0, 6.0)
SEEDS, SEGMENTS = 5, 256
POINT = 20
"""Steps of a point of a learning curve."""
FAILED = 1.5
"""A training has failed if it diverges, or ends at so many times the perplexity of the best."""

LAYERS: Mapping[str, tuple[Ensemble, int]] = {
    "goe": ("goe", 1),
    "orthogonal": ("orthogonal", 4),
    "gaussian": ("gaussian", 4),
    "orthogonal-square": ("orthogonal", 1),
    "gaussian-square": ("gaussian", 1),
}
"""Ensemble of the dense layers, and their inner width in units of the state's: the paper's three,
whose GOE network is square and smaller than the others, and two of its size."""
WORDS = {**NAMES, **{f"{e}-square": f"{NAMES[e]}, GOE's size" for e in ("orthogonal", "gaussian")}}


def _recipe(layers: str, size: float, seed: int, scale: Scale) -> Recipe:
    recipe, (ensemble, wide) = load_recipe(RECIPE, scale), LAYERS[layers]
    model, start = cast(Any, recipe.model), cast(Any, recipe.initialization)
    return replace(
        recipe,
        epochs=recipe.epochs * int(recipe.epoch_steps or POINT) // POINT,
        epoch_steps=POINT,
        model=replace(model, inner=wide * model.width),
        initialization=replace(start, ensemble=ensemble, scale=size),
        seed=seed,
    )


def _compare(data: Data) -> Frame:
    """Beside each perplexity its ratio to the best."""
    rows = data.series("perplexity")
    return rows.assign(ratio=rows["perplexity"] / rows["perplexity"].min())


STUDY = Study(
    item="Figure 6 and Table 1",
    title="DEQ-Transformers from different dense layers",
    points=lambda scale: [
        Point(
            {name: each[name] for name in ("layers", "scale", "seed")},
            [partial(perplexity, count=SEGMENTS)],
            reads=[_recipe(each["layers"], each["scale"], each["seed"], scale)],
            minutes=0.6,
        )
        for each in grid(seed=range(SEEDS), scale=SCALES, layers=LAYERS)
    ],
    views=[
        views.Derived(
            _compare,
            views.Pivot(
                title="Table 1: test perplexity by the ensemble of the dense layers",
                index={"scale": "sqrt V", "layers": "dense layers"},
                each="perplexity",
                words={"layers": WORDS},
                values={
                    "seeds": lambda rows: int(rows["done"].sum()),
                    "parameters": views.first("parameters"),
                    "min": views.smallest("perplexity"),
                    "mean": lambda rows: views.mean("perplexity")(
                        rows[rows["perplexity"] < math.inf]
                    ),
                    "max": views.largest("perplexity"),
                    "failed, %": lambda rows: 100 * (rows["ratio"].dropna() > FAILED).mean(),
                    "solves converged, %": views.mean("forward_converged", 100),
                    "adjoints converged, %": views.mean("adjoint_converged", 100),
                },
                note=f"Perplexity of a character of Penn Treebank's test text, {SEGMENTS} "
                f"segments, after the recipe {RECIPE}: a pre-LN DEQ-Transformer, Broyden with at "
                f"most 20 evaluations. Failed: above {FAILED:g} times the best of all, or "
                "diverged; means are of those that did not diverge. Solves: of the last "
                f"{POINT} steps. The paper's GOE network has dense layers of a quarter of the "
                "others' size, for they must be square; the last two rows of each scale have its "
                "size. Among the larger networks, the orthogonal layer with four times as many "
                "outputs as inputs has entries half as large as the Gaussian one of the same "
                "scale; square layers have one gain.",
            ),
        ),
        views.Table(
            title="Table 1 as published",
            columns=["dense layers", "sqrt V", "min", "mean"],
            rows=lambda _: [
                [NAMES[row["ensemble"]], row["scale"], row["min"], row["mean"]]
                for row in read_published(AGARWALA_2022, "Table 1")
            ],
            note="WikiText-103, test perplexity of sentence pieces, 10 seeds, a state of 700 with "
            "dense layers of 2,800 (GOE: 700).",
        ),
        *(
            views.Lines(
                "step",
                "loss",
                by=["seed", "layers"],
                where={"scale": size},
                label=lambda seed, layers: "" if seed else WORDS[layers],
                colors={layers: place for place, layers in enumerate(LAYERS)},
                merge=None,
            ).chart(
                f"Fig. 6: sqrt V = {size:g}, {SEEDS} seeds",
                "steps",
                "training loss, nats a character",
                log_y=True,
            )
            for size in SCALES
        ),
    ],
)
