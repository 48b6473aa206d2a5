"""Run the benchmark on a GPU in all modes: f eager, compiled, a CUDA graph; float32, bfloat16.

Each mode is a process and a file of its own in results/; one that fails does not stop the others.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from equilibria.bench.modes import MODES

ROOT = Path(__file__).parents[2]
PRECISIONS = ([], ["--autocast", "bfloat16", "--rtol", "1e-2"])


def commands(device: str) -> list[list[str]]:
    """The words of every run of `equilibria bench`."""
    words = [
        ["solvers", "--device", device, *precision, *(["--mode", mode] if mode != "eager" else [])]
        for precision in PRECISIONS
        for mode in MODES
    ]
    return [*words, ["adjoints", "--device", device], ["training", "--device", device]]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="for example cuda or cuda:1")
    parser.add_argument("--budget", help="minutes of each run")
    args = parser.parse_args()
    failed: list[str] = []
    for words in commands(args.device):
        command = [sys.executable, "-m", "equilibria", "bench", *words]
        command += ["--out", str(ROOT / "results")]
        if args.budget:
            command += ["--budget", args.budget]
        print(*command, flush=True)
        if subprocess.run(command).returncode:
            failed.append(" ".join(words))
    if failed:
        sys.exit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
