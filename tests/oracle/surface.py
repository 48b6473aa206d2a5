"""What users and results hold on to: public names, identities of studies, times to start.

    PYTHONPATH=FOLDER/package python tests/oracle/surface.py old.json
    PYTHONPATH=src            python tests/oracle/surface.py new.json
    python tests/oracle/surface.py old.json --compare new.json

A record lists every public name with its signature, the identity of every point of every study
(None where its data are missing), and the seconds that an import and `--help` take, the median of
five processes. Rows of `results/` are found by these identities. `RENAMED` says what was renamed.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RENAMED: dict[str, str] = {
    "equilibria.Audited": "equilibria.AdaptiveAdjoint",
    "equilibria.Dense": "equilibria.DirectSolve",
    "equilibria.Relay": "equilibria.Fallback",
    "equilibria.nn.Distillation": "equilibria.learned.Distillation",
    "equilibria.nn.Outcome": "equilibria.learned.Outcome",
    "equilibria.nn.distill": "equilibria.learned.distill",
    "equilibria.solve.NeuralSolver": "equilibria.learned.NeuralSolver",
}
"""Public names of `before-core`, "equilibria.NAME", and what they are called since."""

STARTS = {
    "import equilibria": ["-c", "import equilibria"],
    "import equilibria.DEQ": ["-c", "import equilibria; equilibria.DEQ"],
    "--help": ["-m", "equilibria", "--help"],
    "train digits --help": ["-m", "equilibria", "train", "digits", "--help"],
}


def public_names() -> dict[str, str]:
    """The names in `__all__` of the package and its rooms, with their signatures."""
    import equilibria

    found = {}
    rooms = {"equilibria": equilibria}
    for name in equilibria.__all__:
        value = getattr(equilibria, name)
        if inspect.ismodule(value):
            rooms[value.__name__] = value
    for place, room in rooms.items():
        for name in getattr(room, "__all__", ()):
            value = getattr(room, name)
            try:
                signature = str(inspect.signature(value))
                found[f"{place}.{name}"] = re.sub(r" at 0x[0-9a-f]+", "", signature)
            except (TypeError, ValueError):  # a module or a number
                found[f"{place}.{name}"] = type(value).__name__
    return found


def identities() -> dict[str, list[str | None]]:
    """The identity of every point of every study."""
    from rich.console import Console

    catalog = importlib.import_module("equilibria.run.studies.catalog")
    runner = importlib.import_module("equilibria.run.studies.runner")
    training = importlib.import_module("equilibria.run.studies.training")
    # Older packages do not count the generations of the core; theirs is the first.
    counted = "generation" in inspect.signature(runner.identity_of).parameters
    first = {"generation": 1} if counted else {}
    found: dict[str, list[str | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = training.Store(Path(folder), Console(quiet=True))
        for name in catalog.names():
            found[name] = []
            for point in runner.check(catalog.find(name), "cpu"):
                try:
                    found[name].append(runner.identity_of(point, store, **first))
                except Exception:  # data that are not here
                    found[name].append(None)
            print(f"{name}: {len(found[name])} points", flush=True)
    return found


def seconds(words: list[str]) -> float:
    """How long a process takes that does nothing else, the median of five."""
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def compare(old: dict[str, Any], new: dict[str, Any]) -> int:
    """Print what is missing or other; return how much that is. Times are shown, not judged."""
    names = {RENAMED.get(name, name): text for name, text in old["names"].items()}
    wrong = [f"{name} is gone" for name in names if name not in new["names"]]
    changed = [n for n, text in names.items() if new["names"].get(n, text) != text]
    for study, before in old["identities"].items():
        after = new["identities"].get(study)
        if after is None:
            wrong.append(f"the study {study} is gone")
        elif lost := [each for each in before if each not in after]:
            wrong.append(f"{study}: {len(lost)} of {len(before)} points have another identity")
    print("\n".join(wrong))
    for name in changed:
        print(f"{name}: {names[name]} -> {new['names'][name]}")
    for name, before in old["seconds"].items():
        print(f"{name}: {before:.2f} s -> {new['seconds'].get(name, float('nan')):.2f} s")
    print(f"{len(wrong)} names, studies or identities lost, {len(changed)} signatures changed")
    return len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path)
    parser.add_argument("--compare", type=Path, metavar="NEW")
    given = parser.parse_args()
    if given.compare is not None:
        records = [json.loads(path.read_text()) for path in (given.record, given.compare)]
        return int(compare(*records) > 0)
    record = {
        "seconds": {name: seconds(words) for name, words in STARTS.items()},
        "names": public_names(),
        "identities": identities(),
    }
    given.record.write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
