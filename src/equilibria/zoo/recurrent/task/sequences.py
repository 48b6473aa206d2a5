"""Classification of whole sequences: windows of sensors, spoken words, reviews."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, cast

import torch
from typing_extensions import override

from equilibria import draws
from equilibria.checks import check_fields
from equilibria.run.data import available, load
from equilibria.run.data.dataset import Samples
from equilibria.run.data.storage import DataError
from equilibria.run.models import ModelConfig
from equilibria.run.tasks.base import LabeledTask, TaskConfig, check_split
from equilibria.run.tasks.feed import Batch
from equilibria.run.tasks.regression import fit_regression
from equilibria.zoo.io import arrays, selection
from equilibria.zoo.io.delimited import Separator
from equilibria.zoo.io.sequences import SequenceSamples
from equilibria.zoo.io.tasks import complete_classifier, read_facts, require_data, write_facts
from equilibria.zoo.recurrent.data import Sequences, SequenceSet
from equilibria.zoo.recurrent.data.tables import Missing
from equilibria.zoo.recurrent.task.signals import (
    ChannelStatistics,
    Standardized,
    read_windows,
    steps,
)

READING = ("separator", "missing", "channel")
"""Keys that say how a user's own files are read."""

SEQUENCES = "sequences.json"
"""The file of a run folder that tells what classes and channels are called and how signals were
standardised."""


class _Sequences(TypedDict):
    labels: list[str]
    channels: list[str]
    standardise: _Standardize | None


class _Standardize(TypedDict):
    mean: list[float]
    deviation: list[float]
    compress: float | None


@dataclass(frozen=True, kw_only=True)
class SequenceClassification(TaskConfig):
    """Which of several classes is a sequence of? Trained with cross-entropy.

    Args:
        data: name of a data set (har2, google12, ...), or path of a folder of sequences as CSV or
            NPZ files; null in a recipe that leaves it to --data FOLDER.
        samples: training sequences to learn from, as many of each class; null for all.
        valid: share of the training sequences that is set aside, and evaluated after each epoch in
            place of the test sequences: those of that share of volunteers, speakers or machines
            where the data name them, and of each class otherwise; null for none.
        separator: of the columns of texts: comma, semicolon, tab, bar or space; null to find it.
        missing: what happens to a step in which a value is missing: error, drop (leave the step
            out), or interpolate (linearly between the channel's neighbours in time).
        channel: of recordings, counted from 1; null for the mean of all.
        standardize: give each channel mean 0 and deviation 1 over the training sequences.
        compress: c of asinh(x / c) / asinh(1 / c), which standardised signals x are put through so
            that small movements count beside large ones: linear well below c, logarithmic above;
            null to leave them.
        noise: standard deviation of Gaussian noise that is added to training signals, at each step
            anew, in units of a standardised channel, after it is compressed.
        label_smoothing: share of a target's weight that is spread over all classes, in [0, 1).
    """

    data: str | None = "har2"
    samples: int | None = None
    valid: float | None = None
    separator: Separator | None = None
    missing: Missing = "error"
    channel: int | None = None
    standardize: bool = True
    compress: float | None = None
    noise: float = 0.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "[0, 1)", "label_smoothing")
        check_fields(self, "[0, inf)", "noise")
        check_fields(self, "(0, inf)", "compress")
        for name in ("noise", "compress"):
            if getattr(self, name) and not self.standardize:
                raise ValueError(
                    f"{name} is {getattr(self, name):g} in units of a standardised channel, and "
                    "standardize is false: set one of them otherwise"
                )
        check_fields(self, "(0, 1)", "valid")
        check_fields(self, "[1, inf)", "samples", "channel")

    @override
    def load(self, data_dir: Path | None = None) -> SequenceTask:
        return SequenceTask(self, self._load_set(data_dir))

    @override
    def load_other(self, run: Path, data_dir: Path | None = None) -> SequenceTask:
        """Read other sequences and standardise them as the run's own were.

        Raises:
            DataError: their classes or channels are not the run's.
        """
        config = replace(self, samples=None, valid=None)
        return SequenceTask(config, config._load_set(data_dir, other=True), run / SEQUENCES)

    def _load_set(self, data_dir: Path | None, other: bool = False) -> SequenceSet:
        """The data; `other` than those that the keys in `READING` were given for."""
        data = require_data(
            self.data,
            "there are no sequences",
            "name a folder with --data FOLDER, with one subfolder of CSV, NPZ or WAV files per "
            "class",
        )
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        given = {name: getattr(self, name) for name in READING}
        given = {name: value for name, value in given.items() if value != usual[name]}
        named = data in available(SequenceSet)
        if named and given and not other:
            raise ValueError(
                f"{', '.join(given)} is for a folder of your own, and '{data}' is a data "
                "set with a name: leave it out"
            )
        if other:
            given = {k: v for k, v in given.items() if k != "separator"} | {"whole": True}
            given = {} if named else given
        return load(data, data_dir, kind=SequenceSet, **given)


class SequenceTask(LabeledTask):
    """Sequences (n, time, channels), or tokens (n, time), with labels (n,).

    Args:
        config: what the recipe says.
        found: the data set.
        seen: sequences.json of a run that evaluates on these data; None for its own.
    """

    baseline = "logistic regression on statistics of windows"

    def __init__(
        self, config: SequenceClassification, found: SequenceSet, seen: Path | None = None
    ) -> None:
        self.config, self.source = config, found.title
        self.labels, self.channels = found.labels, found.channels
        self.vocabulary = found.vocabulary
        if found.vocabulary is not None and (config.noise or config.compress):
            raise ValueError(
                f"'{config.data}' has tokens, not signals: set task.noise to 0 and task.compress "
                "to null"
            )
        samples = _select(config, found)
        self.statistics: ChannelStatistics | None = None
        if seen is not None:
            self.statistics = self._read_statistics(seen)
        elif config.standardize and found.vocabulary is None:
            self.statistics = ChannelStatistics.of(samples["train"], config.compress)
        self.notes = found.form
        if self.statistics is None:
            samples = {name: _single(each, found.channels) for name, each in samples.items()}
        else:
            samples = {name: Standardized(s, self.statistics) for name, s in samples.items()}
        super().__init__(samples, found.checksum)
        self.label_smoothing = config.label_smoothing
        if seen is not None or found.vocabulary is not None:
            self.baseline = ""  # nothing of these was learned from, or they are no signals

    def _read_statistics(self, path: Path) -> ChannelStatistics | None:
        """The statistics of a run, once its classes and channels are found to be these."""
        with read_facts(path, _Sequences) as content:
            known = {name: tuple(content[name]) for name in ("labels", "channels")}
            normal = content["standardise"]
            if normal and not len(normal["mean"]) == len(normal["deviation"]) == len(
                known["channels"]
            ):
                raise ValueError("standardise must have a mean and a deviation for each channel")
            statistics = normal and ChannelStatistics(
                tuple(normal["mean"]), tuple(normal["deviation"]), normal["compress"]
            )
        for name, theirs in known.items():
            mine = getattr(self, name)
            if mine != theirs:
                raise DataError(
                    f"{self.source} has the {name} {', '.join(mine) or 'none'}, and the run has "
                    f"{', '.join(theirs) or 'none'}: they must be the same, in this order"
                )
        return statistics

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        shape = (len(self.channels),) if self.vocabulary is None else ()
        return complete_classifier(config, shape, len(self.labels), self.vocabulary, self.source)

    @override
    def reference(self, split: str) -> dict[str, float]:
        learned, asked = (
            cast(Samples, self.samples[name]) for name in ("train", check_split(self, split))
        )
        return fit_regression(learned, len(self.labels), read_windows, scale=True).figures(asked)

    @override
    def augment(self, batch: Batch) -> Batch:
        if not self.config.noise:
            return batch
        x, lengths = batch.inputs if isinstance(batch.inputs, tuple) else (batch.inputs, None)
        x = x + self.config.noise * draws.for_samples(torch.empty_like(x), torch.Tensor.normal_)
        return batch._replace(inputs=x if lengths is None else (x, lengths))

    @override
    def save(self, folder: Path) -> None:
        """Write sequences.json: names of classes and channels, and how signals are standardised."""
        statistics = self.statistics
        content = {
            "source": self.source,
            "labels": self.labels,
            "channels": self.channels,
            "vocabulary": self.vocabulary,
            "standardise": None if statistics is None else dataclasses.asdict(statistics),
        }
        write_facts(folder / SEQUENCES, content)


def _single(sequences: SequenceSamples, channels: tuple[str, ...]) -> SequenceSamples:
    """Sequences in float32, with a warning if rounding hides the variation of a channel."""
    if not isinstance(sequences, Sequences) or sequences.inputs.dtype != torch.float64:
        return sequences
    x = steps(sequences.inputs, sequences.lengths).numpy()
    lost = [name for name, wide in zip(channels, arrays.coarse([x]), strict=True) if wide]
    if lost:
        warnings.warn(
            f"{', '.join(lost)} varies by less than float32 can tell at its magnitude: set "
            "task.standardize to true, or subtract its mean in the files",
            stacklevel=2,
        )
    return replace(sequences, inputs=sequences.inputs.float())


def _select(config: SequenceClassification, found: SequenceSet) -> dict[str, SequenceSamples]:
    """The sequences of each split: "train", "test", and perhaps "valid".

    Raises:
        ValueError: there are not so many.
    """
    chosen: dict[str, SequenceSamples] = {"train": found.train, "test": found.test}
    if found.valid is not None:
        chosen["valid"] = found.valid
        if config.valid is not None:
            raise ValueError(
                f"valid is {config.valid}, and '{config.data}' has sequences of its own to "
                "validate on: set task.valid to null"
            )
    if config.valid is None and config.samples is None:
        return chosen
    targets, groups = found.train.targets, found.train.groups
    if groups is not None and config.valid is not None:
        aside = selection.choose_groups(groups, config.valid)
        rest = torch.nonzero(~torch.isin(groups, aside))[:, 0]
        lost = {*targets.tolist()} - {*targets[rest].tolist()}
        if lost:
            names = ", ".join(found.labels[k] for k in sorted(lost))
            raise ValueError(
                f"valid sets whole groups aside (volunteers, speakers, machines), and with them "
                f"all sequences of {names}: set task.valid to another share or to null"
            )
        chosen["valid"] = found.train.select(torch.nonzero(torch.isin(groups, aside))[:, 0])
        chosen["train"] = found.train.select(rest)
        if config.samples is not None:
            places, _ = selection.stratify(targets[rest], found.labels, None, config.samples)
            chosen["train"] = chosen["train"].select(places)
        return chosen
    count = None if config.valid is None else max(1, round(config.valid * len(targets)))
    learned, apart = selection.stratify(targets, found.labels, count, config.samples)
    chosen["train"] = found.train.select(learned)
    if apart is not None:
        chosen["valid"] = found.train.select(apart)
    return chosen
