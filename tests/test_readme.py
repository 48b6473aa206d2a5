"""What the pages show a reader is run: every Python block, in order, page by page."""

import re
import runpy
from pathlib import Path

import pytest
import torch

import equilibria
import equilibria.experiments.readme as tables

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]


def test_the_pages_with_code_are_found() -> None:
    assert {"README.md", "quickstart.md", "adjoint.md", "layers.md"} <= {p.name for p in WITH_CODE}


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_python_on_the_pages(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    # Each block stands in its own lines, so that a traceback names the line of the page.
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for offset, line in enumerate(block[1].splitlines()):
            lines[first + offset] = line
    script = tmp_path / f"{page.stem}.py"
    script.write_text("\n".join(lines))
    torch.manual_seed(0)
    runpy.run_path(str(script))


def test_the_tables_of_the_readme_are_those_of_the_results() -> None:
    readme = (ROOT / "README.md").read_text()
    fresh = tables.fresh(readme, ROOT / "results")
    assert readme == fresh, "run: python -m equilibria.experiments.readme"


def test_the_readme_opens_with_two_commands_and_a_page_of_python() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^\$ (make \w+)", readme, re.MULTILINE)
    assert commands[:2] == ["make run", "make test"]
    block = BLOCK.search(readme)
    assert block and len(block[1].splitlines()) <= 25


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    named = set(re.findall(r"^\.\. auto\w+:: (?:equilibria\.)?([\w.]+)$", pages, re.MULTILINE))
    assert set(equilibria.__all__) <= named
