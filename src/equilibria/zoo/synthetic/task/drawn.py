"""The adding problem and the order problem: sequences that are drawn, as long as one likes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.models import Model, ModelConfig
from equilibria.run.tasks.base import LabeledTask, SampleTask, TaskConfig
from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Part
from equilibria.zoo.io.sequences import Sequences, digest
from equilibria.zoo.io.tasks import complete_classifier
from equilibria.zoo.synthetic.data import drawn as synthetic

# Seeds of the steps' batches begin here, far from those of the test sequences.
_TRAINING = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DrawnConfig(TaskConfig):
    """Sequences that are drawn anew in each step.

    Args:
        length: steps of a sequence.
        test: sequences to evaluate on.
        epoch: training sequences that count as a pass over the data.
        data_seed: of all sequences.
    """

    problem: ClassVar[str]
    sequences: ClassVar[Callable[..., Sequences]]
    task: ClassVar[type[DrawnTask]]

    length: int = 200
    test: int = 1_000
    epoch: int = 5_000
    data_seed: int = 0

    def __post_init__(self) -> None:
        if self.length < 4:
            raise ValueError(f"length must be at least 4; got {self.length}")
        check_fields(self, "[1, inf)", "test", "epoch")

    @override
    def load(self, data_dir: Path | None = None) -> DrawnTask:
        return self.task(self, f"{self.problem}, T = {self.length}")

    def draw(self, count: int, seed: int) -> Sequences:
        """Return `count` sequences."""
        return self.sequences(self.length, count, seed=seed)


class Drawn(Feed):
    """Sequences drawn for each step, by its number."""

    def __init__(self, config: DrawnConfig, batch_size: int, seed: int) -> None:
        self.config, self.batch_size, self.seed = config, batch_size, seed
        self.steps = max(1, config.epoch // batch_size)

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        seed = _TRAINING * (1 + self.seed + 1_009 * self.config.data_seed) + step
        return Batch.of(self.config.draw(self.batch_size, seed), part.of(self.batch_size))


class DrawnTask(SampleTask):
    """Sequences (n, length, channels) of a drawn task."""

    classes: int

    def __init__(self, config: DrawnConfig, source: str) -> None:
        self.config = config
        self.test = config.draw(config.test, config.data_seed)
        # No training sequence is kept: the split is for `feed` alone.
        super().__init__({"test": self.test}, digest(self.test))
        self.source = source

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        channels = self.test.inputs.shape[-1]
        return complete_classifier(config, (channels,), self.classes, None, self.source)

    @override
    def feed(self, batch_size: int, seed: int) -> Feed:
        return Drawn(self.config, batch_size, seed)


class AddingTask(DrawnTask):
    """Targets (n, 1): the sum. The loss is the squared error."""

    classes = 1

    @override
    def loss(self, model: Model, output: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(output, targets, reduction="sum")


class OrderTask(DrawnTask, LabeledTask):
    """Targets (n,): which symbol comes first."""

    classes = 2


@dataclass(frozen=True, kw_only=True)
class AddingProblem(DrawnConfig):
    """Add the two numbers of a sequence that are marked. Trained with the squared error.

    Answering 1 always has a mean squared error of 1/6 = .167.

    papers: Hochreiter and Schmidhuber 1997; Arjovsky et al. 2016, sec. 5.2.

    Args:
        length: steps of a sequence.
        test: sequences to evaluate on.
        epoch: training sequences that count as a pass over the data.
        data_seed: of all sequences.
    """

    problem = "adding problem"
    sequences = staticmethod(synthetic.draw_adding)
    task = AddingTask


@dataclass(frozen=True, kw_only=True)
class OrderProblem(DrawnConfig):
    """Which of two symbols comes first? Trained with cross-entropy.

    A cell whose state is a plain sum over steps stays at 50 %. One at equilibrium, whose sum has
    alternating signs, can tell which of two symbols an odd number of steps apart is on an even
    step: that says nothing of their order where length / 2 is even, and gives 52 % at length 50.

    papers: Hochreiter and Schmidhuber 1997, sec. 5.6, with two symbols.

    Args:
        length: steps of a sequence.
        test: sequences to evaluate on.
        epoch: training sequences that count as a pass over the data.
        data_seed: of all sequences.
    """

    problem = "order problem"
    sequences = staticmethod(synthetic.draw_order)
    task = OrderTask
