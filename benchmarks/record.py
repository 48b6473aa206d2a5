"""A measurement as a file in this repository's results/; see `equilibria.bench.record`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equilibria.bench import record
from equilibria.bench.record import Cell

RESULTS = Path(__file__).parents[1] / "results"


def write(
    name: str,
    *,
    command: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    note: str,
    code: str | None = None,
    recipe: dict[str, Any] | None = None,
) -> Path:
    """Write ``results/<name>.json`` whole or not at all.

    Args:
        name: Name of the table in `tables.TABLES`.
        command: What was typed.
        columns: A heading a column, with its unit.
        rows: A list a row.
        note: What a reader must know to judge the figures.
        code: The commit that was measured; None for the one that is checked out.
        recipe: The resolved recipe, where one was trained.
    """
    return record.write(
        RESULTS,
        name,
        command=command,
        columns=list(columns),
        rows=[list(row) for row in rows],
        note=note,
        code=code,
        recipe=recipe,
    )


def commit() -> str:
    """The commit that is checked out, with a word where files have changed since."""
    found = record.commit()
    if found is None:
        raise RuntimeError(
            "the figures of this repository are recorded with the commit that was measured: run "
            "them from a checkout of it, with the package installed from there (pip install -e .)"
        )
    return found
