"""Time epochs of the training of two checkouts in turns: is one faster than the other?

    python benchmarks/turns.py OLD NEW
    python benchmarks/turns.py OLD NEW digits cora --seconds 60
    python benchmarks/turns.py OLD NEW lm-text --steps 20 -- --data FILE
    python benchmarks/turns.py OLD NEW --text FILE -- --data-dir FOLDER

OLD and NEW are checkouts (their `src` is put on PYTHONPATH), and what follows `--` goes to
`equilibria train RECIPE`. Without names, seven recipes are timed, as they are shipped but for a
shallow start. Each trains in a process of its own, in a temporary folder. Of the two, one goes from
one training step to the next while the other waits, so that a machine whose speed drifts slows both
alike. What is timed is all of that: forward, backward, optimiser, batches and logs, and the
evaluation and the checkpoint at the end of an epoch. The first two steps are not counted.

Prints for each recipe the seconds an epoch of both: medians over the epochs that fit into
`--seconds`, one at least; or, from `--steps` steps, as many times their mean as an epoch has steps.
Then how many times as fast NEW is, by these and by the median over the single steps, as wall and as
processor time; last, the geometric mean over the recipes. A recipe that cannot be trained, for want
of its data for example, is left out, and the reason is printed.
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
RECIPES: dict[str, tuple[str, ...]] = {
    "digits": (),
    "mnist": (),
    "lm-text": (),
    "mdeq-cifar10-16": ("--pretrain.name", "null"),  # else the first epoch solves nothing
    "flow-layers": (),
    "cora": (),
    "har2": (),
}
"""Recipes that are timed, and their options."""


class Ended(RuntimeError):
    """A training ended by itself; the message is its last line."""


def serve(requests: IO[str], replies: IO[str], words: list[str]) -> None:
    """Train: say how many steps an epoch has, and how many epochs there are; then go to the next
    step for each line that is read from `requests`, and write the two times that it took."""
    from equilibria.run.cli.main import main
    from equilibria.run.trainer import Trainer

    train_step = Trainer.train_step
    begun: list[float] = []

    def step(self: Trainer, penalized: bool | None = None) -> None:
        if begun:
            wall, cpu = begun
            took = time.perf_counter() - wall, time.process_time() - cpu
            print(*took, file=replies, flush=True)
        else:
            print(self.steps_per_epoch, self.recipe.epochs, file=replies, flush=True)
        requests.readline()
        begun[:] = time.perf_counter(), time.process_time()
        train_step(self, penalized)

    Trainer.train_step = step
    main(words)


class Checkout:
    """A training by the code of one checkout, stopped before its first step."""

    def __init__(self, folder: Path, runs: str, words: list[str]) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.times: list[tuple[float, float]] = []
        self.errors = Path(runs, "errors")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, __file__, "--serve", str(ours[0]), str(theirs[1])),
                    *("train", *words[:1], "--out", f"{runs}/run", *words[1:]),
                ],
                env={
                    "GOMP_SPINCOUNT": "20000",  # the one that waits leaves the cores to the other
                    **os.environ,
                    "PYTHONPATH": str(folder.resolve() / "src"),
                },
                pass_fds=(ours[0], theirs[1]),
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        os.close(ours[0])
        os.close(theirs[1])
        self.asks, self.answers = os.fdopen(ours[1], "w", buffering=1), os.fdopen(theirs[0])

    def read(self) -> tuple[float, float]:
        try:
            first, second = self.answers.readline().split()
        except ValueError:
            said = self.errors.read_text().strip().splitlines() or ["it said nothing"]
            raise Ended(said[-1]) from None
        return float(first), float(second)

    def step(self) -> None:
        print(file=self.asks)
        self.times.append(self.read())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def compare(
    old: Path, new: Path, words: list[str], seconds: float, steps: int | None
) -> tuple[str, float]:
    """A line on a recipe, and how many times as fast NEW is."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        both = [Checkout(old, first, words), Checkout(new, second, words)]
        try:
            (epoch, epochs), _ = (tuple(map(int, each.read())) for each in both)
            most = min(steps, epoch - WARM - 1) if steps else epoch * (epochs - 1) - WARM
            if most < 1:
                raise Ended("it has too few steps: give it two epochs or more by -- --epochs 2")
            for count in range(-WARM, most):
                for checkout in both if count % 2 else reversed(both):
                    checkout.step()
                spent = max(sum(wall for wall, _ in each.times) for each in both)
                if not steps and count >= 0 and (count + 1) % epoch == 0 and spent >= seconds:
                    break
        finally:
            for checkout in both:
                checkout.close()
    times = [each.times[WARM:] for each in both]
    before, after = (epoch_seconds([wall for wall, _ in each], epoch) for each in times)
    wall, cpu = (
        statistics.median(a[kind] / b[kind] for a, b in zip(*times, strict=True)) for kind in (0, 1)
    )
    said = f"{before:.2f} s, {after:.2f} s an epoch: {before / after:.3f} times as fast"
    return f"{said}; of a step {wall:.3f}, processor {cpu:.3f}", before / after


def epoch_seconds(times: list[float], epoch: int) -> float:
    """The median over whole epochs; of fewer steps than an epoch has, as many times their mean."""
    if len(times) < epoch:
        return epoch * statistics.fmean(times)
    starts = range(0, len(times) - epoch + 1, epoch)
    return statistics.median(sum(times[start : start + epoch]) for start in starts)


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
    parser.add_argument("recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each (default: 30)")
    parser.add_argument("--steps", type=int, help="in place of whole epochs")
    parser.add_argument("--text", help="file that lm-text is trained on")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:cut])
    ratios: list[float] = []
    for recipe in args.recipes:
        text = ["--data", args.text] if recipe == "lm-text" and args.text else []
        given = [recipe, *RECIPES.get(recipe, ()), *text, *words[cut + 1 :]]
        try:
            said, times = compare(args.old, args.new, given, args.seconds, args.steps)
        except Ended as ended:
            said = f"left out: {ended}"
        else:
            ratios.append(times)
        print(f"{recipe}: {said}", flush=True)
    if ratios:
        print(f"geometric mean of {len(ratios)}: {statistics.geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
