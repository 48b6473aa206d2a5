"""Predicts a thousand images of all modes; kills predictions at any moment and continues them.

    python tests/zoo/vision/predicting.py memory --images 1000
    python tests/zoo/vision/predicting.py random --kills 100
    python tests/zoo/vision/predicting.py events
    python tests/zoo/vision/predicting.py full

Each is done by a classifier and by a network for segmentation, both tiny. A prediction that is
killed is a forked child of this process, as in tests/helpers/killing.py.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import all_modes
import numpy as np
from PIL import Image

sys.path.append(str(Path(__file__).parents[2] / "helpers"))

from equilibria.run.cli.main import main as command
from killing import at_event, child, ended  # pyright: ignore[reportMissingImports]
from pictures import scenes  # pyright: ignore[reportMissingImports]

SEGMENTATION = {
    "task": {"name": "image_segmentation", "normalize": True, "channels": 3},
    "model": {
        "name": "mdeq-segmentation",
        "channels": [8, 16],
        "expansion": 1,
        "halvings": 1,
        "projection": False,
        "initial": None,
    },
    "solver": {"name": "Anderson", "period": 3, "rtol": 1e-2, "max_evals": 12},
    "eval_solver": {"name": "Anderson", "period": 3, "rtol": 0.3, "max_evals": 40},
    "adjoint": {"name": "NeumannPhantom", "steps": 2, "damping": 1.0},
    "optimizer": {"name": "AdamW", "lr": 0.01},
    "epochs": 1,
    "batch_size": 4,
    "eval_batch_size": 4,
    "probes": 2,
}
KINDS = ("classes", "masks")
SMALL = ((24, 32), (40, 30), (16, 20))
"""Sizes of images where time matters."""

ENOUGH = 100
"""Images after which memory should have reached its peak."""


def separately(words: list[str]) -> int:
    """Run a command in a process of its own: one that has differentiated cannot be forked."""
    return subprocess.run([sys.executable, "-m", "equilibria", *words]).returncode


def runs(place: Path, train: Callable[[list[str]], int] = separately) -> dict[str, Path]:
    """Train a classifier and a network for segmentation with a function that runs commands."""
    masks = [(np.arange(32) > 10 + k) * np.ones((24, 1), np.uint8) for k in range(8)]
    images = (np.asarray(all_modes.noise(k, (24, 32))) for k in range(8))
    data = scenes(place / "scenes", zip(images, masks, strict=True), "left\nright\n")
    recipe = place / "masks.yaml"
    recipe.write_text(json.dumps(SEGMENTATION))
    words = {
        "classes": ["digits", "--epochs", "2", "--model.width", "16", "--probes", "2"],
        "masks": [str(recipe), "--data", str(data)],
    }
    for kind in KINDS:
        out = ["--out", str(place / f"run-{kind}"), "--quiet"]
        assert train(["train", *words[kind], *out]) == 0
    return {kind: place / f"run-{kind}" for kind in KINDS}


def words_of(run: Path, images: Path, out: Path) -> list[str]:
    """The command that predicts images."""
    return ["predict", str(run), str(images), "--out", str(out), "--quiet"]


def rows(out: Path) -> list[dict[str, Any]]:
    """The rows of a prediction."""
    lines = (out / "predictions.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def peak(status: str) -> int:
    """The peak of a process's resident memory in KB, from its /proc/PID/status."""
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def measure(place: Path, count: int) -> list[str]:
    """Predict images of all modes; print the peak of memory at image 100 and at the last."""
    wrong = list[str]()
    for kind, run in runs(place).items():
        images, out = place / f"images-{kind}", place / f"out-{kind}"
        small = tuple(size for size in all_modes.SIZES if max(size) < 150)
        sizes = {"classes": (*all_modes.SIZES, (900, 1200)), "masks": small}[kind]
        all_modes.write(images, count, sizes)
        seconds = time.monotonic()
        table = out / "predictions.jsonl"
        process = subprocess.Popen(
            [sys.executable, "-m", "equilibria", *words_of(run, images, out)],
            stdout=subprocess.DEVNULL,
        )
        status, early, at = Path(f"/proc/{process.pid}/status"), 0, 0
        last, done = 0, False
        while not done:
            done = process.poll() is not None
            with_rows = table.read_bytes().count(b"\n") if table.exists() else 0
            text = "" if done else status.read_text()
            if "VmHWM" in text:
                last = peak(text)
            if not early and with_rows >= ENOUGH:
                early, at = last, with_rows
            time.sleep(0.01)
        seconds = time.monotonic() - seconds
        growth = last / early - 1 if early else math.nan
        print(
            f"{kind}: peak memory {early / 1000:.1f} MB at image {at}, {last / 1000:.1f} MB at "
            f"image {count} ({100 * growth:+.1f} %), {seconds:.0f} s"
        )
        found = rows(out)
        if process.returncode or len(found) != count or any(row.get("error") for row in found):
            wrong.append(f"{kind}: status {process.returncode}, {len(found)} rows")
        if not growth <= 0.05:
            wrong.append(f"{kind}: memory grew by {100 * growth:.1f} %")
    return wrong


def pixels(path: Path) -> np.ndarray:
    """The classes that a mask has."""
    with Image.open(path) as image:
        assert image.mode == "P", f"{path} has mode {image.mode}"
        return np.asarray(image)


def compared(out: Path, whole: Path) -> str:
    """How a prediction differs from the one that nothing interrupted; nothing if it does not.

    Images may be in other batches, which changes a solve by rounding.
    """
    found, expected = rows(out), rows(whole)
    paths = [row["path"] for row in found]
    if paths != [row["path"] for row in expected]:
        missing = len({row["path"] for row in expected} - set(paths))
        return f"{len(paths)} rows, {len(set(paths))} images, {missing} missing, or another order"
    for row, other in zip(found, expected, strict=True):
        if row.keys() != other.keys() or row.get("error") != other.get("error"):
            return f"{row} in place of {other}"
        if "mask" in row:
            if row["mask"] != other["mask"]:
                return f"the mask {row['mask']} in place of {other['mask']}"
            new, old = pixels(out / row["mask"]), pixels(whole / other["mask"])
            if new.shape != old.shape or np.mean(new != old) > 0.02:
                return f"the mask {row['mask']} differs"
        if "probability" in row and abs(row["probability"] - other["probability"]) > 0.02:
            return f"{row} in place of {other}"
    left = [path.name for path in out.rglob("*.tmp")]
    files, usual = ({p.relative_to(o) for p in o.rglob("*.*")} for o in (out, whole))
    if left or files != usual:
        return f"files differ: {sorted(map(str, files ^ usual))[:5]}"
    if len((out / "predictions.csv").read_bytes()) == 0:
        return "the table is empty"
    return ""


def go(words: list[str]) -> None:
    """Predict, as a user would; an error raises."""
    with redirect_stdout(io.StringIO()):
        if status := command(words):
            raise RuntimeError(f"ended with {status}")


def finish(words: list[str], log: Path) -> str:
    """Continue a prediction until it ends; what is wrong with that, or nothing."""
    status = ended(child(lambda: go(words), log))
    return "" if status == 0 else f"continuing ended with {status}: {log.read_text()}"


def kill_randomly(place: Path, kills: int, seed: int, count: int = 60) -> list[str]:
    """Kill predictions at random times, some several times; return what went wrong."""
    draw, wrong, done, number = random.Random(seed), list[str](), 0, 0
    images, log = place / "images", place / "log"
    all_modes.write(images, count, SMALL)
    all_modes.broken(images / "broken")
    wholes: dict[str, tuple[Path, Path, float]] = {}
    for kind, run in runs(place).items():
        out, begin = place / f"whole-{kind}", time.monotonic()
        if problem := finish(words_of(run, images, out), log):
            return [f"{kind}: {problem}"]
        wholes[kind] = run, out, time.monotonic() - begin
    while done < kills:
        run, whole, seconds = wholes[kind := KINDS[number % 2]]
        out, number = place / f"{kind}-{number}", number + 1
        words = words_of(run, images, out)
        for _ in range(draw.randint(1, 4)):
            pid = child(lambda: go(words), log)  # noqa: B023 - runs at once
            time.sleep(draw.uniform(0, 0.9 * seconds))
            os.kill(pid, signal.SIGKILL)
            done += ended(pid) == -signal.SIGKILL
        if problem := finish(words, log) or compared(out, whole):
            wrong.append(f"{out.name}: {problem}")
        else:
            shutil.rmtree(out)
    print(f"{done} kills of {number} predictions: {len(wrong)} went wrong")
    return wrong


def at_events(place: Path, full: bool, every: int) -> list[str]:
    """Kill predictions of three images before every n-th of their file events, or fill the disk."""
    wrong, events = list[str](), 0
    images, log = place / "images", place / "log"
    all_modes.write(images, 2, SMALL)
    shutil.copy(all_modes.broken(place / "broken")[0], images)

    def act() -> None:
        if not full:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for kind, run in runs(place).items():
        whole = place / f"whole-{kind}"
        if problem := finish(words_of(run, images, whole), log):
            return [f"{kind}: {problem}"]
        for number in range(1, 1000, every):
            out = place / f"{kind}-{number}"
            words = words_of(run, images, out)

            def work() -> None:
                at_event(out, number, act, repeat=full)  # noqa: B023 - runs at once
                go(words)  # noqa: B023

            status = ended(child(work, log))
            if status == 0:
                break
            if full != (status > 0):
                wrong.append(f"{kind}, event {number} ended with {status}: {log.read_text()}")
            if problem := finish(words, log) or compared(out, whole):
                wrong.append(f"{kind}, event {number}: {problem}")
            shutil.rmtree(out)
            events += 1
    what = "the disk full from" if full else "a kill before"
    print(f"{what} {events} file events: {len(wrong)} went wrong")
    return wrong


def main(argv: list[str] | None = None) -> int:
    """Do what the words ask for, in a temporary folder; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("memory", "random", "events", "full"))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--every", type=int, default=1, help="n: before every n-th file event")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(place / "cache")
        trials: dict[str, Callable[[], list[str]]] = {
            "memory": lambda: measure(place, given.images),
            "random": lambda: kill_randomly(place, given.kills, given.seed),
            "events": lambda: at_events(place, False, given.every),
            "full": lambda: at_events(place, True, given.every),
        }
        wrong = trials[given.what]()
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
