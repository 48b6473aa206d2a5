"""Time the training steps of two checkouts in turns: is one slower than the other?

    python benchmarks/turns.py OLD NEW digits cora --steps 60
    python benchmarks/turns.py OLD NEW lm-text --steps 50 -- --data FILE --epoch_steps 60

OLD and NEW are checkouts (their `src` is put on PYTHONPATH), and what follows `--` goes to
`equilibria train RECIPE`. Each trains in a process of its own, in a temporary folder. Of the two,
one steps while the other waits, so that a machine whose speed drifts slows both alike. The first
two steps are not counted. Prints for each recipe the seconds of all steps, and the ratios NEW / OLD
of sums and the median of the ratios of single steps, as wall and as processor time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

WARM = 2


def serve(requests: IO[str], replies: IO[str], words: list[str]) -> None:
    """Train, with one step for each line that is read from `requests`; write its two times."""
    from equilibria.run.cli.main import main
    from equilibria.run.trainer import Trainer

    train_step = Trainer.train_step

    def step(self: Trainer, penalized: bool | None = None) -> None:
        requests.readline()
        wall, cpu = time.perf_counter(), time.process_time()
        train_step(self, penalized)
        print(time.perf_counter() - wall, time.process_time() - cpu, file=replies, flush=True)

    Trainer.train_step = step
    main(words)


class Checkout:
    """A training by the code of one checkout."""

    def __init__(self, folder: Path, runs: str, words: list[str]) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.seconds: list[tuple[float, float]] = []
        self.errors = Path(runs, "errors")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, __file__, "--serve", str(ours[0]), str(theirs[1])),
                    *("train", *words[:1], "--out", f"{runs}/run", *words[1:]),
                ],
                env={**os.environ, "PYTHONPATH": str(folder.resolve() / "src")},
                pass_fds=(ours[0], theirs[1]),
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        os.close(ours[0])
        os.close(theirs[1])
        self.asks, self.answers = os.fdopen(ours[1], "w", buffering=1), os.fdopen(theirs[0])

    def step(self) -> None:
        try:
            print(file=self.asks)
            wall, cpu = self.answers.readline().split()
        except (BrokenPipeError, ValueError):
            raise SystemExit(f"a training ended: {self.errors.read_text()[-2000:]}") from None
        self.seconds.append((float(wall), float(cpu)))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def compare(old: Path, new: Path, words: list[str], steps: int) -> str:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        both = [Checkout(old, first, words), Checkout(new, second, words)]
        try:
            for step in range(steps + WARM):
                for checkout in both if step % 2 else reversed(both):
                    checkout.step()
        finally:
            for checkout in both:
                checkout.close()
    parts = []
    for kind, name in enumerate(("wall", "processor")):
        before, after = ([row[kind] for row in c.seconds[WARM:]] for c in both)
        median = statistics.median(b / a for a, b in zip(before, after, strict=True))
        parts.append(
            f"{name} {sum(before):.2f} s, {sum(after):.2f} s: {sum(after) / sum(before):.3f}, "
            f"median of steps {median:.3f}"
        )
    return "; ".join(parts)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        requests, replies = (
            os.fdopen(int(n), mode) for n, mode in zip(sys.argv[2:4], "rw", strict=True)
        )
        serve(requests, replies, sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--steps", type=int, default=60)
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:cut])
    for recipe in args.recipes:
        print(f"{recipe}: {compare(args.old, args.new, [recipe, *words[cut + 1 :]], args.steps)}")


if __name__ == "__main__":
    main()
