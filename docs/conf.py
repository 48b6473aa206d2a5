"""Sphinx configuration, and the pages that are made anew at each build."""

import contextlib
import io
import os
import re
import warnings
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

from equilibria import __version__
from equilibria.run.cli.main import commands, main
from equilibria.run.studies import catalog
from equilibria.run.studies.pages import list_studies, markdown, tables_only
from equilibria.theory import errata_table

DOCS = Path(__file__).parent
GENERATED = DOCS / "_build" / "generated"
SHORT = {
    "bench/solvers": ("Solvers: summary", "Solvers: who converges"),
    "bench/adjoints": (
        "Gradients: relative error",
        "Gradients: cosine with the exact one",
        "Gradients: milliseconds of a backward",
    ),
    "bench/jit": ("Times as fast as optimistix under jax.jit",),
    "bench/graphs": ("Graph layer: times as fast as the authors' loop",),
    "bench/choices": ("What the default chooses",),
    "bench/rules": ("Where each rule stops",),
    "bench/compile": (
        "Graph breaks of a training step",
        "Microseconds an evaluation, by what is compiled",
    ),
    "bench/scaling": ("Two processes beside one",),
    "mdeq/images": ("mdeq-images",),
    "mdeq/camvid": ("CamVid, test images",),
    "mdeq/transfer": ("CamVid, test images",),
    "mdeq/joint": ("CamVid, test images",),
    "mdeq/views": ("CamVid, test images",),
    "mdeq/video": ("Test frames of CamVid",),
    "inexact/synthetic": (
        "Theorem 4: is (5.5) ever wrong?",
        "Theorem 4 on trained layers: the condition (5.8)",
    ),
    "inexact/images": ("Table 5.2: CIFAR-10", "Table 5.2: steps"),
    "inexact/graphs": (
        "Nodes: Cora, public split",
        "Chains: test accuracy in per cent",
        "Table 5.3: COX2, 10 folds",
    ),
    "flow/sizes": ("Sizes",),
    "flow/cost": ("Training step",),
    "flow/pairs": ("Generated pairs", "Figure 7.7: residual and error", "Sintel at half its size"),
    "flow/reuse": ("Evaluations of a pair of frames", "At a cut"),
    "representation/image": ("camera, 64 x 64 pixels", "camera, 128 x 128 pixels"),
    "representation/cost": ("Training step",),
    "representation/reuse": ("Evaluations to a residual of .01, after step 100",),
    "representation/gradients": ("Gradients",),
    "reasoning/parity": (
        "Exact strings, per cent, by length in bits",
        "Solvers, with their limits",
        "From other starts: strings of 128 bits",
    ),
    "reasoning/words": ("Exact words, per cent, by number of letters",),
    "reasoning/mazes": ("Mazes solved, per cent, by rows", "Use of depth: mazes of 13 x 13"),
    "reasoning/sudoku": ("Puzzles solved, per cent, by digits", "Several starts"),
    "representation/generalisation": (
        "Implicit network minus explicit network with four layers and equal size",
    ),
    "representation/sound": ("Bach, 1.5 s",),
    "representation/film": ("Table 8.2: a street",),
    "representation/shape": ("Figure 8.9: a knot",),
    "neural/solvers": (
        "Figure 6.5: quality lost by stopping early, test split",
        "Figure 6.5: fewest evaluations and shortest time without loss",
        "Figure 6.6a: relative residual, geometric mean over test samples",
        "Figure 6.5d: size and training time",
        "Safeguards: all test samples, the solver that distil selects",
    ),
    "neural/ablations": ("Figures 6.7 and 6.8",),
    "neural/alternating": ("Figure 6.6b",),
    "ernn/har": ("Table 3: HAR-2",),
    "ernn/adding": ("Steps until the error is below 0.01",),
    "ernn/order": ("Accuracy against K",),
    "ernn/starts": ("Start of the Euler steps",),
    "ernn/speed": ("Training step and inference, 64 units",),
    "ernn/gradients": ("|dh_T/dh_k| by T - k",),
}
"""Tables that other pages show by themselves."""

project = "equilibria"
author = "The equilibria authors"
copyright = f"2026, {author}"
release = __version__

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
suppress_warnings = ["ref.python"]  # the type `bytes` in signatures: attributes have that name too
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
    results = DOCS.parent / "results"
    measured = (markdown(name, results, link="../results") for name in catalog.names())
    pages = {"measured.md": "\n".join(measured), "errata.md": errata_table()}
    pages["studies.md"] = list_studies()
    for name, titles in SHORT.items():
        pages[f"short-{name.replace('/', '-')}.md"] = tables_only(name, results, titles)
    for words in ((), ("train", "digits"), *((name,) for name in commands())):
        pages[f"{'-'.join(('help', *words))}.txt"] = help_text(*words)
    GENERATED.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (GENERATED / name).write_text(text)


def help_text(*words: str) -> str:
    """What `equilibria WORDS --help` prints."""
    os.environ["COLUMNS"] = "92"
    with (
        warnings.catch_warnings(),  # the command line shows them in its own way
        contextlib.suppress(SystemExit),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        main([*words, "--help"])
    if not printed.getvalue():
        raise RuntimeError(f"equilibria {' '.join(words)} --help prints nothing")
    return printed.getvalue()


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
