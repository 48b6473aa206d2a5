"""Misprints and errors of Agarwala and Schoenholz 2022 that the formulas here correct.

Each was derived anew, and what can be measured was: `check` names the test that does so. They stand
in errata.toml.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Erratum:
    """One thing that stands wrong in the paper.

    Attributes:
        equation: its number, or the section.
        printed: what stands there.
        right: what should.
        why: the reason, and what tells the two apart.
        check: name of the test that measures it; empty where there is nothing to measure.
    """

    equation: str
    printed: str
    right: str
    why: str
    check: str = ""


_FILE = Path(__file__).with_name("errata.toml")
ERRATA = tuple(Erratum(**row) for row in tomllib.loads(_FILE.read_text("utf-8"))["errata"])
"""In the order of the paper."""


def errata_table() -> str:
    """Return the errata as a table in Markdown."""
    rows = [["Equation", "Printed", "Right", "Why"], ["---"] * 4]
    rows += [[each.equation, each.printed, each.right, each.why] for each in ERRATA]
    cells = ([cell.replace("|", "\\|").replace("*", "\\*") for cell in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)
