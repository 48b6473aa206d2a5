"""A training as a case: stopped at the deadline, resumed the next time, read by the experiments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from equilibria.experiments.case import RESULT, Case, CaseError, Place
from equilibria.experiments.measure import penalised_bytes
from equilibria.models import EquilibriumModel
from equilibria.models.sequence.base import SequenceModel
from equilibria.models.vision.ode import ODEError
from equilibria.train import recipe as recipes
from equilibria.train import run as runs
from equilibria.train.recipe import Recipe
from equilibria.train.run import Folder, Run
from equilibria.train.step import Diverged
from equilibria.train.trainer import Probe, train

__all__ = ["diverged", "load", "training"]

FOLDER = "run"


def training(
    key: str, recipe: Recipe, minutes: float, *, probe: Probe | None = None, shared: bool = True
) -> Case:
    """Return the case that trains `recipe`.

    Its value: `parameters` and, of them, those of the `lexicon`; `source`, what the data are, in
    words, or None; `seconds` of all steps; `metrics`, the record of each epoch; `evaluation` on the
    test set; `memory` of a step, and `penalised_bytes` of one with the Jacobian penalty;
    `diverged`, None or, where the loss ran away or an ODE could not be integrated any more, the
    message, and then evaluation and memory are None.

    Args:
        key: name of the case, and of the run's folder.
        recipe: what to train.
        minutes: estimate.
        probe: measured after each epoch.
        shared: whether other experiments use the run.
    """

    def run(place: Place) -> Mapping[str, Any]:
        folder = Folder(place.folder / FOLDER)
        message = None
        try:
            train(
                recipe,
                folder.path,
                data_dir=place.data_dir,
                resume=folder.recipe.exists(),
                console=place.console,
                probe=probe,
                stop=lambda: place.late,
            )
        except (Diverged, ODEError) as error:
            message = str(error)  # a result too: the papers' tables have such rows
        return {
            **_summary(folder, message),
            "penalised_bytes": _penalised(place, folder, message),
        }

    return Case(
        key=key,
        description=f"trains: {recipe.description}",
        minutes=minutes,
        run=run,
        settings={"recipe": recipes.dump(recipe)},
        shared=shared,
        resumable=True,
    )


def _summary(folder: Folder, message: str | None) -> dict[str, Any]:
    metrics = folder.read_metrics()
    info = json.loads(folder.info.read_text("utf-8"))
    finished = message is None
    return {
        "parameters": info["parameters"],
        "lexicon": _lexicon(folder.read_recipe()),
        "source": info.get("source"),
        "seconds": sum(epoch["seconds"] for epoch in metrics),
        "evaluation": json.loads(folder.evaluation.read_text("utf-8")) if finished else None,
        "diverged": message,
        "metrics": metrics,
        "memory": json.loads(folder.memory.read_text("utf-8")) if finished else None,
    }


def _penalised(place: Place, folder: Folder, message: str | None) -> int | None:
    """Bytes of a step with the Jacobian penalty; None where the recipe has none, or no words."""
    recipe = folder.read_recipe() if message is None else None
    if recipe is None or recipe.regulariser is None:
        return None
    trained = runs.load(folder.path, data_dir=place.data_dir)
    model = trained.model
    if not isinstance(model, EquilibriumModel) or not isinstance(model, SequenceModel):
        return None
    batch = trained.data.feed(recipe.batch_size, recipe.seed).batch(0)
    return penalised_bytes(model, batch)


def _lexicon(recipe: Recipe) -> int | None:
    """Parameters of embedding and softmax; None of a network without words."""
    with torch.device("meta"):
        model = recipe.model.build(**recipe.layer())
    if not isinstance(model, SequenceModel):
        return None
    return sum(parameter.numel() for parameter in model.lexicon.parameters())


def diverged(place: Place, key: str) -> str | None:
    """Return the message of a shared training that diverged; None of one that has not."""
    whole = json.loads((place.shared(key) / RESULT).read_text("utf-8"))
    return whole["value"]["diverged"]


def load(place: Place, key: str) -> Run:
    """Return the trained network of a shared training, with its data.

    Raises:
        CaseError: its weights are not there, though its result is.
    """
    folder = Folder(place.shared(key) / FOLDER)
    if not folder.weights.exists():
        raise CaseError(
            f"{folder.weights} is missing: the training diverged in its first epoch, or only its "
            f"result was kept. Remove {folder.path.parent} to train {key} anew"
        )
    return runs.load(folder.path, data_dir=place.data_dir)
