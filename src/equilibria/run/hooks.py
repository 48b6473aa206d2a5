"""What a run does at its training steps besides the loss of its task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from equilibria.run.models import Prediction
from equilibria.run.tasks import Batch
from equilibria.solve import Solution
from equilibria.stability import AdjointAudit
from equilibria.stability.audit import Audit


@dataclass(frozen=True)
class Forward:
    """A micro-batch of a step after its forward.

    Attributes:
        prediction: the model's.
        early_loss: states, one per solve -> the loss of what is read from them, in the mean over
            the whole step.
        share: fraction of this process's rows in the micro-batch.
        penalized: whether the step has the regulariser's penalty; None to draw this.
    """

    prediction: Prediction
    early_loss: Callable[[Sequence[Any]], Tensor]
    share: float
    penalized: bool | None


class Hook:
    """A part of training that acts at its steps: by default, none of its methods does anything.

    Hooks rest while a run begins as a shallow network. Steps are counted from 0.

    Attributes:
        name: key of the hook's state in a checkpoint.
    """

    name: ClassVar[str]

    def due(self, step: int) -> bool:
        """Return whether `prepare` is to be called before a step; the same on all processes."""
        return False

    def prepare(self, step: int, batches: Sequence[Batch], carries: Sequence[Any]) -> None:
        """Act before a step, while every process holds all parameters whole.

        Args:
            step: the step.
            batches: its micro-batches, on any device.
            carries: what the model carries over to each of them.
        """

    def options(self) -> dict[str, Any]:
        """Return keywords of the model's forward."""
        return {}

    def around(self, step: int) -> AbstractContextManager[None]:
        """Return a context for the forward and the backward of a micro-batch of a step."""
        return nullcontext()

    def term(self, step: int, forward: Forward) -> Tensor | None:
        """Return what a micro-batch adds to the loss, a scalar; None for nothing."""
        return None

    def observe(self, step: int, solutions: Sequence[Solution]) -> None:
        """Act after a step, whose solves these are."""

    def finish_epoch(self) -> dict[str, Any]:
        """Return entries of the record of the epoch that ends here, and begin the next."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint holds: tensors on the CPU, and plain numbers."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned.

        Raises:
            ValueError, LookupError: it belongs to another run.
        """
        raise NotImplementedError


class AuditHook(Hook):
    """Audits the adjoint of a run whose recipe has an `AdaptiveAdjoint`.

    Args:
        audit: of the run's model.
        mean_loss: (batch, carry) -> mean loss of a batch, by a forward of its own.
    """

    name = "audit"

    def __init__(self, audit: AdjointAudit, mean_loss: Callable[[Batch, Any], Tensor]) -> None:
        self.audit, self.mean_loss = audit, mean_loss

    def due(self, step: int) -> bool:
        """Return whether a step is one at which gradients are compared."""
        return self.audit.due(step)

    def prepare(self, step: int, batches: Sequence[Batch], carries: Sequence[Any]) -> None:
        """Compare gradients on the first micro-batch."""
        carry = None if batches[0].begins else carries[0]
        self.audit(step, partial(self.mean_loss, batches[0], carry))

    def finish_epoch(self) -> dict[str, Any]:
        """Return the latest finding."""
        return {"audit": self.state()}

    def state(self) -> dict[str, Any]:
        """Return the latest finding, as plain numbers."""
        if self.audit.latest is not None:
            return asdict(self.audit.latest)
        adjoint = self.audit.adjoint
        return {"step": None, "adjoint": type(adjoint.now).__name__, "level": adjoint.level}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to the level of a `state`."""
        self.audit.resume(state["level"])
        self.audit.latest = None if state["step"] is None else Audit(**state)
