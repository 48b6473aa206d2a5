"""Which rows are older than the last change of the code that produced them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from pathlib import Path

from equilibria.run.studies import catalog
from equilibria.run.studies.identity import GENERATION
from equilibria.run.studies.results import CHANGED, LEGACY, SOURCE, Frame, git

PROSE = ("run/report", "run/cli", "run/studies/views", "run/studies/pages.py")
"""Parts of the package that affect no figure."""


def below(source: Path) -> list[Path]:
    """Return the files that a study's module imports, directly or not, and itself.

    They are those of the package and of the papers.

    Args:
        source: file of the module.
    """
    found: dict[Path, None] = {}
    waiting = [source.resolve()]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else ""
        if path in found or name.startswith(PROSE):
            continue
        found[path] = None
        waiting += _list_imports(path)
    return sorted(found)


def _roots() -> dict[str, Path]:
    """Folders of the package and of the papers, by the names that imports have for them."""
    papers = catalog.papers()
    return {SOURCE.name: SOURCE, **({} if papers is None else {papers.name: papers})}


@functools.cache
def _list_imports(path: Path) -> list[Path]:
    """Files of the package, and of the papers, that a file imports."""
    found: list[Path] = []
    roots = _roots()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        for module in modules:
            top, _, rest = module.partition(".")
            if top in roots:
                place = roots[top] / rest.replace(".", "/")
                candidates = (place.with_suffix(".py"), place / "__init__.py")
                found += [each for each in candidates if each.is_file()]
    return found


def last_change(source: Path) -> str | None:
    """Return the last commit that changed a file below a study, or in `zoo`; None without Git.

    A recipe names what applications have, which no import shows: a change of any of them counts.
    """
    paths = [path for path in below(source) if any(map(path.is_relative_to, _roots().values()))]
    return git("log", "-1", "--format=%H", "--", *map(str, (*paths, SOURCE / "zoo"))) or None


def verdicts(rows: Frame, source: Path, identities: Sequence[str | None]) -> list[str]:
    """Return "stale", "current" or "unknown" for each row of a study's points.

    A row is stale if the commit at which it started, or that of a training it was measured on,
    lacks the last change below the study, if its identity was not recorded or is no longer the
    point's, or if an earlier generation of the core measured it. It is unknown if it was measured
    outside a checkout, with files changed, or at a commit that is not in this clone.

    Args:
        rows: with the columns of `results.ORIGIN`.
        source: file of the study.
        identities: of the points now; None where the data that it depends on are missing.
    """
    latest = last_change(source)
    found: list[str] = []
    for row, identity in zip(rows.to_dict("records"), identities, strict=True):
        other = identity is not None and row["_identity"] != identity
        if other or row["_generation"] < GENERATION:
            found.append("stale")
            continue
        trained = row["_trained"] if isinstance(row["_trained"], str) else ""
        commits = [str(row["_commit"]), *trained.split("; ")] if trained else [str(row["_commit"])]
        each = {_verdict(str(row["_identity"]), commit, latest) for commit in commits}
        found.append("stale" if "stale" in each else "unknown" if "unknown" in each else "current")
    return found


@functools.cache
def _verdict(identity: str, commit: str, latest: str | None) -> str:
    if identity == LEGACY:
        return "stale"
    if latest is None or commit.endswith(CHANGED) or git("cat-file", "-t", commit) != "commit":
        return "unknown"
    return "stale" if git("merge-base", "--is-ancestor", latest, commit) is None else "current"
