"""The README's two commands, in its order, in fresh clones under conditions that people have.

    python tests/commands.py              # list the conditions
    python tests/commands.py plain path   # one clone for each of these
    python tests/commands.py everything   # one clone that has all conditions at once
    python tests/commands.py every        # each by itself, then all at once: hours
    python tests/commands.py --once every # the same with `make run` and `make test` once each

Each clone starts without .venv, with an empty cache and without data. In it `make run`,
`make test`, `make run`, `make test` must succeed and leave `git status` clean. The clones have what
is committed. Prints the minutes of each command; exits with 1 and the end of the output if one
fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = ("run", "test", "run", "test")
CONDITIONS = {
    "plain": "nothing else",
    "dirty": "runs/ holds two runs that cannot be continued and other files; a branch was left",
    "path": "the clone's path has a space and a letter that is not ASCII",
    "home": "the home can neither be written nor made",
    "umask": "umask 077",
}


def litter(clone: Path) -> None:
    """Leave in runs/ what earlier versions and other programs might."""
    runs = clone / "runs"
    (clone / "tests" / "of-another-branch" / "__pycache__").mkdir(parents=True)
    for name, text in {
        "digits/recipe.yaml": "model: {name: gone}\n",
        "digits/checkpoints/1.safetensors": "",
        "digits/metrics.jsonl": '{"step": 1',
        "digits-2/recipe.yaml": "",
        "sequences/recipe.yaml": "description: \x00",
        "options/report.html": "<html>",
        "notes.txt": "mine",
    }.items():
        (runs / name).parent.mkdir(parents=True, exist_ok=True)
        (runs / name).write_text(text)


def attempt(conditions: set[str], folder: Path, commands: tuple[str, ...]) -> list[float]:
    """Run the commands in a clone; return the minutes of each, or exit with the first failure."""
    clone = folder / ("with space and é" if "path" in conditions else "clone") / "equilibria"
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("EQUILIBRIA_DATA", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")
    }
    environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "PIP_NO_CACHE_DIR": "1"}
    if "home" in conditions:
        environment["HOME"] = "/dev/null/home"
        del environment["XDG_CACHE_HOME"]
    mask = 0o077 if "umask" in conditions else -1
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True, umask=mask)
    if "dirty" in conditions:
        litter(clone)
    minutes = []
    for command in commands:
        start = time.monotonic()
        run = subprocess.run(
            ["make", command],
            cwd=clone,
            env=environment,
            umask=mask,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        minutes.append((time.monotonic() - start) / 60)
        if run.returncode:
            sys.exit(f"{run.stdout[-20_000:]}\nmake {command} failed under {sorted(conditions)}")
        print(f"make {command}: {run.stdout.strip().splitlines()[-1]}", flush=True)
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True
    )
    if changed.stdout:
        sys.exit(f"the clone is no longer clean under {sorted(conditions)}:\n{changed.stdout}")
    return minutes


def main(words: list[str]) -> None:
    if not words:
        print("\n".join(f"{name:8} {what}" for name, what in CONDITIONS.items()))
        return
    commands = COMMANDS[:2] if "--once" in words else COMMANDS
    words = [word for word in words if word != "--once"]
    names = [*CONDITIONS, "everything"] if words == ["every"] else words
    if unknown := {*names} - {*CONDITIONS, "everything"}:
        sys.exit(f"no condition is called {', '.join(sorted(unknown))}: {', '.join(CONDITIONS)}")
    if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT).returncode:
        sys.exit("the clones would have what is committed only: commit your changes first")
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            conditions = {*CONDITIONS} if name == "everything" else {name}
            rows.append((name, attempt(conditions, Path(folder), commands)))
    print(f"\n{'condition':12}" + "".join(f"{f'make {command}':>12}" for command in commands))
    for name, minutes in rows:
        print(f"{name:12}" + "".join(f"{each:>8.1f} min" for each in minutes))


if __name__ == "__main__":
    main(sys.argv[1:])
