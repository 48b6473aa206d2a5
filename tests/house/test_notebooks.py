"""Notebooks are stored with their outputs, as `make notebooks` saves them; it executes them."""

import json
from pathlib import Path

import nbformat
import pytest

from tests.notebooks import NOTEBOOKS, strip

STORED = sorted(NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_it_was_executed(path: Path) -> None:
    assert path.stat().st_size < 300_000
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert [output for output in outputs if output.get("name") == "stderr"] == []
    again = nbformat.from_dict(json.loads(json.dumps(notebook)))
    strip(again, {})
    assert again == notebook


def test_what_differs_from_run_to_run_is_not_saved() -> None:
    printed = nbformat.v4.new_output("stream", text="at /home/me/clone/a.py and /home/me/b.py\n")
    shown = nbformat.v4.new_output("display_data", {"text/plain": "x"}, metadata={"width": 3})
    cell = nbformat.v4.new_code_cell("1", outputs=[printed, shown], execution_count=1)
    cell.metadata["execution"] = {"iopub.status.busy": "2026-01-01T00:00:00Z"}
    text = nbformat.v4.new_markdown_cell("About /home/me/clone")
    language = {"name": "python", "version": "3.11.9"}
    notebook = nbformat.v4.new_notebook(cells=[cell, text], metadata={"language_info": language})
    strip(notebook, {"/home/me": "~", "/home/me/clone": "."})
    assert printed.text != cell.outputs[0].text == "at ./a.py and ~/b.py\n"
    assert not cell.metadata and not cell.outputs[1].metadata
    assert notebook.metadata.language_info == {"name": "python"}
    assert cell.source == "1" and text.source == "About /home/me/clone"
