"""Learning rates as functions of the step, so that a schedule has no state to save but the step."""

import abc
import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Schedule(abc.ABC):
    """A learning rate's course: a factor on the optimiser's own learning rate.

    Args:
        warmup: share of all steps, from 0 to 1, in which the factor rises linearly from 0.
    """

    warmup: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.warmup <= 1.0:
            raise ValueError(f"warmup is a share of all steps, from 0 to 1; got {self.warmup}")

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
            raise ValueError(f"final is a factor from 0 to 1; got {self.final}")

    def fall(self, progress: float) -> float:
        """Return the cosine's factor at `progress` in [0, 1]."""
        return self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * progress)) / 2.0
