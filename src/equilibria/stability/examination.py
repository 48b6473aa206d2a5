"""What the doctor measures, as plain numbers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from equilibria.metric import ACCURACY
from equilibria.stability.derivative_check import Cut

Severity = Literal["healthy", "watch", "unhealthy"]


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor has to say: about what, how bad, in words, and what to do."""

    topic: str
    severity: Severity
    sentence: str
    advice: str = ""


@dataclass(frozen=True)
class Summary:
    """A quantity over the samples of a batch; NaN where no sample has it."""

    mean: float
    p50: float
    p90: float
    max: float

    @classmethod
    def of(cls, values: Tensor) -> Summary:
        """Of `values` (samples,), leaving out what is not finite."""
        values = values.detach().double().flatten().cpu()
        values = values[values.isfinite()]
        if not len(values):
            return cls(math.nan, math.nan, math.nan, math.nan)
        p50, p90 = torch.quantile(values, values.new_tensor([0.5, 0.9])).tolist()
        return cls(float(values.mean()), p50, p90, float(values.max()))


@dataclass(frozen=True)
class Trace:
    """Percentiles over all samples of the relative residual after each evaluation.

    A sample that has finished counts with its last residual.
    """

    evals: Sequence[int]
    p10: Sequence[float]
    p50: Sequence[float]
    p90: Sequence[float]
    max: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class ForwardSolves:
    """The forward solve, as in evaluation mode. `status` holds the share of each by its name;
    `error` is that of the samples that converged, as `Stats` estimates it, and `limit` the solver's
    own on it."""

    rtol: float
    max_evals: int
    status: Mapping[str, float]
    evals: Summary
    residual: Summary
    error: Summary
    trace: Trace
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class PlainIteration:
    """What plain iteration does with the samples whose forward solve did not converge.

    Attributes:
        samples: how many there are.
        budget: evaluations that it may take.
        kinds: share of each `plain_iteration.Kind` among them.
        evals: until it converges, of those samples where it does.
        period: of the cycles.
    """

    samples: int
    budget: int
    kinds: Mapping[str, float]
    evals: Summary
    period: Summary


@dataclass(frozen=True, kw_only=True)
class JacobianSizes:
    """J = df/dz where each solve ended: at z*, for the samples that converged.

    Attributes:
        spectral_radius: of each sample, estimated by `spectral_radius`.
        solved: the same of the samples that converged alone.
        expanding: share of samples with a spectral radius of 1 or more.
        norm: Frobenius norm ||J||_F of each sample, estimated by `jacobian_norm`.
        stretch: ||J||_F over the root of a sample's entries, the root mean square of the singular
            values: by how much one evaluation stretches a random perturbation.
        ritz: of each sample the largest |Ritz value| of J from the history of the solve itself,
            which costs no evaluation; None where the solver keeps none.
    """

    spectral_radius: Summary
    solved: Summary
    expanding: float
    norm: Summary
    stretch: Summary
    ritz: Summary | None = None


@dataclass(frozen=True, kw_only=True)
class OtherStarts:
    """Solves from other starts, in float64, to a relative residual of 1e-6.

    Attributes:
        count: starts: noise about zero, as large as z* and three times so, in turn.
        converged: share of these solves that converged.
        distance: for each sample the largest ||z - z*|| / ||z*|| among its answers that converged;
            z* is the solution from the layer's own start, to the same residual.
        compared: share of samples for which z* and at least one of these answers converged.
        apart: share of samples with an answer further than 1e-3 from z*.
    """

    count: int
    converged: float
    distance: Summary
    compared: float
    apart: float


@dataclass(frozen=True, kw_only=True)
class BackwardSolves:
    """The linear solve behind a gradient, where the adjoint makes one."""

    status: Mapping[str, float]
    evals: Summary
    residual: Summary


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What the tolerances promise of the adjoint u = (I - J)^-T dL/dz*, relative to its length:

        ||error|| <= (adjoint + lipschitz x forward) / sigma_min(I - J),

    an estimate, over the samples whose solves all converged. `lipschitz` is that of
    h(z) = J(z)^T u + dL/dz: the change of h, over ||u||, between z* and the solution in use, over
    the relative residual of that solution.

    Attributes:
        forward: relative tolerance of the forward solver, rtol.
        adjoint: relative tolerance of the adjoint's solver; the mean, where it follows what the
            forward solve of each sample has reached.
        sigma_min: smallest singular value of I - J of each sample, by inverse iteration; it comes
            from above, usually to a few per cent.
        lipschitz: of each sample.
        error: the bound of each sample.
        measured: the error of each sample, measured against the exact adjoint in float64.
    """

    forward: float
    adjoint: float
    sigma_min: Summary
    lipschitz: Summary
    error: Summary
    measured: Summary


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """The gradient that training uses (dropout off) against the exact one in float64.

    Attributes:
        loss: what was differentiated, "loss" or "random projection" where none was given.
        cosine: between the gradients of all parameters of the layer (of its operands, where it
            has no parameters).
        norm_ratio: length of the gradient in use over that of the exact one.
        sample_cosine: smallest cosine between the gradients of the operands, over the samples
            whose own is at least a thousandth of the largest.
        reference: largest relative residual left, in the forward and the linear solve, behind the
            exact gradient: what is to be believed of the comparison.
        backward: the linear solve of the gradient in use; None for adjoints that solve nothing.
        bound: what the tolerances promise; None for such adjoints, and where nothing converged.
        vanished: norm of dL/dz* where the gradient of the loss has vanished, so that a random
            projection of the output was differentiated instead; None where it has not.
        of: what `cosine` and `norm_ratio` are the gradients of, "parameters" or "inputs".
        cuts: derivatives of the cell that autograd gets wrong, by finite differences.
    """

    loss: str
    cosine: float
    norm_ratio: float
    sample_cosine: float
    reference: float
    backward: BackwardSolves | None
    bound: Bound | None = None
    vanished: float | None = None
    of: str = "parameters"
    cuts: Sequence[Cut] = ()

    @property
    def compared(self) -> bool:
        """Whether there was an exact gradient to compare with."""
        return self.reference <= 1e-6 and math.isfinite(self.cosine)


@dataclass(frozen=True, kw_only=True)
class DepthPoint:
    """The state after a number of evaluations: its median distance from the answer, relative to
    the answer, and the figure of what is read from it (None where nothing judges it)."""

    evals: int
    distance: float
    figure: float | None


@dataclass(frozen=True, kw_only=True)
class Depth:
    """What evaluations buy.

    Attributes:
        points: after each number of evaluations.
        figure: that of the finished solve; None where nothing judges it.
        metric: describes the figure.
        chance: the figure of a network that has learnt nothing; None where that is not known.
    """

    points: Sequence[DepthPoint]
    figure: float | None
    metric: Mapping[str, Any] = field(default_factory=ACCURACY.describe)
    chance: float | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the layer was trained, for advice that fits.

    Attributes:
        gamma: weight of the Jacobian penalty, at the end of training; 0 for none.
        probability: share of the steps that had it.
        budget: mean evaluations of a sample that a controller was to hold; None for no controller.
        precision: of the arithmetic: float32, bf16 or fp16. The doctor examines in float32.
        status: share of each status among the forward solves of the last epoch, by its name.
    """

    gamma: float = 0.0
    probability: float = 1.0
    budget: float | None = None
    precision: str = "float32"
    status: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, kw_only=True)
class Examination:
    """All that the doctor has measured on one batch, and what it means.

    Attributes:
        layer: path of the layer inside the module examined, "" for the module itself.
        solver, adjoint: as they were configured.
        samples: samples in the batch; a coupled layer counts as one.
        entries: entries of one sample's state.
        training: how it was trained, as far as the doctor was told.
        broken: names of parameters and buffers that hold NaN or infinity. Where there are such, or
            where every solve ended in NaN, only the forward solve is examined: the rest is NaN.
        plain: what plain iteration does with the samples that did not converge; None where all did.
        findings: the worst first.
    """

    layer: str
    solver: str
    adjoint: str
    samples: int
    entries: int
    forward: ForwardSolves
    jacobian: JacobianSizes
    starts: OtherStarts
    gradient: Gradient
    depth: Depth
    training: Training | None = None
    broken: Sequence[str] = ()
    plain: PlainIteration | None = None
    findings: Sequence[Finding] = ()

    @property
    def severity(self) -> Severity:
        """That of the worst finding."""
        return self.findings[0].severity if self.findings else "healthy"

    def json(self) -> dict[str, Any]:
        """Everything as dictionaries, lists, text and numbers; a number that is not finite is
        None, since JSON has no word for it."""
        return plain(asdict(self))

    def __str__(self) -> str:
        """The findings, in lines of at most 100 characters."""
        lines: list[str] = []
        for finding in self.findings:
            head = f"{finding.severity:>9}  {finding.topic}: "
            lines += textwrap.wrap(head + finding.sentence, 100, subsequent_indent=" " * 11)
            if finding.advice:
                indent = " " * 11
                lines += textwrap.wrap(
                    "-> " + finding.advice, 100, initial_indent=indent, subsequent_indent=indent
                )
        return "\n".join(lines)


def plain(value: Any) -> Any:
    """Return `value` as JSON can hold it: None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# --- advice ---------------------------------------------------------------------------------------

# Words that several findings share: what was solved, advice, and numbers as text.


def tame(examination: Examination, radius: float) -> str:
    """What makes a layer contract more, as its training can do it.

    The papers' gamma lie between .5 and 4. A radius of 1 or more asks for twice the penalty, one
    below for half as much again.
    """
    training = examination.training
    if training is None or training.gamma == 0:
        penalty = (
            "add eq.stability.jacobian_penalty(sol) to the loss with a weight between 0.5 and 4"
            if training is None
            else "train with regularizer.name: JacobianPenalty, regularizer.gamma: 1 and "
            "regularizer.probability: 0.4"
        )
        return (
            f"To lower it, {penalty}; or begin with smaller weights, or bound those that act on z "
            "with spectral_norm."
        )
    factor = 2.0 if not radius < 1 else 1.5
    change = f"regularizer.gamma from {training.gamma:g} to {factor * training.gamma:g}"
    if training.probability <= 0.5:
        change += (
            f" (regularizer.final_gamma where it is set), or regularizer.probability from "
            f"{training.probability:g} to {2 * training.probability:g}"
        )
    return f"To lower it, raise {change}, and watch what that costs in accuracy."


def setting(examination: Examination, recipe: str, words: str) -> str:
    """What a setting is called: its key in the recipe of a run, or words for a layer in Python."""
    return words if examination.training is None else recipe


def describe_vanished(norm: float) -> str:
    """A sentence about a loss whose gradient has vanished, and what was differentiated instead."""
    return (
        f"The gradient of the loss has vanished (its norm at the solution is {norm:.1e}): on these "
        "samples there is nothing left to learn, and what follows is of a random projection of the "
        "output."
    )


def share_converged(examination: Examination) -> float:
    """The share of samples whose solve converged: what is said of solutions is said of these."""
    return examination.forward.status.get("CONVERGED", 0.0)


def unsolved(examination: Examination) -> bool:
    """Did no sample reach a fixed point? Then there is nothing to be said of one."""
    return share_converged(examination) == 0


def number(value: float) -> str:
    """Two decimals, or two digits of what is below 0.1."""
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


def tell_gap(residual: float) -> str:
    """The end of a sentence about solves that did not converge: how far they were from it."""
    return f"; the largest residual is {residual:.1e}." if math.isfinite(residual) else "."
