"""Tasks with an answer at every place, judged by whether all of an instance are right."""

from __future__ import annotations

import abc
import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.metric import ACCURACY, mean
from equilibria.run.data.dataset import Split, digest
from equilibria.run.models import ClassifierConfig, Model, ModelConfig
from equilibria.run.tasks.base import SampleTask, TaskConfig, right
from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Part
from equilibria.zoo.io.tasks import complete_config
from equilibria.zoo.reasoning.data import mazes, sudoku, words

EXACT = replace(
    ACCURACY,
    name="exact",
    label="instances solved",
    figure=mean("solved", "instances"),
    description="The share of instances in which the answer is right at every place.",
)

# Seeds of the steps' batches begin here, far from those of what is evaluated.
_TRAINING = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ReasoningConfig(TaskConfig):
    """Instances that are generated from a seed, small ones to learn from and larger ones beside.

    Args:
        size: of an instance in training, and of the splits "valid" and "test".
        larger: further sizes, each a split: "test-64" for 64.
        test: instances of each split.
        epoch: training instances that count as a pass over the data.
        data_seed: of all instances.
    """

    size: int
    larger: tuple[int, ...] = ()
    test: int = 1000
    epoch: int = 25_600
    data_seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "size", "test", "epoch")
        if self.larger:
            check_fields(self, "[1, inf)", "larger")

    @abc.abstractmethod
    def draw(self, count: int, size: int, seed: int) -> Split:
        """Return `count` instances to learn from, or to evaluate on."""

    def draw_batch(self, count: int, step: int, seed: int) -> Split:
        """Return the batch of a training step."""
        return self.draw(count, self.size, seed)

    def measure_difficulty(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return how hard each instance is, `(count,)`: what longer solves should go with."""
        return torch.full((len(targets),), float(targets[0].numel()))

    @property
    @abc.abstractmethod
    def source(self) -> str:
        """What the instances are, as tables name them."""

    @override
    def load(self, data_dir: Path | None = None) -> ReasoningTask:
        return ReasoningTask(self)


@dataclass(frozen=True, kw_only=True)
class PrefixParity(ReasoningConfig):
    """The parity of the first i bits, at every i.

    Args:
        size: bits of an instance in training, and of the splits "valid" and "test".
        larger: further lengths, each a split: "test-64" for 64.
        test: instances of each split.
        epoch: training instances that count as a pass over the data.
        data_seed: of all instances.
    """

    size: int = 16
    larger: tuple[int, ...] = (32, 64, 128, 256, 512)

    @override
    def draw(self, count: int, size: int, seed: int) -> Split:
        return words.draw_parities(count, size, seed=seed)

    @property
    @override
    def source(self) -> str:
        return f"prefix parities, {self.size} bits"


@dataclass(frozen=True, kw_only=True)
class GroupWords(ReasoningConfig):
    """The product of the first i letters of a word over a finite group, at every i.

    Args:
        group: S3 or S5 (permutations), A5 (the even ones), Z60 (addition modulo 60).
        size: letters of an instance in training, and of the splits "valid" and "test".
        larger: further lengths, each a split: "test-64" for 64.
        test: instances of each split.
        epoch: training instances that count as a pass over the data.
        data_seed: of all instances.
        begin: letters at the start of training.
        curriculum: steps over which they grow to `size`; 0 for `size` from the start.
    """

    group: Literal["S3", "S5", "A5", "Z60"] = "S3"
    size: int = 16
    larger: tuple[int, ...] = (32, 64, 128, 256)
    begin: int = 2
    curriculum: int = 0

    @override
    def draw(self, count: int, size: int, seed: int) -> Split:
        return words.draw_words(self.group, count, size, seed=seed)

    @override
    def draw_batch(self, count: int, step: int, seed: int) -> Split:
        grown = 1.0 if step >= self.curriculum else step / self.curriculum
        return self.draw(count, round(self.begin + grown * (self.size - self.begin)), seed)

    @property
    @override
    def source(self) -> str:
        return f"words over {self.group}, {self.size} letters"


@dataclass(frozen=True, kw_only=True)
class Mazes(ReasoningConfig):
    """The way from start to goal of a maze in which there is one.

    Args:
        size: rows and columns of an instance in training, and of the splits "valid" and "test".
        larger: further sizes, each a split: "test-13" for 13.
        test: instances of each split.
        epoch: training instances that count as a pass over the data.
        data_seed: of all instances.
        algorithm: how mazes are made: "depth_first", "wilson", or "mixed", one and the other.
    """

    size: int = 9
    larger: tuple[int, ...] = (13, 17, 33)
    algorithm: Literal["mixed", "depth_first", "wilson"] = "mixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        for size in (self.size, *self.larger):
            if size < 5 or size % 2 == 0:
                raise ValueError(f"size must be odd and at least 5, with walls between; got {size}")

    @override
    def draw(self, count: int, size: int, seed: int) -> Split:
        return mazes.draw_mazes(count, size, seed=seed, algorithm=self.algorithm)

    @override
    def measure_difficulty(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cells of the way."""
        return targets.flatten(1).sum(1).float()

    @property
    @override
    def source(self) -> str:
        return f"mazes, {self.size} x {self.size}"


@dataclass(frozen=True, kw_only=True)
class Sudoku(ReasoningConfig):
    """The solution of a sudoku that has one; grids of the test have no symmetric copy in training.

    Args:
        size: digits: 4 or 6, generated; or 9, of `train_file`.
        larger: no other sizes: leave it empty.
        test: instances of each split.
        epoch: training instances that count as a pass over the data.
        data_seed: of all instances.
        clues: digits given at least; a puzzle keeps more where it would have a second solution.
        puzzles: puzzles to learn from, of which symmetric copies are drawn in training.
        train_file: CSV file of puzzles of 9 digits to learn from, with columns question and answer,
            such as train.csv of sudoku-extreme.
        test_file: CSV file of those to evaluate on.
    """

    size: int = 6
    clues: int = 8
    puzzles: int = 2000
    train_file: str | None = None
    test_file: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "[1, inf)", "puzzles")
        if self.size not in sudoku.SIZES or self.larger:
            raise ValueError(
                f"size must be 4, 6 or 9, and larger empty; got {self.size} and {self.larger}"
            )
        files = (self.train_file, self.test_file)
        if (self.size == 9) != all(files) or (self.size != 9 and any(files)):
            raise ValueError(
                f"size is {self.size}: puzzles of 9 digits are read from train_file and test_file, "
                "those of 4 and 6 are generated"
            )

    @functools.cached_property
    def pool(self) -> Split:
        """The puzzles to learn from."""
        if self.train_file is not None:
            return sudoku.read_puzzles(Path(self.train_file), self.puzzles)
        return self._draw(self.puzzles, _TRAINING + self.data_seed, held_out=False)

    def _draw(self, count: int, seed: int, *, held_out: bool) -> Split:
        options = {"seed": seed, "clues": self.clues, "held_out": held_out}
        return sudoku.draw_puzzles(self.size, count, **options)

    @override
    def draw(self, count: int, size: int, seed: int) -> Split:
        if self.test_file is not None:
            found = sudoku.read_puzzles(Path(self.test_file))
            order = np.random.default_rng(seed).permutation(len(found))[:count]
            return found.select(torch.from_numpy(order))
        return self._draw(count, seed, held_out=True)

    @override
    def draw_batch(self, count: int, step: int, seed: int) -> Split:
        generator = np.random.default_rng(seed)
        chosen = generator.integers(len(self.pool), size=count)
        return sudoku.permute(self.pool.select(torch.from_numpy(chosen)), generator)

    @override
    def measure_difficulty(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the guesses of a search that has no rule but the sudoku's own."""
        return sudoku.count_guesses(inputs)

    @property
    @override
    def source(self) -> str:
        return f"sudoku of {self.size} digits"


class _Drawn(Feed):
    """Instances drawn for each step, by its number."""

    def __init__(self, config: ReasoningConfig, batch_size: int, seed: int) -> None:
        self.config, self.batch_size, self.seed = config, batch_size, seed
        self.steps = max(1, config.epoch // batch_size)

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        seed = _TRAINING * (2 + self.seed + 1_009 * self.config.data_seed) + step
        drawn = self.config.draw_batch(self.batch_size, step, seed)
        return Batch.of(drawn, part.of(self.batch_size))


class ReasoningTask(SampleTask):
    """Instances `(n, channels, *space)` with answers `(n, *space)`, int64."""

    unit = "places"
    metrics = (EXACT, ACCURACY)
    auxiliary = 1.0

    def __init__(self, config: ReasoningConfig) -> None:
        self.config = config
        sizes = {"valid": config.size, "test": config.size}
        sizes |= {f"test-{size}": size for size in config.larger}
        samples = {
            name: config.draw(config.test, size, 16 * config.data_seed + number)
            for number, (name, size) in enumerate(sizes.items())
        }
        super().__init__(samples, digest(*samples.values()))
        self.source = config.source
        self.shape = tuple(samples["test"].inputs.shape[1:])
        self.classes = int(max(each.targets.max() for each in samples.values())) + 1

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        if not isinstance(config, ClassifierConfig):
            raise ValueError(f"{type(config).__name__} describes no network that answers places")
        facts = {"shape": self.shape, "classes": self.classes}
        return complete_config(config, facts, self.source)

    @override
    def feed(self, batch_size: int, seed: int) -> Feed:
        return _Drawn(self.config, batch_size, seed)

    @override
    def loss(self, model: Model, output: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over all places of their cross-entropy."""
        return functional.cross_entropy(output, targets, reduction="sum")

    @override
    def units(self, targets: Tensor) -> int:
        return targets.numel()

    @override
    def judge(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return in which instances every answer is right."""
        return (output.argmax(1) == targets).flatten(1).all(1)

    @override
    def measure_difficulty(self, batch: Batch) -> Tensor | None:
        return self.config.measure_difficulty(batch.inputs.cpu(), batch.targets.cpu())

    @override
    def sums(self, model: Model, output: Tensor, targets: Tensor) -> dict[str, Tensor]:
        solved = self.judge(output, targets)
        instances = torch.tensor(len(solved))
        return {
            **right(output.argmax(1) == targets),
            "solved": solved.sum(),
            "instances": instances,
        }
