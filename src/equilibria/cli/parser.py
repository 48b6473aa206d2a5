"""What all commands share: a parser that names the nearest option, and errors for the user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from jsonargparse import ArgumentParser

from equilibria.train.config import ConfigError, nearest

if TYPE_CHECKING:
    from equilibria.tasks import TaskConfig


EXPECTED = {"float": "a number", "int": "a whole number"}
"""What an option of a type takes, in words."""


class UserError(Exception):
    """A user's mistake; the message states what was given, what was expected and what to do."""


class Parser(ArgumentParser):
    """The parser of one command.

    Args:
        command: its name.
        description: the paragraph that opens its --help.
    """

    def __init__(self, command: str, description: str | None, **options: Any) -> None:
        super().__init__(
            prog=f"equilibria {command}",
            description=description,
            exit_on_error=True,
            **options,
        )

    def add_data_dir(self) -> None:
        """Add the option that names a folder of data sets."""
        self.add_argument(
            "--data-dir",
            type=Path,
            help="folder to search for data sets before $EQUILIBRIA_DATA and downloading",
        )

    def error(self, message: str, ex: Exception | None = None) -> Never:
        """Raise UserError with `message` in one line, and the nearest option to an unknown one."""
        text = " ".join(message.split()).replace("a typing.Literal", "one of ")
        wrong = re.search(r"key \"([\w-]+)\": Expected a <class '(\w+)'>. Got value: (.*)", text)
        if wrong and wrong[2] in EXPECTED:
            option = wrong[1].replace("_", "-")
            text = f"--{option} expects {EXPECTED[wrong[2]]}, got '{wrong[3]}'"
        unknown = re.search(r"unrecognized arguments: --([\w.-]+)", text, re.IGNORECASE)
        if unknown:
            options = (o for a in self._actions for o in a.option_strings)
            known = [option[2:] for option in options if option.startswith("--")]
            text = f"unknown option '--{unknown[1]}'" + nearest(unknown[1], known)
        raise UserError(f"{text} (see `{self.prog} --help`)")

    def split(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the words for the command itself and those that override keys of its recipe.

        An option that the command does not have is a key of the recipe, with one value.
        """
        mine: list[str] = []
        overrides: list[str] = []
        target = mine
        for word in argv:
            option, equals, _ = word.partition("=")
            if is_option := word.startswith("--"):
                target = mine if option in self._option_string_actions else overrides
            target.append(word)
            if target is overrides and (equals or not is_option):
                target = mine
        return mine, overrides


def named_data(value: str, task: TaskConfig) -> str:
    """Return the option of the recipe that names the user's data.

    The path of a file or a folder becomes absolute: the run folder holds it, and the run may be
    evaluated from another working directory.

    Raises:
        ConfigError: the task generates its own data.
    """
    path = Path(value).expanduser().absolute()
    if hasattr(task, "file"):
        return f"--task.file={path}"
    if hasattr(task, "data"):
        return f"--task.data={path if path.is_dir() or Path(value).name != value else value}"
    raise ConfigError(
        f"--data names a text or images, and {type(task).__name__} generates its own data: "
        "leave it out"
    )
