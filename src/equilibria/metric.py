"""What judges a model: a figure made of sums over batches, and how it is written."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["ACCURACY", "LOSS", "SMOOTHED", "Metric", "Sums", "mean"]

Sums = Mapping[str, Tensor]
"""What batches add up to, by name. `loss` and `units` are always there: the summed loss and its
denominator. Any other is a tensor of any shape, such as a confusion matrix, that a task's `sums`
gives for a batch."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A figure of a task.

    Args:
        name: key of the figure in the files of a run.
        figure: sums -> figure; None where the task's `figures` gives it, or where the figure is
            read from a file.
        label: name in tables and titles; empty for `name`.
        description: a sentence for the report; may be empty.
        higher_is_better: whether a larger figure is the better one.
        scale: what a figure is multiplied with as it is written.
        spec: format of the scaled figure, as `format` takes it: an optional sign and comma, digits
            after the point, and e, f, g or %, such as ".3f" or ",.0f".
        unit: what is written after it, a space before it included: " %".
        plot: whether the report has a plot of it.
    """

    name: str
    figure: Callable[[Sums], float] | None = None
    label: str = ""
    description: str = ""
    higher_is_better: bool = False
    scale: float = 1.0
    spec: str = ".4g"
    unit: str = ""
    plot: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)
        if re.fullmatch(r"[+ ]?,?(\.\d{1,2})?[eEfFgG%]?", self.spec) is None:
            raise ValueError(f"the spec of {self.name} must be such as .3f; got {self.spec!r}")

    @property
    def title(self) -> str:
        """The label with a capital letter."""
        return self.label[:1].upper() + self.label[1:]

    @property
    def better(self) -> str:
        """Which of two figures is the better one: "larger" or "smaller"."""
        return "larger" if self.higher_is_better else "smaller"

    def format(self, value: float) -> str:
        """Return a figure as text: 0.9731 of an accuracy is "97.31 %"."""
        return f"{self.scale * value:{self.spec}}{self.unit if math.isfinite(value) else ''}"

    def describe(self) -> dict[str, Any]:
        """Return all but `figure` as JSON holds it; `of` reads it back."""
        return {name: getattr(self, name) for name in _DESCRIBED}

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Metric:
        """Return the metric of which `describe` returned this."""
        return cls(**{name: description[name] for name in _DESCRIBED if name in description})


_DESCRIBED = tuple(each.name for each in dataclasses.fields(Metric) if each.name != "figure")


def mean(total: str, count: str) -> Callable[[Sums], float]:
    """Return the function of sums that divides `total` by `count`; NaN where that is 0."""

    def figure(sums: Sums) -> float:
        return sums[total].item() / n if (n := sums[count].item()) else math.nan

    return figure


LOSS = Metric(name="loss", figure=mean("loss", "units"), spec=".4f")
"""The mean loss, which every task has."""

SMOOTHED = dataclasses.replace(LOSS, label="label-smoothed loss")
"""The same where targets are smoothed: it is larger than their cross-entropy."""

ACCURACY = Metric(
    name="accuracy",
    figure=mean("correct", "answers"),
    description="The share of right answers. The gap between the curves is what is learnt and does "
    "not carry over.",
    higher_is_better=True,
    scale=100.0,
    spec=".2f",
    unit=" %",
)
"""The share of right answers, of the sums `correct` and `answers`."""
