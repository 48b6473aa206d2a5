"""Options for training a learned solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from equilibria.checks import check_fields
from equilibria.learned.solver import NeuralSolver
from equilibria.solve import Solver

__all__ = ["Distillation"]

MIXERS = Literal["gram", "pooled"]
LOSSES = Literal["residual", "error"]
WEIGHTS = Literal["increasing", "uniform", "last"]
NORMALISED = Literal["shift", "softmax", "none"]
PREDICTS = Literal["both", "alpha", "beta"]


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Options for training a learned solver.

    The loss of a step, with z_0 the learned initial guess, z_1, ... the iterates, z* the classical
    solution and K the horizon, is the mean over samples of

        residual:  sum_k w_k log(||f(z_k) - z_k|| / ||f(z_k)||) + b ||z_0 - z*|| / ||z*||
        error:     a sum_k w_k ||z_k - z*|| / ||z*|| + b ||z_0 - z*|| / ||z*||
                   + c sum_k ||G_k alpha_k|| / ||z*||

    The second is the papers', with norms relative to that of z*. c decreases linearly to 5e-8 over
    the first two fifths of the steps.

    Args:
        start_steps: steps in which the initial guess is trained alone, on ||z_0 - z*|| / ||z*||,
            which needs no evaluation of f.
        steps: subsequent steps, on the loss above, backpropagated through all K evaluations. They
            are undone if the loss is larger at their end than at their beginning.
        horizon: K.
        history: number of differences kept, m in the papers.
        initialiser: whether an initial guess is learned.
        mixer: "gram" (ours), "pooled" (the papers'), or None for Anderson's own weights.
        normalised, predicts: options of the papers' mixer; see `PooledMixer`.
        loss: "residual" (ours) or "error".
        weights: w_k, which sum to 1 over k = 1, ..., K, and w_0 = 0: "increasing" (in proportion
            to k), "uniform" or "last".
        error, start, mixed: a, b and c.
        budget: maximum number of parameters of the initial guess; None for 3 % of those of the
            layer's cell.
        lr: the learning rate of Adam, which follows a cosine decay to zero in each phase.
        teacher: the classical solver that finds z*; samples for which it does not converge are left
            out of training. None for `Anderson(rtol=1e-4, max_evals=100)`; if fewer than half of
            the samples reach that tolerance, a tenth of the layer's own is used instead, with a
            warning.
        seed: for the initial weights and the order of the batches.

    Raises:
        ValueError: a field is out of range, or there is nothing to learn.
        TypeError: a number of steps is not an integer, or the teacher is not a classical solver.

    Source:
        Bai 2022 (thesis), sec. 6.2.2; Bai, Koltun and Kolter 2022, appendix A. The loss on
        residuals and training the initial guess alone are ours.
    """

    start_steps: int = 800
    steps: int = 60
    horizon: int = 10
    history: int = 5
    initialiser: bool = True
    mixer: MIXERS | None = "gram"
    normalised: NORMALISED = "shift"
    predicts: PREDICTS = "both"
    loss: LOSSES = "residual"
    weights: WEIGHTS = "increasing"
    error: float = 0.1
    start: float = 0.05
    mixed: float = 1e-4
    budget: int | None = None
    lr: float = 1e-2
    teacher: Solver | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("start_steps", 0), ("steps", 0), ("horizon", 1), ("history", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be a whole number; got {value!r}")
            if value < least:
                raise ValueError(f"{name} must be at least {least}; got {value}")
        for name in ("error", "start", "mixed"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"{name} is a weight and must not be negative; got {getattr(self, name)}"
                )
        for name, known in (
            ("loss", LOSSES),
            ("weights", WEIGHTS),
            ("normalised", NORMALISED),
            ("predicts", PREDICTS),
        ):
            if getattr(self, name) not in get_args(known):
                words = " or ".join(get_args(known))
                raise ValueError(f"{name} must be {words}; got {getattr(self, name)}")
        if self.mixer is not None and self.mixer not in get_args(MIXERS):
            raise ValueError(f"mixer must be gram, pooled or None; got {self.mixer}")
        check_fields(self, "(0, inf)", "lr")
        if self.teacher is not None and (
            not isinstance(self.teacher, Solver) or isinstance(self.teacher, NeuralSolver)
        ):
            raise TypeError(
                f"teacher must be a classical solver such as eq.Anderson(); got {self.teacher!r}"
            )
        if self.budget is not None and self.budget < 1:
            raise ValueError(f"budget must be at least 1 parameter; got {self.budget}")
        if not self.initialiser and self.mixer is None:
            raise ValueError("there is nothing to learn: neither an initial guess nor a mixer")

    def weight(self, k: int) -> float:
        """w_k, for k from 0 to the horizon."""
        K = self.horizon
        if self.weights == "increasing":
            return 2 * k / (K * (K + 1))
        if self.weights == "uniform":
            return float(k > 0) / K
        return float(k == K)
