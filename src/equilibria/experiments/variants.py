"""Short trainings of one DEQ-Transformer and of variants of it: LayerNorm, weight norm, penalty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from equilibria.experiments import counterpart, trainings
from equilibria.experiments.case import Case
from equilibria.experiments.experiment import Scale
from equilibria.experiments.probing import probing
from equilibria.experiments.training import training
from equilibria.solve import Implicit
from equilibria.tasks.language import LanguageModelling
from equilibria.train.recipe import Recipe
from equilibria.train.regulariser import JacobianPenalty

__all__ = ["PROBED", "VARIANTS", "Variant", "case", "key", "probe", "recipe_of"]

EPOCHS: Mapping[Scale, int] = {"cpu": 5, "gpu": 20}
STEPS: Mapping[Scale, int] = {"cpu": 80, "gpu": 500}
MINUTES: Mapping[Scale, float] = {"cpu": 5, "gpu": 15}

PROBED = 16
"""Evaluations, and products of the adjoint, after which the residuals are measured."""

probe = probing(PROBED, PROBED)

PENALTY = JacobianPenalty(gamma=1.6, final_gamma=2.5, probability=0.35)
"""Table 4 of Bai et al. 2021, WikiText-103."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One training.

    Args:
        words: what it is, for a reader.
        limit: evaluations of a solve in training, forward and adjoint; 0 for the explicit stack.
        model: fields of the model that differ.
        penalised: with the Jacobian penalty.
        decay: weight decay.
        longer: factor on the length of segments, at the same tokens a step.
    """

    words: str
    limit: int
    model: Mapping[str, Any] = field(default_factory=dict)
    penalised: bool = False
    decay: float = 0.0
    longer: int = 1


PRE = {"pre_norm": True}
DROPOUT = 0.1

# Limits as in Table 5 of Bai et al. 2021.
VARIANTS: Mapping[str, Variant] = {
    "tied": Variant(words=f"weight-tied transformer of {trainings.LAYERS} layers", limit=0),
    "post": Variant(words="DEQ, post-LN", limit=30),
    "pre": Variant(words="DEQ, pre-LN", limit=30, model=PRE),
    "unnormalised": Variant(
        words="DEQ, post-LN, no weight norm", limit=30, model={"weight_norm": False}
    ),
    "dropout": Variant(words="DEQ, post-LN, dropout .1", limit=30, model={"dropout": DROPOUT}),
    "dropout-unnormalised": Variant(
        words="DEQ, post-LN, dropout .1, no weight norm",
        limit=30,
        model={"dropout": DROPOUT, "weight_norm": False},
    ),
    "post-20": Variant(words="DEQ, post-LN, 20 evaluations", limit=20),
    "post-15": Variant(words="DEQ, post-LN, 15 evaluations", limit=15),
    "decay": Variant(words="DEQ, post-LN, weight decay 1e-6", limit=30, decay=1e-6),
    "decay-more": Variant(words="DEQ, post-LN, weight decay 1e-2", limit=30, decay=1e-2),
    "post-jr": Variant(words="DEQ, post-LN, regularised", limit=13, penalised=True),
    "pre-jr": Variant(words="DEQ, pre-LN, regularised", limit=14, model=PRE, penalised=True),
    "post-jr-long": Variant(
        words="DEQ, post-LN, regularised, twice the length", limit=13, penalised=True, longer=2
    ),
}


def key(name: str) -> str:
    """Return the key of a variant's training."""
    return f"short-{name}"


def case(name: str, scale: Scale) -> Case:
    """Return the case that trains a variant, with its `probe` after each epoch."""
    implicit = VARIANTS[name].limit > 0
    recipe = recipe_of(name, scale)
    return training(key(name), recipe, MINUTES[scale], probe=probe if implicit else None)


def recipe_of(name: str, scale: Scale) -> Recipe:
    """Return a variant of the DEQ-Transformer's recipe on Penn Treebank, shortened."""
    variant, base = VARIANTS[name], trainings.named(trainings.CELLS["transformer"], scale)
    steps = STEPS[scale]
    short = replace(
        base,
        description=f"{variant.words}, {EPOCHS[scale]} times {steps} steps",
        epochs=EPOCHS[scale],
        epoch_steps=steps,
        optimiser=replace(cast(Any, base.optimiser), weight_decay=variant.decay),
        regulariser=None,
        # A warm-up as long as an epoch: the rest is what is looked at.
        pretrain=base.pretrain and replace(base.pretrain, steps=min(base.pretrain.steps, steps)),
    )
    if not variant.limit:
        return counterpart.explicit(short, layers=trainings.LAYERS)
    task = cast(LanguageModelling, base.task)
    adjoint = base.adjoint
    if not isinstance(adjoint, Implicit):
        raise ValueError(f"the variants limit the products of an Implicit adjoint, not {adjoint}")
    return replace(
        short,
        task=replace(task, length=task.length * variant.longer),
        batch_size=base.batch_size // variant.longer,
        model=replace(cast(Any, base.model), **variant.model),
        solver=replace(cast(Any, base.solver), rtol=1e-3, max_evals=variant.limit),
        eval_solver=None,
        adjoint=replace(
            adjoint, linear=replace(cast(Any, adjoint.linear), rtol=1e-4, max_evals=variant.limit)
        ),
        regulariser=PENALTY if variant.penalised else None,
    )
