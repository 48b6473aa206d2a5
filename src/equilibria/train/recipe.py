"""Recipes: everything that decides what a training run does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from equilibria import solve
from equilibria.models import ModelConfig
from equilibria.models.registry import CONFIGS, LAYER
from equilibria.solve import Adjoint, Anderson, Implicit, Solver
from equilibria.stability import FixedPointCorrection
from equilibria.tasks import TASKS, TaskConfig
from equilibria.train import config
from equilibria.train.config import ConfigError, nearest
from equilibria.train.optimiser import SGD, AdamW, Optimiser
from equilibria.train.regulariser import EvaluationBudget, JacobianPenalty
from equilibria.train.schedule import Constant, Cosine, Schedule

CHOICES: dict[str, type] = {
    **CONFIGS,
    **TASKS,
    **{cls.__name__: cls for cls in (AdamW, SGD, Constant, Cosine)},
    **{cls.__name__: cls for cls in (JacobianPenalty, EvaluationBudget, FixedPointCorrection)},
    **{
        name: getattr(solve, name)
        for name in (
            *("Picard", "Anderson", "Broyden", "NewtonKrylov", "Auto"),
            *("GMRES", "BiCGSTAB", "Neumann", "Dense", "Relay"),
            *("Implicit", "Phantom", "NeumannPhantom", "JacobianFree", "Shine", "Unrolled"),
        )
    },
}
"""Every class that a recipe may name."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a training run does, down to the last digit.

    Args:
        description: what the recipe is for, in a sentence.
        task: data, loss and metric.
        model: architecture.
        solver: solver of the fixed point.
        eval_solver: solver in evaluation; null for the same one.
        adjoint: what stands for the derivative of the fixed point.
        per_sample: let samples that have converged leave the batch.
        optimiser: optimiser and its highest learning rate.
        schedule: course of the learning rate.
        regulariser: penalty on the Jacobian at the solution, which keeps solves short; null for
            none.
        correction: loss on states along the solver's path; null for none.
        epochs: passes over the training samples.
        batch_size: samples a step, of all processes together.
        eval_batch_size: samples a batch in evaluation, on each process.
        clip: largest norm of the gradient of all parameters together; null for no limit.
        precision: arithmetic inside the cell and around the solver: float32, or autocast to bf16
            or fp16. The solver's own arithmetic stays in float32.
        probes: held-out samples at which the spectral radius is measured after each epoch.
        save_every: steps between checkpoints; null for one at the end of each epoch.
        seed: seed of the initial weights, the order of the samples and everything else at random.
    """

    description: str = ""
    task: TaskConfig
    model: ModelConfig
    solver: Solver = field(default_factory=Anderson)
    eval_solver: Solver | None = None
    adjoint: Adjoint = field(default_factory=Implicit)
    per_sample: bool = False
    optimiser: Optimiser = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=Cosine)
    regulariser: JacobianPenalty | None = None
    correction: FixedPointCorrection | None = None
    epochs: int = 10
    batch_size: int = 64
    eval_batch_size: int = 500
    clip: float | None = None
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    probes: int = 64
    save_every: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "eval_batch_size", "probes", "save_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be between 0 and 2^32 - 1; got {self.seed}")
        if self.clip is not None and not self.clip > 0.0:
            raise ValueError(f"clip must be positive, or null for no limit; got {self.clip}")
        controller = self.regulariser and self.regulariser.controller
        if controller and controller.evals >= self.solver.max_evals:
            raise ValueError(
                f"regulariser.controller.evals is {controller.evals:g}, but solver.max_evals is "
                f"{self.solver.max_evals}: solves can never exceed that budget; lower it"
            )

    def layer(self) -> dict[str, Any]:
        """Return the keywords of the model's `DEQ` layer."""
        return {name: getattr(self, name) for name in LAYER}


def available() -> list[str]:
    """Return the names of the recipes that come with the package."""
    files = resources.files("equilibria.recipes").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def read(name: str) -> dict[str, Any]:
    """Return the content of the recipe `name`, or of a YAML file at that path.

    Raises:
        ConfigError: there is no such recipe, or it is not a mapping in YAML.
        OSError: the file cannot be read.
    """
    if name in available():
        text = resources.files("equilibria.recipes").joinpath(f"{name}.yaml").read_text("utf-8")
    elif name.endswith((".yaml", ".yml")) or Path(name).is_file():
        if not Path(name).is_file():
            raise ConfigError(f"there is no recipe file {name}")
        try:
            text = Path(name).read_text("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{name} is no text in UTF-8: {error}") from None
    else:
        raise ConfigError(f"there is no recipe '{name}'" + nearest(name, available()))
    try:
        tree = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{name} must be a mapping of keys to values; see `equilibria recipes`")
    return tree


def load(name: str, argv: Sequence[str] = ()) -> Recipe:
    """Return the recipe `name` with the options of `argv` in place of its own values.

    Args:
        name: a shipped recipe or the path of a YAML file.
        argv: command line options such as `--solver.history 3`.

    Raises:
        ConfigError: an unknown recipe, key or class, or a value that one of them refuses.
    """
    return parse(read(name), argv, source=f"recipe {name}")


def parse(tree: Mapping[str, Any], argv: Sequence[str] = (), *, source: str = "recipe") -> Recipe:
    """Return the recipe that a nested mapping describes; see `load`."""
    return config.build(Recipe, tree, CHOICES, argv, source=source)


def dump(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as a nested mapping with every default spelt out."""
    return config.dump(recipe, CHOICES)


def to_yaml(recipe: Recipe) -> str:
    """Return the recipe as YAML with every default spelt out; `parse` reads it back."""
    return yaml.safe_dump(dump(recipe), sort_keys=False, default_flow_style=None, width=100)


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as in YAML 1.2 and in Python."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)
