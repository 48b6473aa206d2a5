"""Build the wheel of a commit, and unpack it where Python can import it beside any other version.

    python tests/oracle/build.py before-core FOLDER

writes FOLDER/NAME.whl and FOLDER/package; then, with the same interpreter and libraries,

    PYTHONPATH=FOLDER/package python tests/oracle/draws.py old.npz
    PYTHONPATH=src            python tests/oracle/draws.py new.npz
    python tests/oracle/compare.py old.npz new.npz
    python tests/oracle/faults.py new.npz
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMITS = {"before-core": "6ea6478"}  # where the tag itself is not


def build(commit: str, folder: Path) -> Path:
    """Build the wheel of `commit` in a clone of its own; return the folder of its package."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        clone = Path(name) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", ROOT, clone], check=True)
        commit = COMMITS.get(commit, commit)
        subprocess.run(["git", "checkout", "--quiet", commit], cwd=clone, check=True)
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", folder, clone]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    wheel = max(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    package = folder / "package"
    shutil.rmtree(package, ignore_errors=True)  # of another commit
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(package)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.2f} MB; imported from {package}")
    return package


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    build(given.commit, given.folder.absolute())
