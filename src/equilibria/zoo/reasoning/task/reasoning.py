"""Tasks with an answer at every place, judged by whether all of an instance are right."""

from __future__ import annotations

import abc
import filecmp
import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.metric import ACCURACY, mean
from equilibria.run.data.dataset import Split, digest
from equilibria.run.data.storage import DataError, read_errors
from equilibria.run.models import ClassifierConfig, Model, ModelConfig
from equilibria.run.tasks.base import SampleTask, TaskConfig, right
from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Part
from equilibria.zoo.io.tasks import complete_config
from equilibria.zoo.reasoning.data import mazes, sudoku, words
from equilibria.zoo.reasoning.data.drawing import generator_of

EXACT = replace(
    ACCURACY,
    name="exact",
    label="instances solved",
    figure=mean("solved", "instances"),
    description="The share of instances in which the answer is right at every place.",
)


@dataclass(frozen=True, kw_only=True)
class ReasoningConfig(TaskConfig):
    """Instances that are generated from a seed, small ones to learn from and larger ones beside.

    No instance of the splits "valid" and "test" occurs in training, in any step with any seed:
    those of the training size are divided by a hash. Only of strings of which there are fewer than
    1,000 is none held out.

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

    @property
    @abc.abstractmethod
    def classes(self) -> int:
        """Answers that there are at a place."""

    @property
    def splits(self) -> dict[str, int]:
        """What is evaluated, with the size of its instances."""
        same = {"valid": self.size, "test": self.size}
        return same | {f"test-{size}": size for size in self.larger}

    @abc.abstractmethod
    def make(self, count: int, size: int, *, seed: str, part: str | None) -> Split:
        """Return instances.

        Args:
            count: instances.
            size: of each.
            seed: a text that fixes them.
            part: "train", "valid" or "test", which have no instance in common; None for any
                instances of another size than that of training.
        """

    def draw(self, count: int, split: str, size: int, *stamps: int) -> Split:
        """Return instances of a split or, for "train", of a training step.

        Args:
            count: instances.
            split: its name.
            size: of each.
            stamps: seed and number of the step.
        """
        seed = " ".join(map(str, (split, size, self.data_seed, *stamps)))
        part = split.partition("-")[0] if size == self.size else None
        return self.make(count, size, seed=seed, part=part)

    def draw_batch(self, count: int, step: int, seed: int) -> Split:
        """Return the batch of a training step."""
        return self.draw(count, "train", self.size, seed, step)

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
    """

    size: int = 16
    larger: tuple[int, ...] = (32, 64, 128, 256, 512)

    @property
    @override
    def classes(self) -> int:
        return 2

    @override
    def make(self, count: int, size: int, *, seed: str, part: str | None) -> Split:
        return words.draw_parities(count, size, seed=seed, part=part)

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
        begin: letters at the start of training.
        curriculum: steps over which they grow to `size`; 0 for `size` from the start.
    """

    group: Literal["S3", "S5", "A5", "Z60"] = "S3"
    size: int = 16
    larger: tuple[int, ...] = (32, 64, 128, 256)
    begin: int = 2
    curriculum: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, f"[1, {self.size}]", "begin")
        check_fields(self, "[0, inf)", "curriculum")

    @property
    @override
    def classes(self) -> int:
        return len(words.multiplication(self.group))

    @override
    def make(self, count: int, size: int, *, seed: str, part: str | None) -> Split:
        return words.draw_words(self.group, count, size, seed=seed, part=part)

    @override
    def draw_batch(self, count: int, step: int, seed: int) -> Split:
        grown = 1.0 if step >= self.curriculum else step / self.curriculum
        length = round(self.begin + grown * (self.size - self.begin))
        return self.draw(count, "train", length, seed, step)

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

    @property
    @override
    def classes(self) -> int:
        return 2

    @override
    def make(self, count: int, size: int, *, seed: str, part: str | None) -> Split:
        return mazes.draw_mazes(count, size, seed=seed, algorithm=self.algorithm, part=part)

    @override
    def measure_difficulty(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the depth of the dead ends, see `mazes.count_rounds`."""
        return mazes.count_rounds(inputs)

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
        clues: digits given at least; a puzzle keeps more where it would have a second solution.
        puzzles: puzzles to learn from, of which symmetric copies are drawn in training.
        train_file: CSV file of puzzles of 9 digits to learn from, with columns question and answer,
            such as train.csv of sudoku-extreme.
        test_file: CSV file of those to evaluate on; "valid" and "test" have half of them each.
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
        return self.draw(self.puzzles, "train", self.size)

    @functools.cached_property
    def _unseen(self) -> Split:
        """The puzzles of `test_file`."""
        assert self.train_file is not None and self.test_file is not None
        found = sudoku.read_puzzles(Path(self.test_file))
        with read_errors(self.train_file):
            same = filecmp.cmp(self.train_file, self.test_file, shallow=False)
        if same:
            raise DataError(
                f"train_file {self.train_file} and test_file {self.test_file} have the same "
                "content: puzzles to evaluate on must not be those to learn from"
            )
        if len(found) < 2:
            raise DataError(f"{self.test_file} holds one puzzle: valid and test take one each")
        return found

    @property
    @override
    def classes(self) -> int:
        return self.size

    @override
    def make(self, count: int, size: int, *, seed: str, part: str | None) -> Split:
        if self.test_file is not None:
            order = generator_of(f"test_file {self.data_seed}").permutation(len(self._unseen))
            half = order[::2] if part == "valid" else order[1::2]
            return self._unseen.select(torch.from_numpy(half[:count]))
        held_out = part != "train"
        return sudoku.draw_puzzles(size, count, seed=seed, clues=self.clues, held_out=held_out)

    @override
    def draw_batch(self, count: int, step: int, seed: int) -> Split:
        generator = generator_of(f"sudoku {self.data_seed} {seed} {step}")
        chosen = generator.integers(len(self.pool), size=count)
        return sudoku.permute(self.pool.select(torch.from_numpy(chosen)), generator)

    @override
    def measure_difficulty(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the rounds of deduction that a puzzle takes, see `sudoku.count_rounds`."""
        return sudoku.count_rounds(inputs)

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
        drawn = self.config.draw_batch(self.batch_size, step, self.seed)
        return Batch.of(drawn, part.of(self.batch_size))


class ReasoningTask(SampleTask):
    """Instances `(n, channels, *space)` with answers `(n, *space)`, int64."""

    unit = "places"
    metrics = (EXACT, ACCURACY)
    auxiliary = 1.0

    def __init__(self, config: ReasoningConfig) -> None:
        self.config = config
        samples = {
            split: config.draw(config.test, split, size) for split, size in config.splits.items()
        }
        super().__init__(samples, digest(*samples.values()))
        self.source = config.source
        self.shape = tuple(samples["test"].inputs.shape[1:])
        self.classes = config.classes

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        if not isinstance(config, ClassifierConfig):
            raise ValueError(f"{type(config).__name__} describes no network that answers places")
        if self.config.larger and getattr(config, "cell", None) == "attention":
            raise ValueError(
                "cell is attention, which takes instances of one size, and larger ones are to be "
                "tested on: set --task.larger '[]', or another --model.cell"
            )
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
