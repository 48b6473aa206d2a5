"""Jacobian regularisation as a recipe names it: how strong, how often, and when."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from equilibria.checks import check_fields


@dataclass(frozen=True, kw_only=True)
class EvaluationBudget:
    """Keeps the evaluations of the forward solves at a budget, by a factor on the penalty's gamma.

    After every few steps, factor <- factor exp(gain (e / evals - 1)), with e the mean evaluations
    per sample in these steps: above the budget the penalty grows, below it fades. The factor
    begins at 1 and stays between `lowest` and `highest`.

    Args:
        evals: target mean evaluations per sample, in the forward solves of training.
        every: steps between changes of the factor.
        gain: change of log(factor) where solves take twice the budget.
        lowest: minimum factor, above 0, so that the penalty can recover.
        highest: maximum factor, which keeps the penalty from dominating the loss.
    """

    evals: float
    every: int = 10
    gain: float = 0.2
    lowest: float = 0.01
    highest: float = 10.0

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "evals", "every")
        if not 0.0 < self.gain <= 10.0:
            raise ValueError(f"gain must be positive and at most 10; got {self.gain}")
        if not 0.0 < self.lowest <= 1.0 <= self.highest < math.inf:
            raise ValueError(
                "the factor begins at 1: lowest must lie in (0, 1] and highest must be finite and "
                f"at least 1; got {self.lowest} and {self.highest}"
            )

    def adapt(self, factor: float, evals: float) -> float:
        """Return the factor that follows on solves with a mean of `evals`."""
        # Even solves that ran to their limit raise the factor by at most exp(gain).
        excess = min(1.0, evals / self.evals - 1.0)
        return min(self.highest, max(self.lowest, factor * math.exp(self.gain * excess)))


@dataclass(frozen=True, kw_only=True)
class JacobianPenalty:
    """Adds gamma ||J||_F^2 / d, estimated with random probes, to the loss of some of the steps.

        loss + tau gamma penalty,    tau ~ Bernoulli(probability),

    with `stability.jacobian_penalty`. Both gamma and probability can change during training, as
    in the papers (gamma from 1.6 to 2.5 at a probability of .35 on WikiText-103; .5 at .05 on
    CIFAR-10). Whether a step has the penalty depends only on the seed of the run and the step: it
    is the same on all processes, and the same when a run is resumed.

    Args:
        gamma: weight of the penalty, at the start of the ramp.
        final_gamma: weight at the end of the ramp; null for no change.
        probability: share of the steps that have it, at the start of the ramp.
        final_probability: share at the end of the ramp; null for no change.
        begin: where the ramp begins, as a share of all steps.
        end: where it ends, as a share of all steps.
        stairs: number of equal jumps that replace the ramp, the last at `end`; null for a linear
            ramp.
        samples: random probes for each sample of the batch, M in the papers.
        controller: adapts gamma to a budget of evaluations; null for none.

    papers: Bai et al. 2021, eq. 4, appendix A.4 and table 4.
    """

    gamma: float = 1.0
    final_gamma: float | None = None
    probability: float = 1.0
    final_probability: float | None = None
    begin: float = 0.0
    end: float = 1.0
    stairs: int | None = None
    samples: int = 1
    controller: EvaluationBudget | None = None

    def __post_init__(self) -> None:
        for name in ("gamma", "final_gamma"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and not negative; got {value}")
        check_fields(self, "[0, 1]", "probability", "final_probability")
        if not 0.0 <= self.begin <= self.end <= 1.0:
            raise ValueError(
                "begin and end must be shares of all steps, 0 <= begin <= end <= 1; got "
                f"{self.begin} and {self.end}"
            )
        check_fields(self, "[1, inf)", "stairs", "samples")

    def at(self, step: int, steps: int) -> tuple[float, float]:
        """Return gamma and probability in step `step` (from 0) of `steps`."""
        share = step / max(1, steps - 1)
        rise = 0.0 if share < self.end else 1.0
        if self.begin < share < self.end:
            rise = (share - self.begin) / (self.end - self.begin)
        if self.stairs is not None:
            rise = math.floor(rise * self.stairs) / self.stairs
        return (
            _between(self.gamma, self.final_gamma, rise),
            _between(self.probability, self.final_probability, rise),
        )

    def drawn(self, step: int, steps: int, seed: int, begin: int = 0) -> bool:
        """Return tau of a step: whether it has the penalty.

        Args:
            step: from 0.
            steps: of the whole run, or of the segment of it that begins at `begin`.
            seed: of the run.
            begin: step at which the ramp began.
        """
        share = self.at(step - begin, steps)[1]
        return random.Random(f"penalty {seed} {step}").random() < share


def _between(start: float, final: float | None, rise: float) -> float:
    return start if final is None else start + (final - start) * rise
