"""Steps and readings of several trainings timed side by side, in one process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from equilibria.bench.clock import interleaved
from equilibria.experiments.case import Place
from equilibria.experiments.training import FOLDER
from equilibria.solve import SolveWarning
from equilibria.train import evaluation
from equilibria.train.checkpoint import load_checkpoint
from equilibria.train.run import Folder
from equilibria.train.trainer import Trainer

__all__ = ["TURNS", "WARM", "in_turns", "stepped", "trainer_of"]

TURNS = 15
"""Times that each is timed."""

WARM = 2
"""Times that each is run before."""


def trainer_of(place: Place, key: str, *, trained: bool) -> Trainer:
    """A trainer of the run, new or as it ended, some steps before its end."""
    folder = Folder(place.shared(key) / FOLDER)
    recipe = folder.read_recipe()
    trainer = Trainer(
        recipe, recipe.task.load(place.data_dir), evaluation.accelerator(recipe.precision)
    )
    if trained:
        trainer.restore(load_checkpoint(folder.checkpoint), folder.checkpoint)
        trainer.step = max(0, trainer.steps - 2 * (TURNS + WARM) - 1)  # of either kind
    if recipe.pretrain is not None:
        trainer.step = max(trainer.step, recipe.pretrain.steps)
    trainer.carry = None
    return trainer


def stepped(trainers: Mapping[str, Trainer]) -> dict[str, dict[str, float | None]]:
    """Return what a step of each trainer takes, kind by kind, all kinds of all of them in turns.

    The median of the steps as they are drawn would leave out whichever kind is the rarer.
    """
    calls: dict[str, Callable[[], object]] = {}
    shares: dict[str, float] = {}
    for name, trainer in trainers.items():
        penalty, at = trainer.recipe.regulariser, (trainer.step, trainer.steps)
        shares[name] = 0.0 if penalty is None else penalty.at(*at)[1]
        calls[f"{name} plain"] = _step(trainer, penalised=False)
        if shares[name]:
            calls[f"{name} penalised"] = _step(trainer, penalised=True)
    taken = in_turns(calls)
    found: dict[str, dict[str, float | None]] = {}
    for name, share in shares.items():
        plain, penalised = taken[f"{name} plain"], taken.get(f"{name} penalised")
        found[name] = {
            "plain": plain,
            "penalised": penalised,
            "probability": share,
            "step": (1 - share) * plain + share * (penalised or 0.0),
        }
    return found


def _step(trainer: Trainer, *, penalised: bool) -> Callable[[], object]:
    """A training step for which the penalty is drawn, or is not; as it is where there is none."""
    regulariser = trainer.recipe.regulariser
    if regulariser is None:
        return trainer.train_step
    drawn = replace(regulariser, probability=float(penalised), final_probability=None)
    recipe = replace(trainer.recipe, regulariser=drawn)

    def step() -> None:
        trainer.stabiliser.recipe = recipe
        trainer.train_step()

    return step


def in_turns(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds of each, after a few that warm up."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # as in training, where shares are logged
        for call in calls.values():
            for _ in range(WARM):
                call()
        return {name: 1e3 * s for name, s in interleaved(calls, device, turns=TURNS).items()}
