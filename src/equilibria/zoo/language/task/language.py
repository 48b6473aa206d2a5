"""Language modelling: which token comes next?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, cast

from torch import Tensor
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.metric import Metric, Sums, mean
from equilibria.run.models import Model, ModelConfig
from equilibria.run.tasks.base import Task, TaskConfig, check_split
from equilibria.run.tasks.feed import WHOLE, Batch, Part, Streams, segment
from equilibria.words import nearest
from equilibria.zoo.io.tasks import Predicts, complete_vocabulary

if TYPE_CHECKING:
    from equilibria.zoo.language.data import Corpus


def _perplexity(sums: Sums) -> float:
    """e^loss; infinity where that is more than a float holds."""
    return math.exp(loss) if (loss := _loss(sums)) < 700.0 else math.inf


_loss = mean("loss", "units")

PERPLEXITY = Metric(
    name="perplexity",
    figure=_perplexity,
    description="Among how many equally likely tokens the network hesitates, in the mean: e to the "
    "loss. A perplexity of 1 would be certainty.",
    spec=".2f",
)
BITS = Metric(
    name="bits",
    figure=lambda sums: _loss(sums) / math.log(2.0),
    label="bits a token",
    spec=".3f",
    plot=False,
)
BITS_PER_CHARACTER = Metric(
    name="bits_per_character", label="bits a character", spec=".3f", plot=False
)


UNKNOWN = Metric(
    name="unknown", label="tokens that are <unk>", scale=100.0, spec=".2f", unit=" %", plot=False
)
"""The share of tokens of another text that the run's vocabulary lacks: they are easy to predict."""


@dataclass(frozen=True, kw_only=True)
class LanguageModeling(TaskConfig):
    """Which word or character comes next? Trained with the mean of -ln p over the tokens of a text.

    A batch is `batch_size` streams of the text in segments of `length` tokens; what the model
    carries over from a segment goes into the next, and is forgotten after each pass. Evaluation
    reads each token of a split once, in `eval_batch_size` streams of all processes together: the
    fewer, the fewer tokens stand at a beginning.

    Args:
        data: name of a corpus, such as ptb, also `--data NAME`; null where `file` names a text.
        file: path of a text in UTF-8 to learn from, also `--data FILE`; null where `data` names a
            corpus.
        unit: what a token is, words or characters; null for words in a corpus with a name, and
            characters in a file.
        length: tokens of a segment in training.
        eval_length: the same in evaluation; null for `length`.
        valid_share: share of a file, before its end, that is held out to validate on.
        test_share: share of a file, at its end, that is held out to test on.
        min_count: how often a token must occur in the training part to be known.
        max_size: largest vocabulary; null for no limit.
        errors: what bytes of a file that are no UTF-8 do: strict stops with an error, replace reads
            them as U+FFFD.
        encoding: of a file, such as cp1252 or shift_jis.
    """

    data: str | None = None
    file: str | None = None
    unit: Literal["words", "characters"] | None = None
    length: int = 64
    eval_length: int | None = None
    valid_share: float = 0.05
    test_share: float = 0.05
    min_count: int = 1
    max_size: int | None = None
    errors: Literal["strict", "replace"] = "strict"
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "length", "eval_length")
        shares = (self.valid_share, self.test_share)
        if not (min(shares) > 0.0 and sum(shares) < 1.0):
            raise ValueError(
                "valid_share and test_share must be positive and leave some text to learn from; "
                f"got {shares[0]:g} and {shares[1]:g}"
            )
        if self.data is not None and self.file is not None:
            raise ValueError(
                f"there are two texts, the corpus '{self.data}' and the file {self.file}: set one "
                "of task.data and task.file to null"
            )

    @override
    def at(self, data: str | Path) -> Self:
        from equilibria.zoo.language import data as text

        if data in text.available() and not Path(data).is_file():
            return replace(self, data=data, file=None)
        return super().at(data)

    @override
    def check_named(self, data: str) -> None:
        from equilibria.zoo.language import data as text

        other = self.at(data).file
        if other is not None and Path(data).name == data and not Path(other).exists():
            near = nearest(data, text.available()).removeprefix("; choose from: ")
            known = near if near.startswith(";") else f"; those are {near}"
            raise ValueError(f"there is no such file, nor a text of that name{known}")

    @override
    def load(self, data_dir: Path | None = None) -> LanguageTask:
        from equilibria.zoo.language import data as text

        if self.data is None and self.file is None:
            raise ValueError("there is no text to learn from: name a file with --data FILE")
        corpus = text.load(
            self.data,
            file=self.file,
            unit=self.unit,
            data_dir=data_dir,
            valid_share=self.valid_share,
            test_share=self.test_share,
            min_count=self.min_count,
            max_size=self.max_size,
            errors=self.errors,
            encoding=self.encoding,
        )
        return LanguageTask(self, corpus)

    @override
    def load_other(self, run: Path, data_dir: Path | None = None) -> LanguageTask:
        """Read a text in UTF-8 with the run's vocabulary; all of a file is to evaluate on.

        Raises:
            DataError: the run's vocabulary is missing or damaged, or the text cannot be read.
        """
        from equilibria.zoo.language import data as text

        corpus = text.load(
            self.data,
            file=self.file,
            data_dir=data_dir,
            errors=self.errors,
            vocabulary=text.Vocabulary.load(run / VOCABULARY),
        )
        task = LanguageTask(self, corpus)
        # A trigram model of the other text would have learned from it, as the run's has not.
        task.metrics, task.baseline = (*task.metrics, UNKNOWN), ""
        return task


class LanguageTask(Task):
    """A text, in three parts one after the other.

    Args:
        config: what the recipe says.
        corpus: the text.
    """

    unit = "tokens"
    metrics = (PERPLEXITY, BITS, BITS_PER_CHARACTER)
    streams = True
    baseline = "trigram model"

    def __init__(self, config: LanguageModeling, corpus: Corpus) -> None:
        self.config, self.corpus = config, corpus
        self.splits = tuple(corpus.splits)
        self.eval_split = "valid" if "valid" in self.splits else "test"
        self.checksum, self.source = corpus.checksum, corpus.name

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        return complete_vocabulary(config, self.corpus.vocabulary.size, f"'{self.corpus.name}'")

    @override
    def feed(self, batch_size: int, seed: int) -> Streams:
        return Streams(self.corpus.splits["train"], batch_size, self.config.length, seed)

    @override
    def batches(self, split: str, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        tokens = self.corpus.splits[check_split(self, split)]
        asked = len(tokens) - 1
        if asked < 1:
            raise ValueError(
                f"the {split} part of '{self.corpus.name}' has {len(tokens)} tokens: nothing can "
                "be asked of a model there"
            )
        rows = min(batch_size, asked)
        mine = [Part(row, rows).of(asked) for row in range(rows)[part.of(rows)]]
        if not mine:
            return
        length = self.config.eval_length or self.config.length
        longest = max(stream.stop - stream.start for stream in mine)
        for begin in range(0, longest, length):
            starts = [stream.start + begin for stream in mine]
            sizes = [max(0, min(length, s.stop - at)) for s, at in zip(mine, starts, strict=True)]
            yield segment(tokens, starts, sizes, begin == 0)

    @override
    def sample(self, split: str, count: int) -> Batch:
        tokens = self.corpus.splits[check_split(self, split)]
        length = min(self.config.length, len(tokens) - 1)
        rows = min(count, (len(tokens) - 1) // length)
        spread = (len(tokens) - 1) // rows  # from all over the text
        return segment(tokens, [row * spread for row in range(rows)], [length] * rows, True)

    @override
    def loss(self, model: Model, output: Tensor, targets: Tensor) -> Tensor:
        return cast(Predicts, model).losses(output, targets).sum()

    @override
    def units(self, targets: Tensor) -> int:
        return int((targets >= 0).sum())

    @override
    def select_rows(self, targets: Tensor) -> Tensor | None:
        rows = (targets >= 0).any(1)
        return None if bool(rows.all()) else rows

    @override
    def figures(self, sums: Sums, split: str | None = None) -> dict[str, float]:
        figures = self._with_characters(super().figures(sums, split), split)
        if split is not None and UNKNOWN in self.metrics:
            figures["unknown"] = self.corpus.statistics[split].unknown_share
        return figures

    def _with_characters(self, figures: dict[str, float], split: str | None) -> dict[str, float]:
        """The figures with bits a character of a split's text, where these are known.

        Where words of the split are not in the vocabulary, the bits are of reading <unk> and not
        of the characters that stand there: what a character costs is then not known.
        """
        if split is None:
            return figures
        statistics = self.corpus.statistics[split]
        if self.corpus.unit == "words" and statistics.unknown:
            return figures
        bits = figures["bits"] / statistics.characters_per_token
        return {**figures, "bits_per_character": bits}

    @override
    def reference(self, split: str) -> dict[str, float]:
        """Return the figures of an interpolated trigram model.

        It is fitted to the training part of the text, its weights to the validation part.

        Raises:
            ValueError: the vocabulary is too large for it.
        """
        from equilibria.zoo.language.data import Trigram

        bits = Trigram.fit(self.corpus).bits(self.corpus.splits[split])
        return self._with_characters({"perplexity": 2.0**bits, "bits": bits}, split)

    @override
    def save(self, folder: Path) -> None:
        self.corpus.vocabulary.save(folder / VOCABULARY)


VOCABULARY = "vocabulary.json"
"""The file of a run folder that tells which token is which word or character."""
