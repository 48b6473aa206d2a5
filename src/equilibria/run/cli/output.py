"""Where commands print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from equilibria.words import printable

GAP = 2
"""Columns between one column of a table and the next."""

WHOLE = 18
"""Columns from which on a cell may be broken: a figure with its deviation is shorter."""

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

    def finish(self, said: str, result: str | Path) -> None:
        """Print the last line of a command.

        Args:
            said: where the result is and what to do next, in a sentence.
            result: the path of it alone, which is what --quiet prints.
        """
        if self.quiet:
            with suppress(OSError):
                print(result)
        else:
            say(self, printable(said))


def say(console: Console, words: str, style: str | None = None) -> None:
    """Print sentences as they are: in lines of any length, without markup or highlighting."""
    console.print(words, style=style, soft_wrap=True, markup=False, highlight=False)


def progress_bar(console: Console, **options: Any) -> Progress:
    """Return a bar with how much is done and how long the rest takes, on a terminal alone."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=console.quiet or not console.is_terminal,
        **options,
    )


def figures_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values in two columns, of which none is ever cut."""
    table = Table(title=title)
    for head in ("figure", "value"):
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def titled_table(title: str) -> Table:
    """Return an empty table with its title at the left and little space between columns."""
    options: Any = {"title_justify": "left", "box": box.SIMPLE_HEAD, "pad_edge": False}
    return Table(title=title, padding=(0, 1, 0, 0), **options)


def fit_table(
    console: Console, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], lead: int = 1
) -> list[Table]:
    """Return a table that is no wider than the console, in parts where it takes more columns.

    Headings and long cells are broken between words alone. Each part begins with the leading
    columns.

    Args:
        console: where it is to be printed.
        title: what it shows.
        heads: of the columns.
        rows: of as many cells.
        lead: columns at the left that say what a row is.
    """
    cells = [[head, *(row[k] for row in rows)] for k, head in enumerate(heads)]
    least = [
        max(_longest(head.split()), *(_longest([c] if len(c) < WHOLE else c.split()) for c in rest))
        for head, *rest in ([*column, ""] for column in cells)
    ]
    room = console.width - GAP - max(least[lead:], default=0)  # of what says what a row is
    while lead and sum(least[:lead]) + GAP * lead > room and max(least[:lead]) > 1:
        least[least.index(max(least[:lead]))] -= 1
    natural = [_longest(column) for column in cells]
    parts, left = list[list[int]](), list(range(lead, len(heads)))
    while left or not parts:
        part = [*range(lead), *left[:1]]
        for place in left[1:]:
            if sum(least[k] + GAP for k in (*part, place)) > console.width:
                break
            part.append(place)
        parts.append(part)
        left = [place for place in left if place > part[-1]]
    return [
        _part(console, "(continued)" if n else title, part, cells, least, natural)
        for n, part in enumerate(parts)
    ]


def _part(
    console: Console,
    title: str,
    places: Sequence[int],
    cells: Sequence[Sequence[str]],
    least: Sequence[int],
    natural: Sequence[int],
) -> Table:
    """Some columns of a table: none is broken that is narrower than the widest ones are made."""
    widths = {k: least[k] for k in places}
    for level in range(console.width):
        wider = {k: min(natural[k], max(least[k], level)) for k in places}
        if sum(wider.values()) + GAP * len(places) > console.width:
            break
        widths = wider
    table = titled_table(title)
    for k in places:
        justify = "right" if k and cells[k][0] else "left"
        table.add_column(cells[k][0], justify=justify, overflow="fold", width=widths[k])
    for row in zip(*(cells[k][1:] for k in places), strict=True):
        table.add_row(*map(Text, row))
    return table


def _longest(words: Sequence[str]) -> int:
    return max(map(cell_len, words), default=0)


def names_table(console: Console, *heads: str, right: Sequence[str] = ()) -> Table:
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
