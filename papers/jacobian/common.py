"""Trainings of a DEQ-Transformer and its variants, and what figures show by epoch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from equilibria.run.recipe import Recipe
from equilibria.run.regularizer import JacobianPenalty
from equilibria.run.studies.measures.probes import Probing
from equilibria.run.studies.results import Frame
from equilibria.run.studies.study import Scale
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import DIVERGED, Cell, Chart, Lines, first, last
from equilibria.run.studies.views.tables import Column
from papers.deq.common import CELLS, LAYERS, load_recipe
from papers.measures import counterpart

# --- trainings of a DEQ-Transformer and its variants ----------------------------------------------

EPOCHS: Mapping[Scale, int] = {"cpu": 5, "gpu": 20}
STEPS: Mapping[Scale, int] = {"cpu": 80, "gpu": 500}

PROBED = 16
"""Evaluations, and products of the adjoint, after which the residuals are measured."""

PENALTY = JacobianPenalty(gamma=1.6, final_gamma=2.5, probability=0.35)
"""Table 4 of Bai et al. 2021, WikiText-103."""


@dataclass(frozen=True)
class Variant:
    """One training.

    Args:
        words: what it is, for a reader.
        limit: evaluations of a solve in training, forward and adjoint; 0 for the explicit stack.
        model: fields of the model that differ.
        penalized: with the Jacobian penalty.
        decay: of the weights.
        longer: factor on the length of segments, at the same tokens a step.
    """

    words: str
    limit: int = 30
    model: Mapping[str, Any] = field(default_factory=dict)
    penalized: bool = False
    decay: float = 0.0
    longer: int = 1


PRE, UNNORMALIZED, DROPOUT = {"pre_norm": True}, {"weight_norm": False}, {"dropout": 0.1}

# Limits as in Table 5 of Bai et al. 2021.
VARIANTS: Mapping[str, Variant] = {
    "tied": Variant(f"weight-tied transformer of {LAYERS} layers", 0),
    "post": Variant("DEQ, post-LN"),
    "pre": Variant("DEQ, pre-LN", model=PRE),
    "unnormalised": Variant("DEQ, post-LN, no weight norm", model=UNNORMALIZED),
    "dropout": Variant("DEQ, post-LN, dropout 0.1", model=DROPOUT),
    "dropout-unnormalised": Variant(
        "DEQ, post-LN, dropout 0.1, no weight norm", model=DROPOUT | UNNORMALIZED
    ),
    "post-20": Variant("DEQ, post-LN, 20 evaluations", 20),
    "post-15": Variant("DEQ, post-LN, 15 evaluations", 15),
    "decay": Variant("DEQ, post-LN, weight decay 1e-6", decay=1e-6),
    "decay-more": Variant("DEQ, post-LN, weight decay 1e-2", decay=1e-2),
    "post-jr": Variant("DEQ, post-LN, regularised", 13, penalized=True),
    "pre-jr": Variant("DEQ, pre-LN, regularised", 14, model=PRE, penalized=True),
    "post-jr-long": Variant(
        "DEQ, post-LN, regularised, twice the length", 13, penalized=True, longer=2
    ),
}


def training_of(name: str, scale: Scale) -> Training:
    """Return the training of a variant, with a probe after each epoch of an equilibrium network."""
    probe = Probing(PROBED, PROBED) if VARIANTS[name].limit else None
    minutes = {"cpu": 5, "gpu": 15}[scale]
    return Training(recipe_of(name, scale), minutes, probe=probe)


def recipe_of(name: str, scale: Scale) -> Recipe:
    """Return a variant of the DEQ-Transformer's recipe on Penn Treebank, shortened."""
    base: Any = load_recipe(CELLS["transformer"], scale)
    variant, steps, limit = VARIANTS[name], STEPS[scale], max(VARIANTS[name].limit, 1)
    linear = replace(base.adjoint.linear, rtol=1e-4, max_evals=limit)
    recipe = replace(
        base,
        description=f"{variant.words}, {EPOCHS[scale]} times {steps} steps",
        task=replace(base.task, length=base.task.length * variant.longer),
        model=replace(base.model, **variant.model),
        epochs=EPOCHS[scale],
        epoch_steps=steps,
        batch_size=base.rows // variant.longer,
        optimizer=replace(base.optimizer, weight_decay=variant.decay),
        solver=replace(base.solver, rtol=1e-3, max_evals=limit),
        eval_solver=None,
        adjoint=replace(base.adjoint, linear=linear),
        regularizer=PENALTY if variant.penalized else None,
        # A warm-up as long as an epoch: the rest is what is looked at.
        pretrain=base.pretrain and replace(base.pretrain, steps=min(base.pretrain.steps, steps)),
    )
    return recipe if variant.limit else counterpart.explicit(recipe, layers=LAYERS)


# --- residuals and the Jacobian by epoch ----------------------------------------------------------


def final(*columns: str, scale: float = 1) -> Column:
    """The last epoch's figure, of the first column that has one, or when the training diverged."""

    def cell(rows: Frame) -> Cell:
        if first("diverged")(rows) is None:
            found = (last(name, scale)(rows) for name in columns)
            return next((each for each in found if each is not None), None)
        return DIVERGED if first("epoch")(rows) else "diverged in the first epoch"

    return cell


def course(title: str, x: str, y: str, *, zero: bool = False, **options: Any) -> Chart:
    """A column over the training, a line for each network."""
    lines = Lines(x, y, by=["network"], style="marked", **options)
    return Chart(title=title, x=x, y="", marks=lines, whole_x=True, log_y=not zero, zero=zero)


def against_norm(figure: str, y: str = "", **options: Any) -> Chart:
    """The forward residual against the Jacobian's norm, a point for each epoch."""
    points = {"x": "probe_norm", "y": "probe_forward", "merge": None, "style": "points"}
    return Lines(by=["network"], **points, **options).chart(
        f"{figure}: forward residual against ||J||² / d", "||J||² / d", y, log_x=True, log_y=True
    )
