"""A study's page: its tables and its picture in Markdown, with the origin of the figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equilibria import files
from equilibria.run.report import svg
from equilibria.run.report.panel import Panel
from equilibria.run.report.surfaces import SurfacePlot
from equilibria.run.studies import catalog
from equilibria.run.studies.identity import GENERATION
from equilibria.run.studies.results import LEGACY, Data, Frame
from equilibria.run.studies.runner import collect
from equilibria.run.studies.study import Scale, Study
from equilibria.run.studies.views import Grid, text
from equilibria.words import list_some, plural

LONG = 60
"""Rows above which a table is folded."""


@dataclass(frozen=True)
class Page:
    """What a study shows of its rows."""

    grids: Sequence[Grid]
    panels: Sequence[Panel | SurfacePlot]


def render(study: Study, data: Data) -> Page:
    """Render all views of a study."""
    shown = [view.render(data) for view in study.views]
    return Page(
        [each for each in shown if isinstance(each, Grid)],
        [each for each in shown if not isinstance(each, Grid)],
    )


def count_earlier(data: Data) -> str:
    """Say how many points an earlier generation of the core has measured; "" if none."""
    done = data.points[data.points["done"]]
    count = int((done["_generation"] < GENERATION).sum())
    words = f"{count} of {plural(len(done), 'point')} measured by an earlier generation of the core"
    return words if count else ""


def picture(page: Page, path: Path) -> None:
    """Write the charts of a page, if it has any, as one SVG."""
    if page.panels:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, svg.picture(page.panels))


def markdown(
    name: str, folder: Path, *, level: int = 2, link: str = "", scale: Scale = "cpu"
) -> str:
    """Return the page of a study with its tables.

    Args:
        name: of the study.
        folder: of the results.
        level: of its heading.
        link: folder of the pictures, seen from the page; empty for no picture.
        scale: size of the recipes.
    """
    study, file = catalog.find(name), catalog.file_of(name)
    data = collect(study, folder / f"{catalog.rows_of(name)}.csv", scale)
    head = f"{'#' * level} {study.title}\n\n"
    done = data.points[data.points["done"]]
    if done.empty:
        return f"{head}`equilibria reproduce {name}`: not run.\n"
    what = f"{study.paper}, {study.item}. " if study.paper else ""
    origins = _origins(name, done, count_earlier(data))
    parts = [head + origins, f"{what}{study.description} {study.note}".strip()]
    page = render(study, data)
    if link and (folder / f"{file}.svg").exists():
        parts.append(f"![{study.title}]({link}/{file}.svg)")
    for table in page.grids:
        parts += [f"{'#' * (level + 1)} {table.title}", fold(table), table.note]
    return "\n\n".join(part for part in parts if part) + "\n"


def tables_only(name: str, folder: Path, titles: Sequence[str]) -> str:
    """Return some tables of a study under bold headings, as other pages show them.

    Args:
        name: of the study.
        folder: of the results.
        titles: of the tables.
    """
    study = catalog.find(name)
    data = collect(study, folder / f"{catalog.rows_of(name)}.csv")
    if not data.points["done"].any():
        return f"`equilibria reproduce {name}`: not run.\n"
    grids = {each.title: each for each in render(study, data).grids}
    parts = [
        part for title in titles for part in (f"**{title}**", fold(grids[title]), grids[title].note)
    ]
    return "\n\n".join(part for part in (*parts, count_earlier(data)) if part) + "\n"


def list_studies() -> str:
    """Return a table of all studies in Markdown."""
    studies = [(name, catalog.find(name)) for name in catalog.names()]
    rows = [[f"`{name}`", each.paper, each.item, each.description] for name, each in studies]
    return fold(Grid(title="", columns=["study", "paper", "item", "what it shows"], rows=rows))


def fold(table: Grid) -> str:
    """Return a table in Markdown; a long one is folded."""
    cells = [[str(each).replace("|", "\\|") for each in row] for row in _rows(table)]
    whole = "\n".join("| " + " | ".join(row) + " |" for row in cells)
    if len(table.rows) <= LONG:
        return whole
    return f"<details><summary>{len(table.rows)} rows</summary>\n\n{whole}\n\n</details>"


def _rows(table: Grid) -> list[list[str]]:
    rule = ["---"] * len(table.columns)
    return [list(table.columns), rule, *([text(each) for each in row] for row in table.rows)]


def _origins(name: str, done: Frame, older: str) -> str:
    """Command, data, hardware, versions, commits and dates, and how many points are older."""

    def all_of(column: str) -> list[str]:
        return [str(each) for each in done[column].dropna().unique()] if column in done else []

    commits = [re.sub(r"^([0-9a-f]{10})[0-9a-f]*", r"\1", each) for each in all_of("_commit")]
    dates = sorted(all_of("_date"))
    span = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else ""
    words = [
        f"`equilibria reproduce {name}`",
        *all_of("source"),
        *all_of("_hardware"),
        "; ".join(all_of("_versions")),
        f"commit{'s' if len(commits) > 1 else ''} {list_some(commits, 3)}",
        span,
    ]
    legacy = int((done["_identity"] == LEGACY).sum())
    if legacy:
        words.append(f"{legacy} of {len(done)} points from before identities were recorded")
    return " · ".join(word for word in (*words, older) if word)
