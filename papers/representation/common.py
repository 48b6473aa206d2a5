"""What the studies of representations share: trainings, signals, and warm starts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.nn import using
from equilibria.nn.using import in_eval_mode
from equilibria.run import recipe as recipes
from equilibria.run.models import EquilibriumModel
from equilibria.run.recipe import Recipe
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.measures.epochs import summary
from equilibria.run.studies.study import Context, Point, Scale
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import mean, number, spread
from equilibria.run.studies.views.tables import Column
from equilibria.run.trainer import Trainer
from equilibria.run.trees import to_device
from equilibria.solve import Picard
from papers.published import BAI_2022, read_published

# --- Coordinate networks, named as in the tables of the thesis, and their trainings ---------------

FILTERS = ("Fourier", "Gabor", "sines")

_MODELS = {
    "Fourier": ("imfn", "mfn", ("--model.filter", "fourier")),
    "Gabor": ("imfn", "mfn", ("--model.filter", "gabor")),
    "sines": ("isiren", "siren-injected", ()),
}
"""The equilibrium network, the explicit one, and further options."""

_NO_SOLVES = (
    *("--solver.name", "null", "--eval-solver.name", "null", "--adjoint.name", "null"),
    *("--reuse", "false"),
)
_NAME = re.compile(r"(implicit|explicit) (\d+)L-(\d+)D")


def recipe(base: str, filters: str, network: str, *words: str) -> Recipe:
    """Return a recipe with a different network.

    Args:
        base: its name.
        filters: one of `FILTERS`.
        network: such as "implicit 1L-256D".
        words: further options.
    """
    found = _NAME.fullmatch(network)
    assert found is not None, network
    kind, layers, width = found.groups()
    implicit, explicit, options = _MODELS[filters]
    given = ("--model.name", implicit if kind == "implicit" else explicit, *options)
    solves = () if kind == "implicit" else _NO_SOLVES
    size = ("--model.layers", layers, "--model.width", width)
    return recipes.load(base, [*given, *size, *solves, *words])


def training(
    base: str, filters: str, network: str, minutes: float, words: Sequence[str], scale: Scale
) -> Training:
    """Return the training of such a recipe; at GPU scale, with the published size."""
    name = f"{base}-gpu" if scale == "gpu" else base
    return Training(recipe(name, filters, network, *words), minutes)


# --- Shared by the studies of sound, film and shape -----------------------------------------------


def points(
    base: str,
    kinds: Iterable[tuple[str, int, str]],
    scale: Scale,
    minutes: float,
    words: Sequence[str] = (),
) -> list[Point]:
    """Return a point for each training of a recipe: filters, seed and network.

    Args:
        base: the recipe at CPU scale.
        kinds: filters, seed and network of each training.
        scale: size of the recipes.
        minutes: estimated duration of each training.
        words: further options.
    """
    return [
        Point(
            {"filters": filters, "network": network, "seed": seed},
            [summary],
            {
                "run": training(
                    base, filters, network, minutes, ["--seed", str(seed), *words], scale
                )
            },
        )
        for filters, seed, network in kinds
    ]


def columns(figure: str, shown: Mapping[str, Column | str]) -> dict[str, Column | str]:
    """Return the columns of a table of trainings: their size, number and time around what is shown.

    Args:
        figure: that a training has once it is done.
        shown: columns of its quality and its solves.
    """
    return {
        "parameters": lambda rows: int(rows["parameters"].iloc[0]),
        "seeds": number(figure),
        **shown,
        "training, min": mean("seconds", 1 / 60),
    }


PSNR: Mapping[str, Column] = {"PSNR, dB": spread("psnr", 1, ".2f")}
SOLVES: Mapping[str, Column] = {
    "converged, %": mean("converged", 100),
    "evaluations": mean("evals"),
}


def from_paper(item: str) -> Iterable[Sequence[Any]]:
    """The rows of a table of the thesis."""
    return [list(row.values()) for row in read_published(BAI_2022, item)]


# --- Number of evaluations from a state to the equilibrium, measured during training --------------


@dataclass(frozen=True)
class Warmth:
    """A probe: evaluations of f until ||f(z) - z|| <= `rtol` ||f(z)||, by fixed-point iteration of
    at most `most` evaluations, from the kept states and from zero, with the weights of the next
    step.

    `kept` and `zero` use one norm over all points, as in the source; `kept_point` and `zero_point`
    are medians over points, with a separate norm for each. Nothing is changed.

    papers: Bai 2022 (thesis), Figure 8.3.
    """

    rtol: float = 0.01
    most: int = 200

    def __call__(self, trainer: Trainer) -> dict[str, Any]:
        """Return the figures of a trainer that reuses states."""
        model = cast(EquilibriumModel, trainer.model)
        batch = to_device(trainer.batch(), trainer.accelerator.device)
        assert trainer.reuse is not None
        kept = trainer.reuse.cache.read(batch.numbers)
        with in_eval_mode(model), torch.no_grad():
            operands = model.inject(batch.inputs)
            found: dict[str, Any] = {}
            for name, start in (("kept", kept), ("zero", torch.zeros_like(kept))):
                with using(model, solver=Picard(rtol=self.rtol, max_evals=self.most)):
                    evals = model.deq(*operands, z0=start).stats.evals
                found[name] = self._together(model, start, operands)
                found[f"{name}_point"] = float(evals.double().median())
        return found

    def _together(self, model: EquilibriumModel, z: Tensor, operands: Any) -> int:
        """Evaluations until all points together have converged; `most` if they do not."""
        for count in range(1, self.most + 1):
            value = model.deq.cell(z, *operands)
            if (value - z).norm() <= self.rtol * value.norm():
                return count
            z = value
        return self.most


@identified_as("_convergence.warmth")
def warmth(context: Context) -> Iterable[dict[str, Any]]:
    """The probe's figures after each `step` at which it was called."""
    for record in context.run.metrics:
        yield {"step": record["step"], **record["probe"]}
