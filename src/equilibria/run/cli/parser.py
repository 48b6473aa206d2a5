"""What all commands share: a parser that names the nearest option, and errors for the user."""

from __future__ import annotations

import itertools
import re
from argparse import Action
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from equilibria.run.cli.status import SAVED
from equilibria.run.config import ConfigError
from equilibria.words import nearest

if TYPE_CHECKING:
    from equilibria.run.tasks import TaskConfig


SEEDS = 2**32
"""Seeds are below it: torch's generators, on a CPU, tell no others apart."""

EMPTY = ("--prompt",)
"""Options whose value may be empty."""

EXPECTED = {"float": "a number", "int": "a whole number"}
"""What an option of a type takes, in words."""


class UserError(Exception):
    """A user's mistake; the message states what was given, what was expected and what to do."""


class ResumableStop(Exception):
    """Interrupted with its results saved; the message says how to continue."""

    exit_status = SAVED


class Help(DefaultHelpFormatter):
    """Help that shows each option as it was written, without Python's names of types."""

    def _expand_help(self, action: Action) -> str:
        return action.help or ""


class Parser(ArgumentParser):
    """The parser of one command. In its options, hyphens and underscores are alike.

    Args:
        command: its name.
        description: the paragraph that opens its --help.
        quiet: what the option --quiet leaves of the output.

    Attributes:
        more: what ends its --help, in lines of its own.
    """

    more = ""

    def __init__(
        self,
        command: str,
        description: str | None,
        *,
        quiet: str = "print only errors, and where the result is",
        **options: Any,
    ) -> None:
        super().__init__(
            prog=f"equilibria {command}",
            description=description,
            exit_on_error=True,
            formatter_class=Help,
            **options,
        )
        self.add_argument("--quiet", action="store_true", help=quiet)

    def parse_args(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Return the values of the words `args`, with options in their own spelling."""
        words = None if args is None else [self._respell(word) for word in args]
        self._check_words(words or ())
        parsed = super().parse_args(words, *more, **options)
        folder = getattr(parsed, "data_dir", None)
        if folder is not None and not folder.is_dir():
            raise UserError(f"--data-dir: there is no folder {folder}")
        return parsed

    def _check_words(self, words: Sequence[str]) -> None:
        """Raise UserError if an option is given twice, or a word is empty or not UTF-8."""
        known = self._option_string_actions
        check_once(word for word in words if word.partition("=")[0] in known)
        for before, word in itertools.pairwise(("", *words)):
            option, equals, value = word.partition("=")
            empty = (option in known and equals and not value) or not word
            named = option if equals else before
            if empty and named not in EMPTY:
                what = named if named.startswith("--") else "an argument"
                raise UserError(f"{what} is empty: give it a value, or leave it out")
            try:
                word.encode()
            except UnicodeEncodeError:
                raise UserError(f"{word} is not UTF-8: rename it") from None

    def format_help(self, *args: Any, **options: Any) -> str:
        """Return the text of --help."""
        text = super().format_help(*args, **options)
        return f"{text}\n{self.more}\n" if self.more else text

    def add_number(self, option: str, usual: float, text: str) -> None:
        """Add an option for a number, whole if its default is: `usual`, which its help names."""
        help = f"{text} (default: {usual:g})"
        self.add_argument(option, type=type(usual), default=usual, help=help)

    def add_device(self, usual: str | None = None) -> None:
        """Add the option that names the device to work on; `usual` is its default."""
        default = usual or "a GPU where there is one, else the CPU"
        self.add_argument(
            "--device",
            type=str,
            default=usual,
            help=f"cpu, cuda or cuda:N (default: {default})",
        )

    def add_data_dir(self) -> None:
        """Add the option that names a folder of data sets; after `--data`, where there is one."""
        own = "--data" in self._option_string_actions
        self.add_argument(
            "--data-dir",
            type=Path,
            help="folder that holds named data sets, searched before $EQUILIBRIA_DATA and "
            "downloading, or data of a run that have moved"
            + ("; data of your own: --data" if own else ""),
        )

    def error(self, message: str, ex: Exception | None = None) -> Never:
        """Raise UserError with `message` in one line, and the nearest option to an unknown one."""
        text = " ".join(message.split()).replace("a typing.Literal", "one of ")
        key = r"key \"([\w-]+)\"(?: element \d+)?: "
        wrong = re.search(rf"{key}Expected a <class '(\w+)'>. Got value: (.*)", text)
        if wrong and wrong[2] in EXPECTED:
            option = wrong[1].replace("_", "-")
            text = f"--{option} expects {EXPECTED[wrong[2]]}, got '{wrong[3]}'"
        choice = re.search(rf"{key}Expected one of \[(.*)\]. Got value: (.*)", text)
        if choice:
            allowed = choice[2].replace("'", "")
            name = f"--{choice[1].replace('_', '-')}"
            name = name if name in self._option_string_actions else choice[1]
            text = f"{name} must be one of {allowed}; got '{choice[3]}'"
        unknown = re.search(r"unrecognized arguments: (--[\w.-]+)", text, re.IGNORECASE)
        if unknown:
            options = (o for a in self._actions for o in a.option_strings)
            hidden = ("--help", "--print_shtab")
            known = [each for each in options if each.startswith("--") and each not in hidden]
            text = f"unknown option '{unknown[1]}'" + nearest(unknown[1], known)
        raise UserError(f"{text} (see `{self.prog} --help`)")

    def separate(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the words for the command itself and those that override keys of its recipe.

        An option that the command does not have is a key of the recipe, with one value.
        """
        mine: list[str] = []
        overrides: list[str] = []
        target = mine
        for word in map(self._respell, argv):
            option, equals, _ = word.partition("=")
            if is_option := word.startswith("--"):
                target = mine if option in self._option_string_actions else overrides
            target.append(word)
            if target is overrides and (equals or not is_option):
                target = mine
        check_once(overrides)
        keys = {word.partition("=")[0] for word in overrides} & {"--task.data", "--task.file"}
        if keys and any(word.partition("=")[0] == "--data" for word in mine):
            raise UserError(f"--data and {min(keys)} were both given: leave one out")
        return mine, overrides

    def _respell(self, word: str) -> str:
        """Return an option with the hyphens or underscores that it has here; else the word."""
        option, equals, value = word.partition("=")
        if not option.startswith("--") or option in self._option_string_actions:
            return word
        for known in self._option_string_actions:
            if known.replace("_", "-") == option.replace("_", "-"):
                return f"{known}{equals}{value}"
        return word


def check_once(words: Iterable[str]) -> None:
    """Raise UserError if an option is given twice."""
    options = [w.partition("=")[0].replace("_", "-") for w in words if w.startswith("--")]
    for option in options:
        if options.count(option) > 1:
            raise UserError(f"{option} is given {options.count(option)} times: give it once")


def check_least(arguments: Any, **least: int) -> None:
    """Raise UserError for an option whose number is smaller than the `least` of its name."""
    for name, minimum in least.items():
        value = getattr(arguments, name)
        if value is not None and not value >= minimum:
            option = name.replace("_", "-")
            raise UserError(f"--{option} must be {minimum} or more; got {value:g}")


def check_seed(seed: int, option: str = "--seed") -> None:
    """Raise UserError for a number that is no seed."""
    if not 0 <= seed < SEEDS:
        raise UserError(f"{option} must be between 0 and {SEEDS - 1:,}; got {seed}")


def name_data(value: str, task: TaskConfig) -> list[str]:
    """Return the options of the recipe that name the user's data.

    The path of a file or a folder becomes absolute: the run folder holds it, and the run may be
    evaluated from another working directory.

    Args:
        value: of the option --data.
        task: the recipe's.

    Raises:
        ConfigError: the task generates its own data, or `value` names none of it.
    """
    try:
        other = task.at(value)
    except ValueError:
        raise ConfigError(
            f"--data names data of your own, and {type(task).__name__} generates its own data: "
            "leave it out"
        ) from None
    try:
        task.check_named(value)
    except ValueError as error:
        raise ConfigError(f"--data {value}: {error}") from None
    changed = {f.name: getattr(other, f.name) for f in fields(other)}
    return [
        f"--task.{name}={'null' if new is None else new}"
        for name, new in changed.items()
        if new != getattr(task, name)
    ]
