"""Index tar shards of images, for training to stream them.

A shard is a tar archive in WebDataset layout: the files of a sample follow each other and share
their name up to the first dot, as in 000017.jpg and 000017.cls. One is an image (jpg, png, webp);
cls or txt has its class, a number from 0 or a name, or json has it as {"label": ...}.

All shards are read once, and train.json, test.json and valid.json are written to FOLDER: where the
shards are, how many samples and which classes they have, and the mean and deviation of 2,000
images. Without options, the shards are the archives below FOLDER with train, test or val in their
names. Without test shards, those to validate on are the test part. Shuffle samples before you put
them into shards: an epoch mixes whole shards, and samples within them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from equilibria.run.cli.output import Output, names_table
from equilibria.run.cli.parser import Parser, UserError
from equilibria.run.data.storage import DataError, read_errors
from equilibria.zoo.vision.data.shards.dataset import SPLITS, Surveyed, is_index, survey
from equilibria.zoo.vision.data.shards.index import is_path

WORDS = {"train": ("train", "training"), "test": ("test",), "valid": ("val", "valid", "validation")}
"""What stands in the names of the shards of a split."""

EXAMPLE = "--train 'shards/train-*.tar' --test 'shards/val-*.tar'"


def main(argv: Sequence[str]) -> None:
    """Run `equilibria shards` with the words `argv`."""
    parser = Parser("shards", __doc__)
    parser.add_argument("folder", type=Path, help="where the indexes are written")
    for split, purpose in zip(SPLITS, ("learn from", "validate on", "test on"), strict=True):
        parser.add_argument(
            f"--{split}",
            type=str,
            nargs="+",
            metavar="SHARD",
            help=f"shards to {purpose}: paths, patterns such as 'data/{split}-*.tar', or addresses "
            f"such as 'https://example.org/{split}-{{000..127}}.tar'",
        )
    parser.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="names of the classes, one a line in the order of their numbers (default: the names "
        "that samples give, sorted, or the numbers themselves)",
    )
    arguments = parser.parse_args(list(argv))
    folder: Path = arguments.folder
    given = {split: getattr(arguments, split) for split in SPLITS}
    if any(given.values()):
        splits = {split: _addresses(words) for split, words in given.items() if words}
    else:
        splits = _find_archives(folder)
    labels = None if arguments.classes is None else _labels(arguments.classes)
    for split in splits:
        if (path := folder / f"{split}.json").exists() and not is_index(path):
            raise UserError(f"{path} is another file than an index of shards: name another FOLDER")
    if not folder.is_dir():
        folder.mkdir(parents=True)
    surveyed = survey(folder, splits, labels)
    console = Output(quiet=arguments.quiet)
    _show(console, surveyed)
    console.finish(
        f"The indexes are in {folder}. Next: equilibria train mdeq-images --data {folder}", folder
    )


def _find_archives(folder: Path) -> dict[str, list[str]]:
    """The archives below a folder, by the split that their names tell.

    Raises:
        UserError: there are none, or the names of some tell no split, or two.
    """
    paths = sorted(folder.rglob("*.tar"), key=lambda path: path.as_posix())
    if not paths:
        raise UserError(f"there are no archives (*.tar) in {folder}: name them, {EXAMPLE}")
    splits: dict[str, list[str]] = {}
    for path in paths:
        words = set(re.split(r"[^a-z]+", path.relative_to(folder).as_posix().lower()))
        told = [split for split, names in WORDS.items() if words & set(names)]
        if len(told) != 1:
            raise UserError(
                f"the name of {path} does not tell whether it is to train, test or validate on: "
                f"say so, {EXAMPLE}"
            )
        splits.setdefault(told[0], []).append(str(path))
    return splits


def _addresses(words: Sequence[str]) -> list[str]:
    """The shards that words name.

    Raises:
        UserError: one names none, or a shard is named twice.
    """
    found = [url for word in words for each in _unfold(word) for url in _matches(each)]
    if twice := [url for url in found if found.count(url) > 1]:
        raise UserError(f"{twice[0]} is named twice")
    return found


def _unfold(word: str) -> list[str]:
    """What a range in braces stands for: ``a-{08..10}.tar`` is a-08.tar, a-09.tar, a-10.tar."""
    braces = re.search(r"\{(\d+)\.\.(\d+)\}", word)
    if braces is None:
        return [word]
    first, last = braces[1], braces[2]
    if int(first) > int(last):
        raise UserError(f"{word}: the range {braces[0]} is empty")
    numbers = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    heads = (f"{word[: braces.start()]}{number}" for number in numbers)
    return [f"{head}{tail}" for head in heads for tail in _unfold(word[braces.end() :])]


def _matches(word: str) -> list[str]:
    if not is_path(word) or not re.search(r"[*?[]", word):
        return [word]
    path = Path(word)
    base = Path(path.anchor) if path.anchor else Path()
    found = sorted(str(each) for each in base.glob(str(path.relative_to(path.anchor or "."))))
    if not found:
        raise UserError(f"no file matches {word}")
    return found


def _labels(path: Path) -> list[str]:
    """Names of classes, from a file with one a line.

    Raises:
        DataError: it cannot be read, or has none, or one twice.
    """
    try:
        with read_errors(path):
            labels = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except ValueError as error:
        raise DataError(f"{path} is not a text in UTF-8: {error}") from error
    while labels and not labels[-1]:
        labels.pop()
    if not labels or "" in labels:
        raise DataError(f"{path}: expected a name of a class in each line")
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise DataError(f"{path} names the class {twice} twice")
    return labels


def _show(console: Output, surveyed: dict[str, Surveyed]) -> None:
    """Print how much there is of each split."""
    table = names_table(
        console, "split", "shards", "samples", "classes", "fewest in a class", "most", "pixels"
    )
    for split, (shards, about, counts) in surveyed.items():
        there = [count for count in counts.values() if count]
        size = "several" if about.size is None else "{} x {}".format(*about.size)
        table.add_row(
            split,
            f"{len(shards):,}",
            f"{sum(shard.samples for shard in shards):,}",
            f"{len(there):,}",
            f"{min(there):,}",
            f"{max(there):,}",
            size,
        )
    console.print(table)
