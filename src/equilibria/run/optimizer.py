"""Optimisers and learning-rate schedules that a recipe can name."""

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from equilibria.checks import check_fields


@dataclass(frozen=True, kw_only=True)
class Optimizer(abc.ABC):
    """What all optimisers share.

    Args:
        lr: learning rate at its highest; the schedule multiplies it.
        weight_decay: decay of matrices and kernels; vectors (biases, norms' gains) are not decayed.
    """

    lr: float
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "lr")
        check_fields(self, "[0, inf)", "weight_decay")

    @abc.abstractmethod
    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return torch's optimiser for the parameters of `model`."""

    def groups(self, model: nn.Module) -> list[dict[str, object]]:
        """Split the parameters of `model` into those that decay and those that don't."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        return [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]


@dataclass(frozen=True, kw_only=True)
class _Moments(Optimizer):
    """What Adam and AdamW share.

    Args:
        betas: memory of the gradient's mean and of its square, both in [0, 1).
    """

    kind: ClassVar[Any]
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "[0, 1)", "betas")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return torch's optimiser of this kind for the parameters of `model`."""
        return self.kind(self.groups(model), lr=self.lr, betas=self.betas)


@dataclass(frozen=True, kw_only=True)
class Adam(_Moments):
    """Adam (Kingma and Ba 2015), with weight decay as part of the gradient: an L2 penalty.

    Args:
        lr: learning rate at its highest; the schedule multiplies it.
        weight_decay: decay of matrices and kernels; vectors (biases, norms' gains) are not decayed.
        betas: memory of the gradient's mean and of its square, both in [0, 1).
    """

    kind = torch.optim.Adam


@dataclass(frozen=True, kw_only=True)
class AdamW(_Moments):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Args:
        lr: learning rate at its highest; the schedule multiplies it.
        weight_decay: decay of matrices and kernels; vectors (biases, norms' gains) are not decayed.
        betas: memory of the gradient's mean and of its square, both in [0, 1).
    """

    kind = torch.optim.AdamW


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent with Nesterov's momentum; plain with a momentum of 0.

    Args:
        lr: learning rate at its highest; the schedule multiplies it.
        weight_decay: decay of matrices and kernels; vectors (biases, norms' gains) are not decayed.
        momentum: share of the last step that is kept, in [0, 1).
    """

    lr: float = 0.1
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "[0, 1)", "momentum")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return torch's SGD for the parameters of `model`."""
        return torch.optim.SGD(
            self.groups(model), lr=self.lr, momentum=self.momentum, nesterov=self.momentum > 0.0
        )


@dataclass(frozen=True, kw_only=True)
class Schedule(abc.ABC):
    """A learning-rate schedule: a factor on the optimiser's own learning rate.

    It is a function of the step, which is therefore the only state to save.

    Args:
        warmup: share of all steps, from 0 to 1, in which the factor rises linearly from 0.
    """

    warmup: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.warmup <= 1.0:
            raise ValueError(f"warmup must be a share of all steps, 0 to 1; got {self.warmup}")

    def factor(self, step: int, steps: int) -> float:
        """Return the factor for step `step` (from 0) of `steps`."""
        rise = self.warmup * steps
        if step < rise:
            return (step + 1) / (rise + 1)
        return self.fall((step - rise) / max(1.0, steps - rise))

    @abc.abstractmethod
    def fall(self, progress: float) -> float:
        """Return the factor after the warm-up, where `progress` runs from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The optimiser's learning rate throughout, after the warm-up.

    Args:
        warmup: share of all steps, from 0 to 1, in which the factor rises linearly from 0.
    """

    def fall(self, progress: float) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half a cosine from 1 down to `final`: final + (1 - final) (1 + cos(pi progress)) / 2.

    papers: the schedule of all tasks in Bai 2022 (thesis), sec. 3.2.

    Args:
        warmup: share of all steps, from 0 to 1, in which the factor rises linearly from 0.
        final: factor at the last step, from 0 to 1.
    """

    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.final <= 1.0:
            raise ValueError(f"final must be a factor from 0 to 1; got {self.final}")

    def fall(self, progress: float) -> float:
        """Return the cosine's factor at `progress` in [0, 1]."""
        return self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * progress)) / 2.0


@dataclass(frozen=True, kw_only=True)
class Poly(Schedule):
    """A power of what is left of the run: (1 - progress)^power.

    papers: the usual schedule of segmentation, Chen et al. 2018 (DeepLab), sec. 4.1.

    Args:
        warmup: share of all steps, from 0 to 1, in which the factor rises linearly from 0.
        power: exponent, above 0.
    """

    power: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "power")

    def fall(self, progress: float) -> float:
        """Return (1 - progress)^power at `progress` in [0, 1]."""
        return (1.0 - progress) ** self.power


@dataclass(frozen=True, kw_only=True)
class StableDecay(Schedule):
    """1 after the warm-up, and at the end a straight line down to `final`.

    papers: the warmup-stable-decay schedule of Hu et al. 2024, sec. 4.

    Args:
        warmup: share of all steps, from 0 to 1, in which the factor rises linearly from 0.
        decay: share of the steps after the warm-up, above 0 and up to 1, in which it falls.
        final: factor at the last step, from 0 to 1.
    """

    decay: float = 0.3
    final: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, 1]", "decay")
        check_fields(self, "[0, 1]", "final")

    def fall(self, progress: float) -> float:
        """Return the factor at `progress` in [0, 1]."""
        return 1.0 - (1.0 - self.final) * max(0.0, 1.0 - (1.0 - progress) / self.decay)


@dataclass(frozen=True, kw_only=True)
class OneCycle(Schedule):
    """Two straight lines: from `start` up to 1 in the warm-up, and down to `final` at the last
    step.

    It is torch's `OneCycleLR` with linear annealing, a momentum that stays as it is, and its own
    values of `start` and `final`.

    papers: Smith and Topin 2018; RAFT's schedule (Teed and Deng 2020, sec. 4), with a warm-up of
    0.05.

    Args:
        warmup: share of all steps, from 0 to 1, in which the factor rises.
        start: factor at the first step, from 0 to 1.
        final: factor at the last step, from 0 to 1.
    """

    warmup: float = 0.05
    start: float = 0.04
    final: float = 4e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("start", "final"):
            if not 0.0 <= (value := getattr(self, name)) <= 1.0:
                raise ValueError(f"{name} must be a factor from 0 to 1; got {value}")

    def factor(self, step: int, steps: int) -> float:
        """Return the factor for step `step` (from 0) of `steps`."""
        top = self.warmup * steps - 1.0  # the highest factor may lie between two steps
        if step < top:
            return self.start + (1.0 - self.start) * step / top
        # A warm-up of less than a step is none.
        top = max(0.0, top)
        return self.fall(min(1.0, (step - top) / max(1.0, steps - 1.0 - top)))

    def fall(self, progress: float) -> float:
        """Return the factor on the line down, at `progress` in [0, 1]."""
        return 1.0 - (1.0 - self.final) * progress
