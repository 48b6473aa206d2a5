"""Training with a learned solver that is trained alongside the model."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from equilibria.learned import Distillation, Learned
from equilibria.learned.contest import contest
from equilibria.learned.solver import NeuralSolver
from equilibria.learned.training import make_untrained, solve, train
from equilibria.nn import using
from equilibria.nn.using import in_eval_mode
from equilibria.run.hooks import Hook
from equilibria.run.models import EquilibriumModel
from equilibria.run.tasks import Batch
from equilibria.run.trees import copy_tensors, to_device, widen
from equilibria.solve import Shared, Solver


@dataclass(frozen=True, kw_only=True)
class Alternating:
    """Trains a solver periodically, and uses it in the training steps of the model that follow.

    It is trained on the inputs of the most recent batches, as by `eq.distill`, continuing from its
    previous weights. If it does not beat the best classical solver on a held-out batch, the
    following steps use the recipe's solver. Gradients are those of the recipe's adjoint.
    Evaluations and the finished run use the recipe's own solvers; `equilibria distill` trains a
    solver for these.

    Args:
        every: steps of the model between two trainings of the solver.
        steps: steps of each such training through unrolled solves.
        start_steps: steps of the initial guess alone before them.
        batches: number of most recent micro-batches to train on, at least 2.
        horizon: evaluations per unrolled solve.
        mixer: "gram", "pooled", or None for Anderson's own weights; see
            `equilibria.learned.Distillation`.

    Source:
        Bai 2022 (thesis), sec. 6.2.2 and Figure 6.6b.
    """

    every: int = 500
    steps: int = 20
    start_steps: int = 200
    batches: int = 8
    horizon: int = 10
    mixer: Literal["gram", "pooled"] | None = "gram"

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("batches", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")
        if self.every < self.batches:
            raise ValueError(
                f"every is {self.every}, fewer steps than the {self.batches} batches to learn from"
            )
        self.how(0)

    def how(self, seed: int) -> Distillation:
        """Return how the solver is trained each time."""
        return Distillation(
            start_steps=self.start_steps,
            steps=self.steps,
            horizon=self.horizon,
            mixer=self.mixer,
            seed=seed,
        )


class Alternation(Hook):
    """A solver that is trained alongside a model.

    Args:
        config: how often, and how, the solver is trained.
        model: the model, whose equilibrium layer uses it.
        seed: for its initial weights.
        steps: of the whole run.

    Raises:
        ValueError: the rows of the layer are coupled.
    """

    name = "neural"

    def __init__(self, config: Alternating, model: EquilibriumModel, seed: int, steps: int) -> None:
        if config.every >= steps:
            warnings.warn(
                f"neural.every is {config.every} and the run has {steps} steps: all of them "
                "solve by the recipe's solver, and none is learned",
                stacklevel=2,
            )
        if model.deq.coupled:
            raise ValueError(
                "neural: a learned solver needs independent samples, but the rows of this layer "
                "are coupled"
            )
        self.config, self.model, self.how = config, model, config.how(seed)
        self.seen: list[tuple[Any, ...]] = []
        self.learned: Learned | None = None
        self.used: tuple[Solver, Learned] | None = None  # None: the recipe's own solver is better
        self._record: dict[str, Any] = {}
        self._seconds = 0.0

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Use the learned solver, if there is one, in the forward of a step; and keep its inputs if
        the next training of the solver is near.

        Args:
            step: of the run, from 0.
        """
        layer = self.model.deq
        near = self.config.every - step % self.config.every <= self.config.batches
        handle = layer.register_forward_pre_hook(self._keep) if near else None
        try:
            if self.used is None:
                yield
                return
            solver, learned = self.used
            with using(layer, solver=solver, neural=learned):  # not saved as part of the model
                yield
        finally:
            if handle is not None:
                handle.remove()

    def _keep(self, module: Any, inputs: tuple[Any, ...]) -> None:
        # Under autocast they may be in half precision, but the solver is trained in float32.
        kept = _each(widen, _each(copy_tensors, inputs))
        self.seen = [*self.seen[1 - self.config.batches :], kept]

    def due(self, step: int) -> bool:
        """Return whether the solver is to be trained after this number of steps."""
        return bool(step) and step % self.config.every == 0 and len(self.seen) >= 2

    def prepare(self, step: int, batches: Sequence[Batch], carries: Sequence[Any]) -> None:
        """Train the solver."""
        began = time.perf_counter()
        with in_eval_mode(self.model.deq):
            self._train()
        self.seen = []
        self._seconds += time.perf_counter() - began

    def _train(self) -> None:
        layer = self.model.deq
        try:
            pool = solve(layer, self.seen, self.how.teacher)
            held_out, *rest = pool
            learned = self.learned or make_untrained(layer, held_out, self.how)
            learned.requires_grad_(True)
            train(learned, layer, rest, self.how)
        except (ValueError, FloatingPointError) as error:  # too few equilibria, or no gradient
            warnings.warn(
                f"neural: {error}. The following steps use the recipe's solver", stacklevel=2
            )
            return self._give_up()
        self.learned = learned.requires_grad_(False)
        found = contest(layer, learned, [held_out.inputs], layer.solver, self.how.horizon, rounds=1)
        best = found.fewest  # not the fastest: a run must be reproducible
        used = best.beats(found.classical)
        assert best.learned is not None
        self.used = (best.solver, best.learned) if used else None
        self._record = {"used": used, "evals": best.mean, "classical": found.classical.mean}

    def _give_up(self) -> None:
        self.used, self.learned = None, None
        self._record = {"used": False, "evals": None, "classical": None}

    def finish_epoch(self) -> dict[str, Any]:
        """Return the entry "neural" of the epoch's record: whether the learned solver is `used`;
        its `evals` per sample when it was last trained, and those of the best `classical` solver,
        both None if training failed; and the `seconds` that training took in the epoch."""
        record = {"neural": {**self._record, "seconds": round(self._seconds, 3)}}
        self._seconds = 0.0
        return record

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint."""
        learned = self.learned
        return {
            "seen": [
                [(isinstance(x, Shared), to_device(_bare(x), "cpu")) for x in inputs]
                for inputs in self.seen
            ],
            "about": None if learned is None else learned.about,
            "weights": None if learned is None else to_device(learned.state_dict(), "cpu"),
            "used": self._description(),
            "record": self._record,
            "seconds": self._seconds,
        }

    def _description(self) -> dict[str, Any] | None:
        if self.used is None:
            return None
        solver, learned = self.used
        assert isinstance(solver, NeuralSolver)
        return {"solver": asdict(solver), "mixes": learned.mixer is not None}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned.

        Raises:
            ValueError, LookupError: it belongs to another run.
        """
        device = next(self.model.parameters()).device
        self.seen = [
            tuple(Shared(x) if alike else x for alike, x in to_device(inputs, device))
            for inputs in state["seen"]
        ]
        self.learned, self.used = None, None
        if state["about"] is not None:
            self.learned = Learned.of(state["about"])
            self.learned.load_state_dict(state["weights"])
            self.learned = self.learned.to(device).requires_grad_(False)
        if (used := state["used"]) is not None:
            assert self.learned is not None
            mixer = self.learned.mixer if used["mixes"] else None
            self.used = NeuralSolver(**used["solver"]), Learned(self.learned.initialiser, mixer)
        self._record, self._seconds = dict(state["record"]), state["seconds"]


def _bare(operand: Any) -> Any:
    return operand.value if isinstance(operand, Shared) else operand


def _each(change: Callable[[Any], Any], operands: Sequence[Any]) -> tuple[Any, ...]:
    """Apply `change` to a layer's operands; `Shared` ones are not pytrees to torch."""
    return tuple(Shared(change(x.value)) if isinstance(x, Shared) else change(x) for x in operands)
