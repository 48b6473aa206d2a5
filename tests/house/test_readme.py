"""What the pages show a reader is run: every Python block, in order, page by page."""

import operator
import re
import runpy
from pathlib import Path

import pytest
import torch

import equilibria
from equilibria.run.cli.main import commands

ROOT = Path(__file__).parents[2]
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


def test_the_readme_defines_installs_and_shows() -> None:
    """A definition first, then the two commands, then a network in about twenty lines."""
    readme = (ROOT / "README.md").read_text()
    first = readme.split("\n\n")[1]
    assert "fixed point z\\* = f(z\\*; x)" in first and "PyTorch" in first
    commands = re.findall(r"^\$ (?:git clone|make \w+)", readme, re.MULTILINE)
    assert commands == ["$ git clone", "$ make run", "$ make test"]
    block = BLOCK.search(readme)
    assert block and len(block[1].splitlines()) <= 28
    assert len(readme.splitlines()) <= 120, "more than three screens"


def test_the_commands_and_pages_that_the_readme_names_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`equilibria (\w+)", readme))
    assert named and named <= {*commands()}
    for name in re.findall(r"`eq\.([\w.]+)`", readme):
        assert operator.attrgetter(name)(equilibria), name
    pages = re.findall(r"\]\(([\w/.]+)\)", readme)
    assert pages and all((ROOT / page).is_file() for page in pages)


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    named = set(
        re.findall(r"^\.\. auto\w+:: (?:equilibria\.)?(?:run\.)?([\w.]+)$", pages, re.MULTILINE)
    )
    assert set(equilibria.__all__) <= named
