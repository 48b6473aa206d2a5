"""Print a script for the tab completion of a shell: commands, options, recipes, studies and
folders. Put it where the shell looks for it: for bash,
~/.local/share/bash-completion/completions/equilibria; for zsh, a file _equilibria in a folder of
$fpath; for fish, ~/.config/fish/completions/equilibria.fish. The script lists the options and
recipes of this version: print it again after an update.
"""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from typing import Any, Literal

import shtab

from equilibria.run import recipe as recipes
from equilibria.run.cli import main as entry
from equilibria.run.cli.keys import names_of
from equilibria.run.cli.parser import Parser
from equilibria.run.studies import catalog

OF_RECIPES = ("train", "initialize", "recipes")
"""Commands that take a recipe; of the others, those without a list of names take files."""

OPTION = re.compile(r"^  (?:-\w(?: [A-Z]+)?, )?(--[\w.-]+)(?: (\S.*?))?(?:  |$)", re.MULTILINE)
"""An option in the text of --help, and what it takes."""


def main(argv: Sequence[str]) -> None:
    """Run `equilibria completion` with the words `argv`."""
    parser = Parser("completion", __doc__, quiet="changes nothing here")
    parser.add_argument("shell", type=Literal["bash", "zsh", "fish"], help="bash, zsh or fish")
    arguments = parser.parse_args(list(argv))
    print(shtab.complete(every_command(), arguments.shell))


def every_command() -> argparse.ArgumentParser:
    """Return a parser with all commands, for what shtab reads of it."""
    parser = argparse.ArgumentParser("equilibria")
    commands = parser.add_subparsers()
    studies = list(catalog.names())
    names = {
        "completion": ["bash", "zsh", "fish"],
        "reproduce": studies,
        "bench": [name.removeprefix("bench/") for name in studies if name.startswith("bench/")],
        **dict.fromkeys(OF_RECIPES, recipes.available()),
    }
    for command, (text, _) in entry.commands().items():
        found = commands.add_parser(command, help=text, add_help=False)
        for option, takes in options(command):
            added: Any = found.add_argument(option, action="store" if takes else "store_true")
            if takes:
                added.complete = shtab.FILE
        added = found.add_argument("name", nargs="*", choices=names.get(command))
        if command not in names:
            added.complete = shtab.FILE
    return parser


def options(command: str) -> list[tuple[str, bool]]:
    """Return the options of a command, as its --help has them, and whether each takes a value."""
    with suppress(SystemExit), redirect_stdout(io.StringIO()) as shown:
        entry.main([command, "--help"])
    found = {option: bool(takes) for option, takes in OPTION.findall(shown.getvalue())}
    if command in ("train", "initialize"):
        choices = recipes.choices()
        for name in recipes.available():
            with suppress(ValueError):  # it names what an absent application has
                keys = names_of(recipes.load(name), choices)
                found |= {f"--{key}": True for key in keys}
    return sorted((found | {"--debug": False}).items())
