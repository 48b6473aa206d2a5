"""Build the package as users get it, and use the wheel where nothing but the core is installed.

    python tests/wheel.py

Builds the source distribution and from it the wheel, installs that in an empty environment, imports
all that the core promises, takes a training step, and sees that the command line asks for what it
lacks. Exits with 1 and the reason if any of this fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST = 3_500_000  # bytes of the source distribution

STEP = """
import importlib.util, pkgutil

import torch
import equilibria as eq

for name in eq.__all__:
    getattr(eq, name)
from equilibria.zoo import APPLICATIONS

rooms = ["solve", "nn", "stability", "theory", "learned", "run.models", "run.data", "zoo.io"]
parts = [f"zoo.{name}.{part}" for name in APPLICATIONS for part in ("model", "data")]
rooms += [part for part in parts if importlib.util.find_spec(f"equilibria.{part}")]
for name in rooms:
    room = importlib.import_module(f"equilibria.{name}")
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        importlib.import_module(module.name)

class Cell(torch.nn.Linear):
    def forward(self, z, x):
        return torch.tanh(0.3 * super().forward(z) + x)

layer = eq.DEQ(Cell(8, 8))
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
x, target = torch.randn(16, 8), torch.zeros(16, 8)
losses = []
for _ in range(2):
    solution = layer(x)
    assert (solution.status == eq.Status.CONVERGED).all(), solution.status
    loss = (solution.value - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[1] < losses[0], losses
"""


def run(*words: str | Path, where: Path) -> str:
    """Run a command in the folder `where` and return what it prints; exit with that if it fails."""
    done = subprocess.run([*map(str, words)], cwd=where, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words[:4]))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(folder: Path) -> None:
    """Build, install and use the package in `folder`."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, where=folder)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    size = source.stat().st_size
    print(f"{source.name}: {size / 1e6:.2f} MB; {wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
    if size > LARGEST:
        sys.exit(f"the source distribution has more than {LARGEST / 1e6:g} MB")
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src"
    data = [*package.glob("equilibria/zoo/*/recipes/*.yaml"), *package.glob("**/template/*")]
    if lost := [path for path in data if path.relative_to(package).as_posix() not in inside]:
        sys.exit(f"the wheel lacks {lost}")
    if foreign := [name for name in inside if not name.startswith("equilibria")]:
        sys.exit(f"the wheel has more than the package: {foreign}")

    venv.create(folder / "empty", with_pip=True)
    binaries = folder / "empty" / "bin"
    constraints = ("--constraint", ROOT / "constraints.txt")
    run(binaries / "python", "-m", "pip", "install", "--quiet", *constraints, wheel, where=folder)
    run(binaries / "python", "-c", STEP, where=folder)
    run(binaries / "equilibria", "--help", where=folder)
    words = [binaries / "equilibria", "train", "digits"]
    refused = subprocess.run(words, cwd=folder, text=True, capture_output=True, check=False)
    lines = refused.stderr.splitlines()
    if refused.returncode != 1 or len(lines) != 1 or "'equilibria[cli]'" not in lines[0]:
        sys.exit(f"`equilibria train` without its extra ended with {refused}")
    print(f"imports, trains, and says: {lines[0]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
