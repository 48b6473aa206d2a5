"""What all commands share: a parser that names the nearest option, and errors for the user."""

from __future__ import annotations

import re
from typing import Any, Never

from jsonargparse import ArgumentParser

from equilibria.train.config import nearest


class UserError(Exception):
    """A mistake of the user's; the message says what was given, what was expected, what to do."""


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

    def error(self, message: str, ex: Exception | None = None) -> Never:
        """Raise UserError with `message` in one line, and the nearest option to an unknown one."""
        text = " ".join(message.split())
        unknown = re.search(r"unrecognized arguments: --([\w.-]+)", text, re.IGNORECASE)
        if unknown:
            options = (o for a in self._actions for o in a.option_strings)
            known = [option[2:] for option in options if option.startswith("--")]
            text = f"unknown option '--{unknown[1]}'" + nearest(unknown[1], known)
        raise UserError(f"{text} (see `{self.prog} --help`)")
