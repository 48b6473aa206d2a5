"""Regenerates the tables of README.md: `python -m equilibria.experiments.readme` in a checkout."""

from __future__ import annotations

from pathlib import Path

from equilibria.experiments import pages

__all__ = ["fresh"]

BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
STUDIES = ("digits/training",)


def fresh(text: str, results: Path) -> str:
    """Return a page with the tables between its marks regenerated from the results.

    Args:
        text: of the page.
        results: folder of the results.
    """
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = "\n".join(pages.markdown(name, results, level=3) for name in STUDIES)
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


if __name__ == "__main__":
    page = Path("README.md")
    page.write_text(fresh(page.read_text("utf-8"), Path("results")), "utf-8")
