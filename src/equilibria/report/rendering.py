"""Pages from the templates of this room: escaped, and strict about what a template asks for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from equilibria.report.words import Table

__all__ = ["render", "start_page"]


def render(template: str, **values: Any) -> str:
    """Return the page that a template makes of `values`, with the style that all pages share.

    Args:
        template: its file, such as `page.html`.
        **values: what it asks for, beside `style`.
    """
    environment = _environment()
    assert environment.loader is not None
    style, _, _ = environment.loader.get_source(environment, "page.css")
    return environment.get_template(template).render(style=Markup(style), **values)


@functools.cache
def _environment() -> Environment:
    """With the templates, each compiled once."""
    environment = Environment(
        loader=PackageLoader("equilibria.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = lambda drawing: Markup(drawing.svg)
    return environment


def start_page(
    *, figure: str, head: Sequence[str], rows: Sequence[Sequence[str]], **words: Any
) -> str:
    """One HTML page about how to start a network, without any external resource.

    Args:
        figure: an SVG document.
        head, rows: of the table, as text.
        **words: `name` and `description` of the network; `about`, on what it was measured;
            `reasons`, the recommendation first, and `remarks`, each sentences; `command`, which
            trains as recommended, or None.
    """
    drawing = Markup(figure[figure.index("<svg") :])
    return render("start.html", figure=drawing, table=Table(head, rows), **words)
