"""Sphinx configuration, and the pages that are made anew at each build."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

DOCS = Path(__file__).parent
GENERATED = DOCS / "_build" / "generated"
COMMANDS = (
    *("train", "initialise", "evaluate", "generate", "doctor", "report", "reproduce", "recipes"),
)

project = "equilibria"
author = "The equilibria authors"
copyright = f"2026, {author}"
release = importlib.metadata.version("equilibria")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
default_role = "code"
highlight_language = "text"

autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# NumPy's are long unions of what can be made an array.
autodoc_type_aliases = {"ArrayLike": "ArrayLike", "Spectrum": "ArrayLike"}
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_custom_sections = [("Source", "notes_style"), ("Papers", "notes_style")]
napoleon_use_ivar = True

html_theme = "furo"
html_math_renderer = "mathml"
html_title = f"equilibria {release}"


def plain(_app: object, _what: str, _name: str, _obj: object, _opts: object, lines: list[str]):
    """Read docstrings as they are meant to be read in the source.

    Outside of backticks, z*, |z| and gaussian_ stand for themselves; an indented block after a
    blank line is an equation, whose lines stay as they are.
    """
    result: list[str] = []
    block: int | None = None  # indentation of the text before a literal block
    last, blank = 0, False  # indentation of the last line with text, and whether a blank followed
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            blank = True
        else:
            if block is not None and indent <= block:
                block = None
            if block is None and blank and indent > last:
                block = last
                result += [" " * last + "::", ""]
            if block is None and not line.lstrip().startswith((">>>", "...")):
                line = re.sub(
                    r"``.*?``|`[^`]*`|[*|]|(?<=\w)_(?=\W|$)",
                    lambda found: found[0] if found[0][0] == "`" else f"\\{found[0]}",
                    line,
                )
            last, blank = indent if block is None else last, False
        result.append(line)
    lines[:] = result


def generate() -> None:
    """Write the tables of measured figures and the --help of each command."""
    GENERATED.mkdir(parents=True, exist_ok=True)
    tables = DOCS.parent / "benchmarks" / "tables.py"
    (GENERATED / "measured.md").write_text(printed_by(str(tables)))
    errata = "from equilibria import theory; print(theory.errata_table())"
    (GENERATED / "errata.md").write_text(printed_by("-c", errata))
    for name in ("solvers", "adjoints", "convergence-rules", "compile"):
        (GENERATED / f"short-{name}.md").write_text(printed_by(str(tables), "--short", name))
    bench = (["bench"], *(["bench", name] for name in ("solvers", "adjoints", "training")))
    for words in ([], ["train"], ["train", "digits"], *([name] for name in COMMANDS[1:]), *bench):
        text = printed_by("-m", "equilibria", *words, "--help")
        (GENERATED / f"{'-'.join(['help', *words])}.txt").write_text(text)


def printed_by(*words: str) -> str:
    """What Python prints when it runs `words`."""
    environment = os.environ | {"COLUMNS": "92"}
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    if run.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {run.stderr}")
    return run.stdout


def inline_mathml(translator: Any, node: Any) -> None:
    """Write a formula for the browser's own renderer: a page needs no script and no network."""
    translator.body.append(tex2mathml(node.astext()))
    raise SkipNode


def block_mathml(translator: Any, node: Any) -> None:
    """The same for a formula that stands by itself."""
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise SkipNode


def setup(app: Any) -> None:
    """Called by Sphinx."""
    generate()
    app.add_html_math_renderer("mathml", (inline_mathml, None), (block_mathml, None))
    app.connect("autodoc-process-docstring", plain, priority=100)  # before napoleon
