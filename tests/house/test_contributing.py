"""The diffs of CONTRIBUTING.md apply, are short, and add what they say."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
DIFFS = dict(re.findall(r"^### (An? [\w ]+)\n.*?^```diff\n(.*?)^```$", TEXT, re.M | re.S))

USES = {
    "A model": """
import torch, equilibria as eq
model = eq.models.create("relu", shape=(1, 8, 8), classes=10, width=16)
model(torch.rand(4, 1, 8, 8)).output.sum().backward()
from equilibria.run.cli.main import main
assert main(["train", "digits", "--model.name", "relu", "--epochs", "1", "--epoch_steps", "1"]) == 0
assert main(["report", "runs/digits"]) == 0
""",
    "A data set": """
import equilibria as eq
assert len(eq.data.load("stripes").train) == 400
from equilibria.run.cli.main import main
words = ["--data", "stripes", "--model.classes", "2", "--epochs", "1", "--epoch_steps", "1"]
assert main(["train", "digits", *words]) == 0
""",
    "A study": """
from equilibria.run.cli.main import main
assert main(["reproduce", "deq/radius"]) == 0
assert len(open("results/deq-radius.csv").readlines()) == 4
""",
    "A solver": """
import torch
from equilibria.run import recipe
solver = recipe.load("digits", ["--solver.name", "Averaged"]).solver
from equilibria.solve import Averaged, Status, fixed_point
assert isinstance(solver, Averaged)
start, x = torch.zeros(2, 3), torch.ones(2, 3)
found = fixed_point(lambda z, x: x - z, start, x, solver=solver)
assert (found.status == Status.CONVERGED).all() and (found.value == 0.5).all()
""",
    "An application": """
from equilibria.run.cli.main import main
assert main(["--help"]) == 0
assert main(["kepler", "1.2", "--eccentricity", "0.3"]) in (0, None)
""",
}


def test_what_is_explained_is_tried() -> None:
    assert DIFFS.keys() == USES.keys()
    changed = re.compile(r"^(?:\+(?!\+\+ )|-(?!-- ))", re.M)  # and no names of files
    assert [name for name, diff in DIFFS.items() if len(changed.findall(diff)) > 40] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_a_diff_adds_what_it_says(name: str, tmp_path: Path) -> None:
    for folder in ("src", "papers"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    apply = ["git", "apply", "-C1", "-"]
    subprocess.run(apply, cwd=tmp_path, input=DIFFS[name], text=True, check=True)
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), os.environ["PYTHONPATH"]])}
    run = subprocess.run(
        [sys.executable, "-c", USES[name]],
        cwd=tmp_path,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    if name == "An application":
        assert "kepler      solve Kepler's equation" in run.stdout
        assert "E = 1.4992" in run.stdout
