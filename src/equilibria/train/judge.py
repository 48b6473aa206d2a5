"""What a run tells about its model: after each epoch, and at its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from torch import nn

from equilibria.models import EquilibriumModel
from equilibria.models.sequence.base import SequenceModel
from equilibria.train import checkpoint, evaluation, files, memory
from equilibria.train.run import Folder, environment
from equilibria.train.step import Step


class Judge:
    """Evaluates the model that a run trains, as it is after a number of steps.

    Args:
        stepper: model, task and recipe of the run.
    """

    def __init__(self, stepper: Step) -> None:
        self.stepper = stepper
        self.model, self.task = stepper.model, stepper.task
        self.recipe, self.accelerator = stepper.recipe, stepper.accelerator

    def describe(self) -> dict[str, Any]:
        """Return what the result depends on beside the recipe."""
        count = _parameters(self.model)
        counts = {"parameters": count}
        if isinstance(self.model, SequenceModel):
            counts["parameters_without_lexicon"] = count - _parameters(self.model.lexicon)
        beginning = self.stepper.beginning
        began = {} if beginning is None else {"initialisation": beginning.json()}
        return {
            **environment(),
            "processes": self.accelerator.num_processes,
            "device": self.accelerator.device.type,
            **counts,
            **began,
            "source": self.task.source,
            "data": self.task.checksum,
        }

    def evaluate(self, split: str, step: int, depths: tuple[int, ...] = ()) -> dict[str, Any]:
        """Return the model's figures on a split; see `evaluation.evaluate`.

        In the shallow beginning of a run, the shallow network is evaluated.

        Args:
            split: one of the task's.
            step: steps that were taken.
            depths: evaluations after which the accuracy is taken too.
        """
        shallow = self.stepper.shallow(step - 1)
        with self.stepper.phase(step - 1):
            return evaluation.evaluate(
                self.model,
                self.task,
                self.accelerator,
                split=split,
                batch_size=self.recipe.eval_batch_size,
                depths=() if shallow else depths,
                count_solves=not shallow,
            )

    def radius(self, step: int) -> dict[str, float] | None:
        """Return the spectral radius at the first samples that training is judged by.

        None of a network that solves nothing; see `evaluation.radius`.

        Args:
            step: steps that were taken.
        """
        if not isinstance(self.model, EquilibriumModel) or self.stepper.shallow(step - 1):
            return None
        probes = evaluation.probes(self.task, self.recipe.probes, self.accelerator)
        return evaluation.radius(self.model, probes.inputs)

    def conclude(self, folder: Folder, console: Console, step: int) -> None:
        """Write the weights and evaluation.json; say so if samples missed their fixed point.

        Args:
            folder: of the run.
            console: where to say it.
            step: steps that were taken.
        """
        depths = () if self.task.streams else evaluation.DEPTHS
        result = self.evaluate("test", step, depths)
        if (radius := self.radius(step)) is not None:
            result["spectral_radius"] = radius
        if self.accelerator.is_main_process:
            checkpoint.save_weights(folder.weights, self.model)
            files.write_json(folder.evaluation, result)
        statuses = result["forward"]["status"]
        if statuses is not None and statuses["CONVERGED"] < 0.99:
            ended = ", ".join(
                f"{100 * share:.1f} % {name}" for name, share in statuses.items() if share
            )
            console.print(
                f"Not all test samples reached their fixed point: {ended}. "
                f"See: equilibria doctor {folder.path}",
                style="yellow",
                markup=False,
            )

    def measure(self, folder: Folder, console: Console, stop: Callable[[], bool]) -> bool:
        """Write memory.json, the memory of a training step against depth, point by point.

        Points that are there already are kept. Those that the machine is too small for are left
        out; see `memory.measure_within`.

        Args:
            folder: of the run.
            console: where to say what is left out.
            stop: asked after each point whether to stop there.

        Returns:
            Whether nothing is left to measure.
        """
        order = [each.key for each in memory.settings(self.model)]
        known = [point for point in _points(folder) if point.key in order]
        missing = memory.missing(self.model, known)
        if not folder.memory.exists():
            files.write_json(folder.memory, [])
        if not missing:
            return True
        if stop():
            return False
        found = memory.measure_within(
            self.model,
            self.task,
            self.task.feed(self.recipe.batch_size, self.recipe.seed).batch(0),
            known=known,
            skipped=lambda reason: console.print(reason, style="yellow", markup=False),
        )
        for point in found:
            known = [*known, point]
            known.sort(key=lambda each: order.index(each.key))
            files.write_json(folder.memory, [asdict(each) for each in known])
            if point.key != missing[-1].key and stop():
                return False
        return True


def _points(folder: Folder) -> list[memory.MemoryPoint]:
    """Return what memory.json has; nothing where there is none, or one of another version."""
    try:
        content = json.loads(folder.memory.read_text("utf-8"))
        return [memory.MemoryPoint(**point) for point in content]
    except (OSError, ValueError, TypeError):
        return []


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
