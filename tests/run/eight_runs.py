"""Eight run folders, each with something that a reader must not be misled about.

The doctor's examinations are real, of small maps that behave as the name of the run says. The
figures of the epochs are written by hand, in the shape that training gives them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import equilibria as eq
from equilibria import files
from equilibria.metric import ACCURACY, LOSS
from equilibria.run import recipe as recipes
from equilibria.stability import Examination, doctor

Map = Callable[[Tensor, Tensor], Tensor]


def solved(z, x):
    """A contraction to 2 x, which the first evaluation from zero misses by its sign."""
    return 0.5 * z + x - 2 * x * (z.abs() < 0.25 * x.abs())


def unsolved(z, x):
    """A map that jumps across zero, away from where its fixed point would be."""
    return 0.5 * z + x.abs() * torch.where(z > 0, -1.0, 1.0)


def half(z, x):
    """Samples with a positive x have a fixed point, the others none."""
    return torch.where(x > 0, solved(z, x), unsolved(z, x))


def several(z, x):
    """Two attracting fixed points in each entry, on both sides of zero."""
    return torch.tanh(2 * z + 0.1 * x)


class Cell(nn.Module):
    def __init__(self, f, gain):
        super().__init__()
        self.f, self.gain = f, nn.Parameter(torch.tensor(gain))

    def forward(self, z, x):
        return self.gain * self.f(z, x)


ANDERSON = eq.Anderson(rtol=1e-4, max_evals=40)


@cache
def examined(f, gain=1.0, solver=ANDERSON):
    """Return what the doctor finds on eight samples, four of each class."""
    x = torch.tensor([1.0, -1.0]).repeat(4)[:, None] * torch.linspace(0.5, 1.5, 8)[:, None]
    layer = eq.DEQ(Cell(f, gain), solver=solver)
    return doctor(
        layer,
        x.expand(8, 3).contiguous(),
        loss=lambda sol: sol.value.sum(),
        figure=lambda sol: float(((sol.value[:, 0] > 0) == (x[:, 0] > 0)).double().mean()),
    )


NO_SOLVE: dict[str, Any] = {"evals": None, "status": None}


def solves(**shares):
    """Return how solves ended and what they cost."""
    status = {status.name: 0.0 for status in eq.Status} | (shares or {"CONVERGED": 1.0})
    return {"evals": {"mean": 9.4, "p50": 9, "p90": 11, "p99": 13, "max": 40}, "status": status}


@dataclass(frozen=True, kw_only=True)
class Constructed:
    """One run.

    Args:
        examination: in doctor.json; None for no such file.
        forward: how forward solves ended.
        losses: of the epochs.
        planned: epochs of the recipe.
        evaluated: whether there is an evaluation.json.
        model: of the recipe.
    """

    examination: Examination | None
    forward: dict[str, Any] = field(default_factory=solves)
    losses: tuple[float, ...] = (1.2, 0.4, 0.2)
    planned: int = 3
    evaluated: bool = True
    model: str = "dense"

    def write(self, folder):
        """Write the run folder, without weights."""
        implicit = self.forward is not NO_SOLVE
        folder.mkdir()
        recipe = recipes.parse(
            {
                "task": {"name": "image_classification", "data": "digits"},
                "model": {"name": self.model, "shape": [1, 8, 8], "classes": 10},
                "epochs": self.planned,
            }
        )
        files.write_text(folder / "recipe.yaml", recipes.to_yaml(recipe))
        about = {
            "versions": {"torch": torch.__version__},
            "parameters": 1466,
            "source": "Digits",
            "unit": "samples",
            "eval_split": "test",
            "metrics": [ACCURACY.describe(), LOSS.describe()],
        }
        files.write_json(folder / "run.json", about)
        rows = [self._epoch(k, loss, implicit) for k, loss in enumerate(self.losses, start=1)]
        lines = "".join(files.to_json(row) + "\n" for row in rows)
        files.write_text(folder / "metrics.jsonl", lines)
        if self.evaluated:
            lost = math.isnan(self.losses[-1])
            at = {k: {"accuracy": math.nan if lost else 0.3 * k, "loss": 0.5} for k in (1, 2, 3)}
            files.write_json(
                folder / "evaluation.json",
                {**rows[-1]["test"], "step": rows[-1]["step"], **({"at": at} if implicit else {})},
            )
        if self.examination is not None:
            files.write_json(folder / "doctor.json", self.examination.json())
        return folder

    def _epoch(self, epoch, loss, implicit):
        accuracy = math.nan if math.isnan(loss) else 0.9
        radius = {"spectral_radius": {"mean": 0.61, "max": 0.83}} if implicit else {}
        adjoint = solves() if implicit else NO_SOLVE
        return {
            "epoch": epoch,
            "step": 21 * epoch,
            "lr": 1e-3,
            "seconds": 1.5,
            "samples": 1344,
            "train": {
                "loss": loss,
                "accuracy": accuracy,
                "forward": self.forward,
                "adjoint": adjoint,
            },
            "test": {
                "split": "test",
                "samples": 450,
                "loss": 1.1 * loss,
                "accuracy": accuracy,
                "forward": self.forward,
            },
            **radius,
        }


def constructed():
    """Return the eight runs by their names."""
    return {
        "nothing": Constructed(examination=examined(unsolved), forward=solves(MAX_EVALS=1.0)),
        "half": Constructed(
            examination=examined(half), forward=solves(CONVERGED=0.5, MAX_EVALS=0.5)
        ),
        "broken": Constructed(
            examination=examined(solved, math.nan),
            forward=solves(NONFINITE=1.0),
            losses=(1.2, math.nan, math.nan),
        ),
        "epoch": Constructed(examination=examined(solved), losses=(1.2,), planned=1),
        "explicit": Constructed(examination=None, forward=NO_SOLVE, model="resnet"),
        "several": Constructed(examination=examined(several, solver=eq.Picard(rtol=1e-4))),
        "perfect": Constructed(examination=examined(solved)),
        "interrupted": Constructed(examination=None, planned=10, evaluated=False),
    }
