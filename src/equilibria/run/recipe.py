"""Recipes: everything that determines what a training run does."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

import yaml

import equilibria.solve as solve
from equilibria.checks import check_fields
from equilibria.run import config, plugins, registry, yaml_text
from equilibria.run.alternating import Alternating
from equilibria.run.checkpoint import Checkpointing
from equilibria.run.choices import Choices
from equilibria.run.config import ConfigError
from equilibria.run.initialization import Initialization, ShallowStart
from equilibria.run.models import ModelConfig
from equilibria.run.models.registry import LAYER
from equilibria.run.optimizer import (
    SGD,
    Adam,
    AdamW,
    Constant,
    Cosine,
    OneCycle,
    Optimizer,
    Poly,
    Schedule,
    StableDecay,
)
from equilibria.run.path import RandomPath
from equilibria.run.regularizer import EvaluationBudget, JacobianPenalty
from equilibria.run.tasks import Task, TaskConfig
from equilibria.solve import Adjoint, Auto, Implicit, Solver, advances
from equilibria.stability import AdaptiveAdjoint, FixedPointCorrection
from equilibria.words import nearest

METHODS: dict[str, type] = {
    **{
        cls.__name__: cls
        for cls in (Adam, AdamW, SGD, Constant, Cosine, Poly, OneCycle, StableDecay)
    },
    **{cls.__name__: cls for cls in (Alternating, Checkpointing, Initialization, ShallowStart)},
    **{cls.__name__: cls for cls in (JacobianPenalty, EvaluationBudget, FixedPointCorrection)},
    "RandomPath": RandomPath,
    **{
        name: cls
        for name, cls in vars(solve).items()
        if isinstance(cls, type) and issubclass(cls, plugins.BASES) and cls not in plugins.BASES
    },
    "AdaptiveAdjoint": AdaptiveAdjoint,
}
"""Every class that a recipe may name, other than what applications register."""


def choices() -> Choices:
    """Return every class that a recipe may name, by its name there.

    Of a user's own solvers, linear solvers and adjoints, those that have been named are known.
    """
    known = Choices(
        (
            *((name, ModelConfig, place) for name, place in registry.find("models").items()),
            *((name, TaskConfig, place) for name, place in registry.find("tasks").items()),
            *((name, base, place) for name, (base, place) in registry.find("classes").items()),
        )
    )
    return known.and_these({**METHODS, **plugins.LOADED})


IMPLICIT = (*LAYER, "initialization", "regularizer", "correction", "path", "pretrain", "neural")
"""Keys of a recipe that only an equilibrium network has."""

SUFFIXES = (".yaml", ".yml")
"""How the names of recipe files end."""

Parallel = Literal["ddp", "fsdp", "hsdp"]
"""What each of several processes holds of the parameters: all of them (ddp), a share of them
(fsdp), or a share of those that its group of processes holds (hsdp)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a training run does, down to the last digit.

    Args:
        description: what the recipe is for, in one sentence.
        task: data, loss and metric.
        model: architecture.
        solver: solver of the fixed point, or MODULE:CLASS of one's own; null for an explicit
            network, as are `adjoint`, `initialization`, `regularizer`, `correction`, `path`,
            `pretrain` and `neural`.
        eval_solver: solver in evaluation; null for the same one.
        adjoint: how the fixed point is differentiated, or MODULE:CLASS of one's own.
        drop_finished: let samples that have converged leave the batch.
        reuse: begin each step at the states that its samples had a step before, and take one
            evaluation. For tasks whose inputs stay the same, and one process.
        initialization: ensemble of the cell's recurrent weights; null for the model's own.
        init_from: run folder, or safetensors file, whose weights the model begins with, as far as
            names and shapes agree; null for new ones.
        optimizer: optimiser and its peak learning rate.
        schedule: learning-rate schedule.
        regularizer: penalty on the Jacobian at the solution, which keeps solves short; null for
            none.
        correction: loss on states along the solver's path; null for none.
        path: random depths and starts of the training steps, without `adjoint` and `neural` unless
            its gradient is exact; null to solve as the solver says.
        pretrain: shallow network trained in the first steps; null to solve from the first step.
        neural: learned solver of the training steps, trained along with the model; null for none.
        epochs: epochs of the run; each is followed by an evaluation.
        epoch_steps: steps that count as an epoch; null for a pass over the training data; auto for
            as many as follow from the number and the size of the images (task own_images).
        batch_size: samples or streams per step, over all processes; all for every training sample.
        accumulate: micro-batches into which each process splits its share of a step, run one after
            the other: less memory, and the same gradient up to rounding.
        eval_batch_size: samples per batch in evaluation, on each process; or streams of a text,
            over all processes.
        parallel: what each of several processes holds of parameters, gradients and the optimiser's
            moments: ddp, everything; fsdp, a share; hsdp, a share of what the processes of a
            machine hold together. The result is the same up to rounding.
        shard: processes that hold the parameters together under hsdp; null for those of a machine.
        clip: maximum norm of the gradient of all parameters together; null for no limit.
        precision: arithmetic inside the cell and around the solver: float32, or autocast to bf16
            or fp16. The solver's own arithmetic stays in float32.
        probes: held-out samples at which the spectral radius is measured after each epoch.
        restarts: epochs after which the schedule and the ramp of the regulariser start again: where
            the run was extended.
        checkpoint: how often checkpoints are written, and how many are kept.
        seed: seed of the initial weights, the order of the samples and everything else random.
    """

    description: str = ""
    task: TaskConfig
    model: ModelConfig
    solver: Solver | None = field(default_factory=Auto)
    eval_solver: Solver | None = None
    adjoint: Adjoint | None = field(default_factory=Implicit)
    drop_finished: bool = False
    reuse: bool = False
    initialization: Initialization | None = None
    init_from: str | None = None
    optimizer: Optimizer = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=Cosine)
    regularizer: JacobianPenalty | None = None
    correction: FixedPointCorrection | None = None
    path: RandomPath | None = None
    pretrain: ShallowStart | None = None
    neural: Alternating | None = None
    epochs: int = 10
    epoch_steps: int | Literal["auto"] | None = None
    batch_size: int | Literal["all"] = 64
    accumulate: int = 1
    eval_batch_size: int = 500
    parallel: Parallel = "ddp"
    shard: int | None = None
    clip: float | None = None
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    probes: int = 64
    restarts: tuple[int, ...] = ()
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("epochs", "epoch_steps", "batch_size", "accumulate", "eval_batch_size", "probes")
        for name in counts:
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if self.shard is not None and (self.parallel != "hsdp" or self.shard < 2):
            raise ValueError(
                f"shard is {self.shard}: it is how many processes hold the parameters together "
                "under parallel: hsdp, at least 2"
            )
        ends = (0, *self.restarts, self.epochs)
        if any(one >= other for one, other in itertools.pairwise(ends)):
            raise ValueError(
                f"restarts must be increasing epochs between 0 and epochs ({self.epochs}); got "
                f"{', '.join(map(str, self.restarts))}"
            )
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be between 0 and 2^32 - 1; got {self.seed}")
        check_fields(self, "(0, inf]", "clip")
        if self.init_from is not None and self.initialization is not None:
            raise ValueError(
                "init_from and initialization both set the weights that a run begins with: give "
                "one of them"
            )
        if self.model.implicit:
            self._check_layer()
        else:
            self._check_explicit()

    def _check_layer(self) -> None:
        for name in ("solver", "adjoint"):
            if getattr(self, name) is None:
                raise ValueError(f"{name}: is missing, and {type(self.model).__name__} needs one")
        assert self.solver is not None
        self._check_adjoint()
        self._check_path()
        self._check_reuse()
        controller = self.regularizer and self.regularizer.controller
        if controller and controller.evals >= self.solver.max_evals:
            raise ValueError(
                f"regularizer.controller.evals is {controller.evals:g}, but solver.max_evals is "
                f"{self.solver.max_evals}: solves can never exceed this budget; lower it"
            )

    def _check_adjoint(self) -> None:
        """Raise ValueError if the adjoint cannot differentiate what the solver does."""
        if isinstance(self.adjoint, solve.Shine):
            if not (isinstance(self.solver, solve.Broyden) and self.solver.memory is None):
                raise ValueError(
                    "adjoint is Shine, which shares the matrix of a forward solve by Broyden with "
                    "unlimited memory: set solver.name to Broyden and solver.memory to null"
                )
            if self.neural is not None:
                raise ValueError(
                    "adjoint is Shine, which shares the matrix of a forward solve, and a learned "
                    "solver has none: set neural.name to null"
                )
        if isinstance(self.adjoint, solve.Unrolled) and isinstance(self.solver, solve.NewtonKrylov):
            raise ValueError(
                "adjoint is Unrolled, which cannot differentiate the steps of NewtonKrylov: set "
                "solver.name or adjoint.name to another"
            )

    def _check_path(self) -> None:
        """Raise ValueError if a random path would override what the recipe says elsewhere."""
        if self.path is None or self.path.gradient == "exact":
            return
        given = {
            "adjoint": self.adjoint if self.adjoint != Implicit() else None,
            "neural": self.neural,
        }
        for name, value in given.items():
            if value is not None:
                remedy = "leave it out" if name == "adjoint" else f"set {name}.name to null"
                raise ValueError(
                    f"{name} is {type(value).__name__}, which path would override: its training "
                    f"steps iterate plainly and have a {self.path.gradient} gradient. Either "
                    f"{remedy}, or set path.gradient to exact"
                )

    def _check_reuse(self) -> None:
        """Raise ValueError if a step cannot do with one evaluation."""
        if not self.reuse:
            return
        if not advances(self.adjoint):
            raise ValueError(
                f"adjoint is {type(self.adjoint).__name__}, and reuse takes one evaluation a step, "
                "which it cannot differentiate: choose JacobianFree, NeumannPhantom or Implicit, "
                "or set reuse to false"
            )
        for name in ("regularizer", "correction", "path", "neural"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} needs a solve, and reuse takes one evaluation a step: set one of "
                    "them to null, or reuse to false"
                )
        if self.parallel != "ddp":
            raise ValueError(
                f"parallel is {self.parallel}, and reuse keeps all states on one process: set "
                "parallel to ddp, or reuse to false"
            )

    def _check_explicit(self) -> None:
        for name, default in (("solver", Auto()), ("adjoint", Implicit())):
            if getattr(self, name) == default:  # nobody has asked for it
                object.__setattr__(self, name, None)
        given = [name for name in IMPLICIT if getattr(self, name)]
        if given:
            raise ValueError(_explain_nothing_to_solve(type(self.model).__name__, given))
        if self.reuse:
            raise ValueError(
                f"reuse is true, and {type(self.model).__name__} is an explicit network, which has "
                "no state to begin at: set reuse to false"
            )

    @property
    def rows(self) -> int:
        """Samples or streams per step.

        Raises:
            ValueError: they are all, and the recipe has not been through `settle` with its data.
        """
        if self.batch_size == "all":
            raise ValueError("batch_size is all, and the data are not known yet")
        return self.batch_size

    @property
    def ends(self) -> tuple[int, ...]:
        """The epochs at which the segments of the run end."""
        return (*self.restarts, self.epochs)

    def segment(self, step: int, steps_per_epoch: int) -> tuple[int, int]:
        """Return the first step and the number of steps of the segment that `step` is in.

        A run that was extended has several; the schedule starts again with each.
        """
        ends = [epochs * steps_per_epoch for epochs in self.ends]
        end = next((end for end in ends if step < end), ends[-1])
        begin = max(each for each in (0, *ends) if each < end)
        return begin, end - begin

    def extend_by(self, epochs: int) -> Recipe:
        """Return the recipe of the run with a further segment of so many epochs."""
        return replace(self, epochs=self.epochs + epochs, restarts=self.ends)

    def layer(self) -> dict[str, Any]:
        """Return the keywords of the model's `DEQ` layer; none for an explicit network."""
        return {name: getattr(self, name) for name in LAYER} if self.model.implicit else {}


AUTO = "auto"
"""The value of a key that follows from the data."""


def settle(recipe: Recipe, task: Task) -> Recipe:
    """Return a recipe with everything filled in that it leaves to the data of its task.

    Raises:
        ValueError: the model cannot take the data, or the task does not say.
    """
    steps = recipe.epoch_steps
    if recipe.batch_size == "all":
        recipe = replace(recipe, batch_size=task.whole())
    return replace(
        recipe,
        task=task.settle(recipe.task),
        model=task.complete(recipe.model),
        epoch_steps=task.pace(recipe.rows, recipe.epochs) if steps == "auto" else steps,
    )


def list_chosen(recipe: Recipe, resolved: Recipe) -> list[str]:
    """Return a line 'key value' for each key that is `auto` in a recipe and resolved since."""
    before, after = (dict(config.leaves(dump(each))) for each in (recipe, resolved))
    keys = [key for key, value in before.items() if value == AUTO != after[key]]
    text = {key: yaml.safe_dump(after[key], default_flow_style=True) for key in keys}
    return [f"{key} {value.splitlines()[0]}" for key, value in text.items()]


UNDECISIVE = ("description", "parallel", "shard", "checkpoint")
"""Keys of a recipe that do not affect the result."""


def _explain_nothing_to_solve(model: str, given: Sequence[str]) -> str:
    return (
        f"{model} is an explicit network: there is nothing to solve, so its recipe has no "
        f"{', '.join(given)}. Leave out what is named, or unset it: "
        + " ".join(
            f"--{key} false" if key == "drop_finished" else f"--{key}.name null" for key in given
        )
    )


def available() -> list[str]:
    """Return the names of the recipes that applications come with."""
    return sorted(_files())


@functools.cache
def _files() -> dict[str, Traversable]:
    """The files of the recipes, by name, each beside its application."""
    found: dict[str, Traversable] = {}
    owners: dict[str, str] = {}
    for each in registry.applications():
        if not hasattr(sys.modules.get(each.package), "__path__"):
            continue  # a module without a folder
        folder = resources.files(each.package).joinpath("recipes")
        for file in folder.iterdir() if folder.is_dir() else ():
            name = file.name.removesuffix(".yaml")
            if name != file.name and registry.keep_first(name, owners, each, "recipes"):
                found[name] = file
    return found


@functools.cache
def _read_shipped(name: str) -> dict[str, Any]:
    return yaml_text.parse(_files()[name].read_bytes())


def read(name: str) -> dict[str, Any]:
    """Return the content of the recipe `name`, or of a YAML file at that path.

    Raises:
        ConfigError: there is no such recipe, it cannot be read, or it is not a mapping in YAML;
            see `yaml_text.parse`.
    """
    if name in available():
        return copy.deepcopy(_read_shipped(name))
    path = Path(name)
    if path.is_file() or (path.exists() and path.suffix in SUFFIXES):
        return yaml_text.read(path)
    if path.suffix in SUFFIXES:
        raise ConfigError(f"there is no recipe file {name}")
    raise ConfigError(f"there is no recipe '{name}'" + nearest(name, available()))


def load(name: str, argv: Sequence[str] = ()) -> Recipe:
    """Return the recipe `name` with the options of `argv` in place of its own values.

    Args:
        name: a shipped recipe or the path of a YAML file.
        argv: command line options such as `--solver.history 3`.

    Raises:
        ConfigError: an unknown recipe, key or class, or a value that one of them rejects.
    """
    return parse(read(name), argv, source=f"recipe {name}")


GONE = ("guess", "preconditioner")
"""Options that `Implicit` had when runs were recorded and rows of results measured, None each."""


def parse(tree: Mapping[str, Any], argv: Sequence[str] = (), *, source: str = "recipe") -> Recipe:
    """Return the recipe that a nested mapping describes; see `load`."""
    adjoint = tree.get("adjoint")
    if isinstance(adjoint, Mapping):  # what runs recorded of options that are gone
        kept = {k: v for k, v in adjoint.items() if k not in GONE or v is not None}
        tree = {**tree, "adjoint": kept}
    recipe = config.build(Recipe, tree, choices(), argv, source=source)
    if not recipe.model.implicit:
        # The class ignores a value that equals a default, but here it was given explicitly.
        options = dict(config.pairs(argv))
        spellings = {name: (name, config.BRITISH.get(name, name)) for name in IMPLICIT}
        given = [
            name
            for name, words in spellings.items()
            if any(
                (options.get(f"{each}.name") or options.get(each) or tree.get(each) or "null")
                not in ("null", "false")
                for each in words
            )
        ]
        if given:
            raise ConfigError(_explain_nothing_to_solve(type(recipe.model).__name__, given))
    return recipe


def dump(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as a nested mapping with every default filled in."""
    return config.dump(recipe, choices())


def decisive(recipe: Recipe) -> dict[str, Any]:
    """Return the keys of a recipe that determine its result, with every default filled in."""
    left_out = {
        *UNDECISIVE,
        # As before there were any.
        *(() if recipe.restarts else ("restarts",)),
        *(() if recipe.init_from else ("init_from",)),
        *(() if recipe.reuse else ("reuse",)),
        *(() if recipe.neural else ("neural",)),
        *(() if recipe.path else ("path",)),
    }
    tree = {key: value for key, value in dump(recipe).items() if key not in left_out}
    for key in ("file", "data"):  # where the user's data are; what they are, their checksum tells
        if Path(tree["task"].get(key) or "").is_absolute():
            tree["task"] = {**tree["task"], key: None}
    return _as_before(tree)


ALTERNATING = "AlternatingAnderson"  # the former name of Anderson with a period above 1

FORMER_NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "Fallback": ("Relay", {"then": "last"}),
    "DirectSolve": ("Dense", {}),
    "AdaptiveAdjoint": (
        "Audited",
        {"min_cosine": "floor", "check_every": "every", "level": "rung"},
    ),
}
"""What methods, and their options, were called when older runs and published rows were recorded."""

_FORMER = (
    *(("per_row", False), ("start_noise", 0.0), ("lanes", None)),
    *(("separator", None), ("missing", "error"), ("channel", None), ("encoding", "utf-8")),
)
"""Fields that are younger than published results, and their values in these."""


def _as_before(tree: Any) -> Any:
    """Return a tree without the fields in `_FORMER`, where they have the values there, and with
    the names of then."""
    if isinstance(tree, Mapping):
        kept = {key: value for key, value in tree.items() if (key, value) not in _FORMER}
        name, options = FORMER_NAMES.get(kept.get("name", ""), (kept.get("name"), {}))
        if name == "Anderson" and kept.get("period", 1) != 1:
            name = ALTERNATING
        name = config.BRITISH.get(str(name), name)
        options = {"drop_finished": "per_sample", **config.BRITISH, **options}
        found = {options.get(key, key): _as_before(value) for key, value in kept.items()}
        return found if name is None else {**found, "name": name}
    return [_as_before(each) for each in tree] if isinstance(tree, list | tuple) else tree


def modernize(tree: Any) -> Any:
    """Return the recipe of a saved run, or a part of it, with today's names."""
    if isinstance(tree, Mapping):
        if plugins.is_path(tree.get("name")):  # whose options are its own
            return {key: modernize(value) for key, value in tree.items()}
        today = {old: (new, options) for new, (old, options) in FORMER_NAMES.items()}
        name, options = today.get(str(tree.get("name")), (tree.get("name"), {}))
        options = {"per_sample": "drop_finished", **{old: new for new, old in options.items()}}
        found = {options.get(key, key): modernize(value) for key, value in tree.items()}
        if name == ALTERNATING:
            name, found = "Anderson", {"period": 3, **found}
        if name == "Auto" and "linear" in found:  # whose third phase was not an option
            found["newton"] = found.pop("linear")
        return found if name is None else {**found, "name": name}
    return [modernize(each) for each in tree] if isinstance(tree, list | tuple) else tree


def _spell(tree: Any) -> Any:
    """Return the tree of a recipe with today's spelling of its keys."""
    if isinstance(tree, Mapping):
        return {config.AMERICAN.get(key, key): _spell(value) for key, value in tree.items()}
    return tree


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return a line for each key at which two `decisive` trees differ: 'key: this, that'.

    A further segment is no difference: what was trained before is the same.
    """
    ends = [(*tree.get("restarts", ()), tree["epochs"]) for tree in (one, other)]
    trees = [_spell(modernize(_as_before(tree))) for tree in (one, other)]
    if ends[0] == ends[1][: len(ends[0])]:
        trees = [{k: v for k, v in t.items() if k not in ("epochs", "restarts")} for t in trees]
    return config.differences(*trees)


def to_yaml(recipe: Recipe) -> str:
    """Return the recipe as YAML with every default filled in; `parse` reads it back."""
    return yaml.safe_dump(dump(recipe), sort_keys=False, default_flow_style=None, width=100)
