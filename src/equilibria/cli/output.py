"""Where commands print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.segment import Segment
from rich.table import Table

from equilibria.words import printable

ROOM = 60
"""Columns of a terminal that has room for names in one line."""


class Output(Console):
    """Standard output; under --quiet only where the result is.

    Brackets are no markup, and control characters are escaped: names come from files.

    Args:
        quiet: as the option --quiet says.
        width: columns where the output is no terminal, as wide as its tables; None for 80, or
            $COLUMNS.
        stderr: standard error instead.
    """

    def __init__(
        self, *, quiet: bool = False, width: int | None = None, stderr: bool = False
    ) -> None:
        super().__init__(quiet=quiet, stderr=stderr, markup=False)
        if width is not None and not self.is_terminal:
            self.width = width

    def render(self, *given: Any, **options: Any) -> Iterator[Segment]:
        """Render, with control characters of texts escaped."""
        for each in super().render(*given, **options):
            shown = each.text if each.control else printable(each.text, lines=True)
            yield Segment(shown, each.style, each.control)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; where nobody reads any longer, go on in silence: the work matters more."""
        try:
            super().print(*objects, **options)
        except OSError:
            self.quiet = True

    def on_broken_pipe(self) -> None:
        """Go on in silence, where rich would exit."""
        self.quiet = True

    def done(self, said: str, result: str | Path) -> None:
        """Print the last line of a command.

        Args:
            said: where the result is and what to do next, in a sentence.
            result: the path of it alone, which is what --quiet prints.
        """
        if self.quiet:
            with suppress(OSError):
                print(result)
        else:
            self.print(printable(said), soft_wrap=True, markup=False, highlight=False)


def listing(console: Console, *heads: str, right: Sequence[str] = ()) -> Table:
    """Return a table whose first column is names that a user types.

    They are in one line where there is room for them, and else folded, but never cut.

    Args:
        console: where it is to be printed.
        heads: of the columns.
        right: which of them are aligned to the right.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(
            head,
            justify="right" if head in right else "left",
            overflow="fold",
            no_wrap=head == heads[0] and console.width >= ROOM,
        )
    return table
