"""Pages from the templates of this room: escaped, and strict about what a template asks for."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["render"]


def render(template: str, **values: Any) -> str:
    """Return the page that a template makes of `values`, with the style that all pages share.

    Args:
        template: its file, such as `page.html`.
        **values: what it asks for, beside `style`.
    """
    loader = PackageLoader("equilibria.report", "template")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = lambda drawing: Markup(drawing.svg)
    style, _, _ = loader.get_source(environment, "page.css")
    return environment.get_template(template).render(style=Markup(style), **values)
