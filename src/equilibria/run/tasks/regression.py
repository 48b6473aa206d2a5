"""What a linear map of fixed features can tell: multinomial logistic regression, a baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from equilibria.run.data.dataset import Samples

MOST = 10_000
"""Samples that are learned from, spread evenly over all of them."""

STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse strengths C of the penalty, ||W||^2 / (2 C) beside the sum of the losses; the best on a
fifth of the samples that are learned from is taken. Few features and few samples want the larger
ones."""

WEAKER = (10.0, 100.0, 1000.0)
"""Strengths beyond these for features that are scaled."""

FALLS = 2
"""Strengths in a row that are worse than the best, after which no weaker penalty is tried."""

USUAL = 0.1
"""The strength where there is too little to choose it on."""

ITERATIONS = 100

_BLOCK = 500

Read = Callable[[Any], Tensor]
"""Returns the features (count, features) of the inputs of samples."""


@dataclass(frozen=True)
class Regression:
    """Multinomial logistic regression of features, fitted.

    Attributes:
        model: of scikit-learn.
        classes: how many there are.
        strength: C, as it was chosen.
        read: gives the features.
    """

    model: Any
    classes: int
    strength: float
    read: Read

    def figures(self, samples: Samples) -> dict[str, float]:
        """Return the accuracy on samples, by the metric's name."""
        right = 0
        for places in torch.arange(len(samples)).split(_BLOCK):
            rows, targets = _read(samples, places, self.read)
            chances = numpy.zeros((len(places), self.classes))
            chances[:, self.model.classes_] = self.model.predict_proba(rows)
            right += int((chances.argmax(1) == targets).sum())
        return {"accuracy": right / len(samples)}


def fit_regression(train: Samples, classes: int, read: Read, *, scale: bool = False) -> Regression:
    """Fit logistic regression to samples, with the penalty that is best on a fifth of them.

    Args:
        train: samples with classes (n,).
        classes: how many there are.
        read: gives the features.
        scale: bring each feature to mean 0 and deviation 1 first.
    """
    count = min(len(train), MOST)
    rows, targets = _read(train, torch.arange(count) * len(train) // count, read)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).numpy()
    aside, learned = order[: count // 5], order[count // 5 :]
    if len(numpy.unique(targets)) < 2:
        raise ValueError("the training data have a single class")
    strength, best, falls = USUAL, -1.0, 0
    if len(aside) and len(numpy.unique(targets[learned])) > 1:
        for each in (*STRENGTHS, *(WEAKER if scale else ())):
            fitted = _fit(rows[learned], targets[learned], each, scale)
            score = fitted.score(rows[aside], targets[aside])
            falls = falls + 1 if score < best else 0
            if score > best:
                strength, best = each, score
            if falls == FALLS:
                break
    return Regression(_fit(rows, targets, strength, scale), classes, strength, read)


def _fit(rows: Any, targets: Any, strength: float, scale: bool) -> Any:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = LogisticRegression(C=strength, max_iter=ITERATIONS)
    with warnings.catch_warnings():
        # What 100 iterations leave undone is in the last digits.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return (make_pipeline(StandardScaler(), model) if scale else model).fit(rows, targets)


def _read(samples: Samples, places: Tensor, read: Read) -> tuple[Any, Any]:
    """Features (count, features) and classes (count,) as arrays."""
    parts = [samples[some] for some in places.split(_BLOCK)]
    rows = torch.cat([read(inputs) for inputs, _ in parts])
    return rows.numpy(), torch.cat([targets for _, targets in parts]).numpy()
