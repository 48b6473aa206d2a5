"""The page about how to start a network: a recommendation, a figure and a table."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from equilibria.report.rendering import render
from equilibria.report.words import Table

__all__ = ["start_page"]


def start_page(
    *,
    name: str,
    description: str,
    about: str,
    reasons: Sequence[str],
    remarks: Sequence[str],
    command: str | None,
    figure: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> str:
    """One HTML page about ensembles and scales, without any external resource.

    Args:
        name: what was examined.
        description: of it, in a sentence; may be empty.
        about: on what it was measured.
        reasons: sentences, the recommendation first.
        remarks: sentences on what else to know.
        command: that trains as recommended; None for none.
        figure: an SVG document.
        head: heads of the table's columns.
        rows: its cells as text.
    """
    return render(
        "start.html",
        name=name,
        description=description,
        about=about,
        reasons=reasons,
        remarks=remarks,
        command=command,
        figure=Markup(figure[figure.index("<svg") :]),
        table=Table(head, rows),
    )
