"""Execute the notebooks of notebooks/, each in a kernel and an empty folder of its own.

    python tests/notebooks.py                          # all of them; no file is changed
    python tests/notebooks.py when_depth_pays          # those with these names
    python tests/notebooks.py --save                   # and write the outputs into the files

Prints the seconds of each notebook; exits with 1 and the traceback of the cell that fails. What is
saved names no folder of this machine and no time, so that executing a notebook again changes little
in its file.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
LIMIT = 1800  # seconds of a cell
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def execute(notebook: Any, folder: Path) -> None:
    """Execute the cells in order and put their outputs into the notebook.

    Args:
        notebook: as nbformat reads it.
        folder: where the kernel works, and leaves its own files.

    Raises:
        CellExecutionError: a cell raises.
    """
    work = folder / "work"
    work.mkdir()
    os.environ["IPYTHONDIR"] = str(folder / "ipython")
    os.environ["JUPYTER_RUNTIME_DIR"] = str(folder / "runtime")
    client = NotebookClient(
        notebook,
        timeout=LIMIT,
        kernel_name="python3",
        resources={"metadata": {"path": str(work)}},
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],  # else it warns of how it is connected
        coalesce_streams=True,  # the kernel sends what is printed in parts
    )
    client.execute()


def strip(notebook: Any, folders: Mapping[str, str]) -> None:
    """Remove from a notebook what differs from machine to machine and from run to run.

    Args:
        notebook: as nbformat reads it.
        folders: folders of this machine, and what to write in place of each.
    """
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": kernel, "language_info": {"name": "python"}}
    )
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = replace(cell.outputs, folders)
            for output in cell.outputs:
                if "metadata" in output:
                    output.metadata = nbformat.from_dict({})


def replace(value: Any, folders: Mapping[str, str]) -> Any:
    """Return a tree of texts in which the folders are replaced, the longest first."""
    if isinstance(value, dict):
        return nbformat.from_dict({key: replace(each, folders) for key, each in value.items()})
    if isinstance(value, list):
        return [replace(each, folders) for each in value]
    if isinstance(value, str):
        for folder in sorted(folders, key=len, reverse=True):
            value = value.replace(folder, folders[folder])
    return value


def main(words: list[str]) -> None:
    known = {path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    names = [word for word in words if word != "--save"] or [*known]
    if unknown := {*names} - {*known}:
        sys.exit(f"no notebook is called {', '.join(sorted(unknown))}: {', '.join(known)}")
    for name in names:
        notebook = nbformat.read(known[name], as_version=4)
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                execute(notebook, Path(folder))
            except CellExecutionError as error:
                sys.exit(f"{COLOURS.sub('', str(error))}\n{name}: a cell has failed")
            places = {folder: ".", str(ROOT): "equilibria", sys.prefix: "venv"}
        if "--save" in words:
            strip(notebook, places | {str(Path.home()): "~"})
            nbformat.write(notebook, known[name])
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
