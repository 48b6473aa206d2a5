"""What a task gives to a trainer."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from equilibria.metric import ACCURACY, LOSS, SMOOTHED, Metric, Sums
from equilibria.run.models import Model, ModelConfig
from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Indexed, Part, Shuffled


class Task(abc.ABC):
    """Data with a loss and metrics.

    Attributes:
        checksum: of all the data, to tell runs on the same data from others.
        source: what the data are, as tables name them: "CIFAR-10 (JPEG copy)".
        notes: how the data were read, where that had to be found out; said once before training.
        splits: what the model can be evaluated on, "test" among them.
        eval_split: the one that is evaluated after each epoch of training: "valid" where there is
            one, so that the test data stay unseen.
        unit: what the loss is a mean over, in the plural: "samples", "tokens", "pixels", "nodes".
        metrics: beside the mean loss, the primary one first; without any, the loss is primary.
        streams: whether a batch goes on where the one before ended, so that what a model carries
            over matters.
        auxiliary: weight of the mean loss of what a model reads from parts of its state, in
            training.
        baseline: what `reference` gives the figures of: "trigram model"; empty for nothing.
        numbered: training samples that come again with the same inputs, and whose numbers the feed
            tells, so that states can be kept from step to step; None where inputs change.
        refused: why there are none, as it ends a sentence.
        early: whether loss and metrics can be taken of states on the way to an equilibrium.
        gallery: name of what is drawn of its samples for a report, as an application registers it;
            empty for nothing.
    """

    checksum: str
    source: str = ""
    notes: str = ""
    splits: tuple[str, ...] = ("train", "test")
    eval_split: str = "test"
    unit: str = "samples"
    metrics: tuple[Metric, ...] = ()
    streams: bool = False
    auxiliary: float = 0.0
    baseline: str = ""
    numbered: int | None = None
    refused: str = "the task does not keep account of which samples a step has"
    early: bool = True
    gallery: str = ""

    @abc.abstractmethod
    def complete(self, config: ModelConfig) -> ModelConfig:
        """Return `config` with what it leaves to the data filled in.

        Raises:
            ValueError: a model of this config cannot take the data.
        """

    def settle(self, config: TaskConfig) -> TaskConfig:
        """Return the task's own config with what it leaves to the data filled in."""
        return config

    def pace(self, batch_size: int, epochs: int) -> int:
        """Return the steps that count as an epoch where a recipe leaves that to the data.

        Args:
            batch_size: rows of a batch, of all processes together.
            epochs: of the run.

        Raises:
            ValueError: the task does not say.
        """
        raise ValueError(
            "epoch_steps is auto, and this task does not say how many steps make an epoch: set it "
            "to a number of steps, or to null for a pass over the data"
        )

    def whole(self) -> int:
        """Return how many samples there are to learn from, for `batch_size: all`.

        Raises:
            ValueError: they cannot all be in one batch.
        """
        raise ValueError(
            "batch_size is all, and this task's batches are not parts of a list of samples: set it "
            "to a number"
        )

    def model(self, config: ModelConfig, **layer: Any) -> Model:
        """Build the model that `config` describes, after a check that it fits the data.

        Raises:
            ValueError: it does not.
        """
        return self.complete(config).build(**layer)

    @abc.abstractmethod
    def feed(self, batch_size: int, seed: int) -> Feed:
        """Return the batches to learn from.

        Args:
            batch_size: rows of a batch, of all processes together.
            seed: of all that is at random in them.

        Raises:
            ValueError: the data do not fill one batch.
        """

    @abc.abstractmethod
    def batches(self, split: str, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Go through a split once, in its own order.

        Args:
            split: one of `splits`.
            batch_size: samples a batch on each process; or streams on all processes together.
            part: of this process.
        """

    @abc.abstractmethod
    def sample(self, split: str, count: int) -> Batch:
        """Return the first `count` samples of a split, fewer if there are not so many."""

    def augment(self, batch: Batch) -> Batch:
        """Return the batch of a training step, changed at random where the task does that."""
        return batch

    @abc.abstractmethod
    def loss(self, model: Model, output: Any, targets: Any) -> Tensor:
        """Return the loss, a scalar: the sum over all units of the batch.

        Training divides it by the units of the whole step, of all its micro-batches on all
        processes, so that its gradient is that of the mean whatever share of them each has.

        Args:
            model: the model whose output it is.
            output: of its prediction.
            targets: of the batch.
        """

    def extra_loss(self, losses: Tensor) -> Tensor:
        """Return what the losses of a prediction's auxiliary outputs add to that of its answer.

        Args:
            losses: (outputs,), in their order; each is a sum over all units of the batch.
        """
        return self.auxiliary * losses.mean()

    @abc.abstractmethod
    def units(self, targets: Any) -> int:
        """Return how many units a batch has: the denominator of its loss."""

    def sums(self, model: Model, output: Any, targets: Any) -> Mapping[str, Tensor]:
        """Return what a batch adds to the sums that `metrics` are made of: tensors of any shape.

        Args:
            model: the model whose output it is.
            output: of its prediction, without a gradient.
            targets: of the batch.
        """
        return {}

    def judge(self, output: Any, targets: Any) -> Tensor | None:
        """Return which answers are right, `(batch,)` bool; None where none is right or wrong.

        Args:
            output: of a prediction, without a gradient.
            targets: of the batch.
        """
        return None

    def measure_difficulty(self, batch: Batch) -> Tensor | None:
        """Return how hard each sample is, `(batch,)`, in any unit; None where that is unknown."""
        return None

    def figures(self, sums: Sums, split: str | None = None) -> dict[str, float]:
        """Return the mean loss and the figures of all metrics, by name.

        Args:
            sums: over batches, `loss` and `units` among them.
            split: that was evaluated; None for batches of training.
        """
        known = ((metric.name, metric.figure) for metric in (LOSS, *self.metrics))
        return {name: figure(sums) for name, figure in known if figure is not None}

    def record(self, sums: Sums) -> dict[str, Any]:
        """Return what else a final evaluation keeps of the sums, by name, as JSON has it.

        Args:
            sums: over a whole split.
        """
        return {}

    @property
    def loss_metric(self) -> Metric:
        """The mean of `loss`, by the name that it has wherever it is shown, of any split: what
        training makes small, without auxiliary outputs and penalties."""
        return LOSS

    @property
    def primary(self) -> Metric:
        """The metric that a model is compared by."""
        return self.metrics[0] if self.metrics else self.loss_metric

    def select_rows(self, targets: Any) -> Tensor | None:
        """Return (batch,) bool, the rows in which something is asked; None where that is all."""
        return None

    def refuses_export(self) -> str:
        """Return why models of this task cannot be exported to a file, in a sentence; empty where
        they can."""
        return ""

    def limit(self, count: int) -> int:
        """Return how many training samples are taken for a measurement that is usually made on
        `count`: fewer, where the task expects data with fewer than that."""
        return count

    def task_for_doctor(self) -> Task:
        """Return the task by whose loss an equilibrium layer is examined, which the loss reaches
        through the model's output: this one, mostly."""
        return self

    def reference(self, split: str) -> dict[str, float]:
        """Return the figures of the task's `baseline` on a split, by name."""
        return {}

    def save(self, folder: Path) -> None:  # noqa: B027 - most tasks need nothing
        """Write into a run folder what using the model without the data needs."""


class SampleTask(Task):
    """Samples to learn from, shuffled anew in each pass, and samples to evaluate on.

    Args:
        samples: by the name of the split, "train" and "test" among them.
        checksum: of all of them.
    """

    def __init__(self, samples: Mapping[str, Indexed], checksum: str) -> None:
        self.samples = dict(samples)
        self.splits = tuple(self.samples)
        self.eval_split = "valid" if "valid" in self.splits else "test"
        self.checksum = checksum

    def whole(self) -> int:
        return len(self.samples["train"]) if "train" in self.samples else super().whole()

    def feed(self, batch_size: int, seed: int) -> Feed:
        return Shuffled(self.samples["train"], batch_size, seed)

    def batches(self, split: str, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        samples = self.samples[check_split(self, split)]
        mine = part.of(len(samples))
        for start in range(mine.start, mine.stop, batch_size):
            yield Batch.of(samples, slice(start, min(start + batch_size, mine.stop)))

    def sample(self, split: str, count: int) -> Batch:
        samples = self.samples[check_split(self, split)]
        return Batch.of(samples, slice(0, min(count, len(samples))))

    def units(self, targets: Any) -> int:
        return Batch(None, targets).samples


class LabeledTask(SampleTask):
    """Samples with a class each, trained with cross-entropy.

    Attributes:
        label_smoothing: share of a target's weight that is spread over all classes.
    """

    metrics = (ACCURACY,)
    label_smoothing: float = 0.0

    def loss(self, model: Model, output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(
            output, targets, label_smoothing=self.label_smoothing, reduction="sum"
        )

    @property
    def loss_metric(self) -> Metric:
        return SMOOTHED if self.label_smoothing else LOSS

    def judge(self, output: Tensor, targets: Tensor) -> Tensor:
        return output.argmax(1) == targets

    def sums(self, model: Model, output: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return right(self.judge(output, targets))


@dataclass(frozen=True, kw_only=True)
class TaskConfig(abc.ABC):
    """What a recipe writes under `task`."""

    @abc.abstractmethod
    def load(self, data_dir: Path | None = None) -> Task:
        """Read the data and return the task.

        Args:
            data_dir: folder to look for data sets in, before EQUILIBRIA_DATA.
        """

    def load_other(self, run: Path, data_dir: Path | None = None) -> Task:
        """Read data that a run did not learn from, to evaluate its model on them.

        They are seen as the run's own were: with its vocabulary, say, or its numbers of classes. By
        default they are read as they would be for training.

        Args:
            run: folder of the run, which holds what `Task.save` has written.
            data_dir: as in `load`.
        """
        return self.load(data_dir)

    def has_gallery(self, run: Path) -> bool:
        """Return whether samples of a run can be drawn for a report, without reading the data.

        Args:
            run: folder of the run, which holds what `Task.save` has written.

        Raises:
            DataError: what it holds is damaged.
        """
        return False

    def read_classes(self, run: Path) -> dict[str, Any] | None:
        """Return the classes that a run tells apart, as a report names them; None for none.

        Args:
            run: folder of the run, which holds what `Task.save` has written.

        Returns:
            `labels`, their names in the order of their numbers; and `colors`, red, green and blue
            of each, empty where they have none.

        Raises:
            DataError: what the folder holds is damaged.
        """
        return None

    def at(self, data: str | Path) -> Self:
        """Return this task on other data.

        A config says where its data are in a field `file`, in a field `data`, or in one of both.

        Args:
            data: a text file, a folder of images or a file of arrays, whose path becomes absolute;
                or, as str, the name of a data set.

        Raises:
            ValueError: the task generates its own data.
        """
        path = Path(data).expanduser().absolute()
        known = {field.name for field in fields(self)} & {"file", "data"}
        if "file" in known:
            return replace(self, **{**dict.fromkeys(known), "file": str(path)})
        if not known:
            raise ValueError(f"{type(self).__name__} generates its own data: no other can be named")
        named = isinstance(data, str) and is_name(data) and not path.is_dir()
        return replace(self, data=data if named else str(path))

    def check_named(self, data: str) -> None:  # noqa: B027 - most tasks leave it to `load`
        """Refuse a user's word for data of this task, for `at`, that names nothing to be read.

        Raises:
            ValueError: there is no such file, nor a data set of that name.
        """

    def read_inputs(
        self, run: Path, data: str, *, batches: int, size: int, seed: int
    ) -> Iterator[Tensor] | None:
        """Return batches of a model's inputs from data without labels, seen as a run saw its own.

        Args:
            run: folder of the run, which holds what `Task.save` has written.
            data: what a user calls them.
            batches: how many, at most.
            size: samples of each.
            seed: of their order.

        Returns:
            The batches; None where the inputs are to be taken from `load_other`.

        Raises:
            ValueError: there are no data of that name.
            DataError: it is not known how the run saw its own.
        """
        return None


def is_name(data: str) -> bool:
    """Return whether `data` can be the name of a data set: no path, and no file of arrays."""
    return Path(data).name == data and Path(data).suffix != ".npz"


def right(answers: Tensor) -> dict[str, Tensor]:
    """Return the sums of `ACCURACY`: how many of `answers`, bool, there are and how many hold."""
    return {"correct": answers.sum(), "answers": torch.tensor(answers.numel())}


def check_split(task: Task, split: str) -> str:
    """Return `split` if `task` has it.

    Raises:
        ValueError: it does not.
    """
    if split not in task.splits:
        raise ValueError(f"there is no split '{split}'; there are: {', '.join(task.splits)}")
    return split
