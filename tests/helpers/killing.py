"""Kills training runs at any moment, and finds out whether they are resumed as if it had not been.

    python tests/helpers/killing.py random --kills 200
    python tests/helpers/killing.py events
    python tests/helpers/killing.py full
    python tests/helpers/killing.py flips --flips 200
    python tests/helpers/killing.py pairs
    python tests/helpers/killing.py shares --kills 100

Each training is a forked child of this process, which has loaded everything and computes nothing
itself: autograd cannot be forked once it has been used. A file event is whatever Python's audit
hooks tell of opening, renaming, making and deleting in the run folder, and each flush to disk.
They name no path for what shutil.rmtree deletes inside a folder: such a deletion is one event.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.utils.tensorboard
from accelerate.state import AcceleratorState
from rich.console import Console
from safetensors.torch import load_file

import texts
from equilibria.run import recipe as recipes
from equilibria.run.checkpoint import CheckpointError
from equilibria.run.evaluation import accelerator
from equilibria.run.folder import Folder, RunError
from equilibria.run.loop import Interrupted, train
from equilibria.run.trainer import Trainer

DIGITS = ("--epochs", "3", "--checkpoint.every", "7", "--model.width", "16", "--probes", "8")
MDEQ = {
    "task.data": "digits",
    "task.size": "8",
    "epochs": "2",
    "epoch_steps": "6",
    "batch_size": "8",
    "solver.max_evals": "5",
    "checkpoint.every": "4",
    "probes": "4",
    "pretrain.name": "null",
}


def recipe_of(name: str, folder: Path) -> recipes.Recipe:
    """Return one of four recipes that train in seconds, with much that a checkpoint must hold."""
    if name == "digits":
        return recipes.load("digits", DIGITS)
    if name == "mdeq":
        return recipes.load("mdeq-images", [f"--{key}={value}" for key, value in MDEQ.items()])
    tree = json.loads(json.dumps(texts.LANGUAGE))
    tree["task"]["file"] = str(texts.write(folder / "text.txt"))
    tree["correction"] = {"name": "FixedPointCorrection"}
    if name == "lstm":
        for key in ("solver", "adjoint", "regularizer", "pretrain", "correction"):
            del tree[key]
        tree["model"] = {"name": "lstm", "width": 12, "hidden": 12}
    return recipes.parse(tree)


RECIPES = ("digits", "text", "lstm", "mdeq")


def preload(recipe: recipes.Recipe) -> None:
    """Import all that a training imports; nothing is differentiated."""
    Trainer(recipe, recipe.task.load(), accelerator(recipe.precision))


def go(recipe: recipes.Recipe, path: Path) -> None:
    """Start a run, or resume what is left of it, as a user would."""
    resume = Folder(path).recipe.exists()
    used = Folder(path).read_recipe() if resume else recipe
    train(used, path, resume=resume, console=Console(quiet=True))


def child(work: Callable[[], None], log: Path) -> int:
    """Run `work` in a forked child and return its process number."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        torch.set_num_threads(1)
        work()
        status = 0
    except Interrupted:
        status = 75
    except (RunError, CheckpointError) as error:
        log.write_text(f"{type(error).__name__}: {error}")
        status = 3
    except OSError as error:
        log.write_text(str(error))
        status = 4
    except BaseException:
        log.write_text(traceback.format_exc())
    finally:
        os._exit(status)


def ended(pid: int) -> int:
    """Wait for a child; its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def result(path: Path) -> dict[str, Any]:
    """Return everything that a run ends with, without times."""
    folder = Folder(path)
    records = folder.read_metrics()
    for record in records:
        del record["seconds"], record["throughput"]
    weights = {key: value.tolist() for key, value in load_file(folder.weights).items()}
    evaluation = json.loads(folder.evaluation.read_text())
    left = sorted(path.rglob("*.tmp"))
    return {"records": records, "weights": weights, "evaluation": evaluation, "left": left}


def finish(recipe: recipes.Recipe, path: Path, log: Path) -> str:
    """Resume a run until it ends; return what is wrong with that, or nothing."""
    status = ended(child(lambda: go(recipe, path), log))
    return "" if status == 0 else f"resuming ended with {status}: {log.read_text()}"


def compared(path: Path, whole: dict[str, Any]) -> str:
    """Return how a run differs from the one that nothing interrupted; nothing if it does not."""
    found = result(path)
    return ", ".join(key for key in whole if found[key] != whole[key])


def kill_randomly(place: Path, kills: int, seed: int) -> list[str]:
    """Kill runs of four recipes at random times, some several times; return what went wrong."""
    draw, wrong, done, number = random.Random(seed), [], 0, 0
    wholes: dict[str, tuple[recipes.Recipe, dict[str, Any], float]] = {}
    for name in RECIPES:
        recipe, path = recipe_of(name, place), place / f"whole-{name}"
        preload(recipe)
        begin = time.monotonic()
        if problem := finish(recipe, path, place / "log"):
            return [f"{name}: {problem}"]
        wholes[name] = recipe, result(path), time.monotonic() - begin
    while done < kills:
        name = RECIPES[number % len(RECIPES)]
        recipe, whole, seconds = wholes[name]
        path, number = place / f"{name}-{number}", number + 1
        for _ in range(draw.randint(1, 4)):
            pid = child(lambda: go(recipe, path), place / "log")  # noqa: B023 - runs at once
            time.sleep(draw.uniform(0, seconds))
            os.kill(pid, signal.SIGKILL)
            killed = ended(pid) == -signal.SIGKILL
            done += killed
        problem = finish(recipe, path, place / "log") or compared(path, whole)
        if problem:
            wrong.append(f"{path.name}: {problem}")
        else:
            shutil.rmtree(path)
    print(f"{done} kills of {number} runs of {len(RECIPES)} recipes: {len(wrong)} went wrong")
    return wrong


def at_event(path: Path, number: int, act: Callable[[], None], *, repeat: bool = False) -> None:
    """Let `act` happen before file event `number` of this process in a folder, or from then on."""
    count, inside = 0, os.path.realpath(path)

    def event() -> None:
        nonlocal count
        count += 1
        if count == number or (repeat and count > number):
            act()

    def hook(name: str, given: tuple[Any, ...]) -> None:
        if name in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"):
            about = given[0]
            reads = name == "open" and given[1] is not None and "r" in str(given[1])
            if isinstance(about, str | os.PathLike) and not reads:
                where = os.path.realpath(os.fspath(about))
                if where == inside or where.startswith(inside + os.sep):
                    event()

    flush = os.fsync

    def fsync(descriptor: int) -> None:
        event()
        flush(descriptor)

    os.fsync = fsync
    sys.addaudithook(hook)


def at_events(place: Path, full: bool, every: int) -> list[str]:
    """Kill a short run before every n-th of its file events, or fill the disk there.

    Returns:
        What went wrong.
    """
    recipe = recipes.load("digits", [*DIGITS, "--epochs", "2", "--epoch_steps", "3"])
    recipe = recipes.parse(recipes.dump(recipe), ["--checkpoint.every", "2"])
    preload(recipe)
    log, wrong, events = place / "log", [], 0
    if problem := finish(recipe, place / "whole", log):
        return [problem]
    whole = result(place / "whole")

    def act() -> None:
        if not full:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for number in itertools.count(1, every):
        path = place / f"event-{number}"

        def work() -> None:
            at_event(path, number, act, repeat=full)  # noqa: B023 - runs at once
            go(recipe, path)  # noqa: B023

        status = ended(child(work, log))
        if status == 0:
            break
        events += 1
        expected = 4 if full else -signal.SIGKILL
        said = log.read_text() if status > 0 else ""
        if status != expected or (full and "No space left" not in said):
            wrong.append(f"event {number} ended with {status}: {said}")
        problem = finish(recipe, path, log) or compared(path, whole)
        if problem:
            wrong.append(f"event {number}: {problem}")
        shutil.rmtree(path)
    what = "the disk full from" if full else "a kill before"
    print(f"{what} {events} file events: {len(wrong)} went wrong")
    return wrong


def flip_bits(place: Path, flips: int, seed: int) -> list[str]:
    """Flip single bits of a run's newest checkpoint and read it; return those accepted."""
    recipe, path = recipe_of("text", place), place / "run"
    preload(recipe)
    if problem := finish(recipe, path, place / "log"):
        return [problem]
    found = Folder(path).checkpoints
    newest, before = found.all()[:2]
    draw, wrong, parts = random.Random(seed), [], sorted(newest.iterdir())
    for _ in range(flips):
        part = draw.choices(parts, [each.stat().st_size for each in parts])[0]
        content = part.read_bytes()
        bit = draw.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        part.write_bytes(damaged)
        said: list[str] = []
        taken = found.newest(said.append)
        if taken is None or taken.path != before or str(newest) not in "".join(said):
            wrong.append(f"bit {bit} of {part.name} was accepted")
        part.write_bytes(content)
    print(f"{flips} flipped bits: {len(wrong)} accepted")
    return wrong


def resume_in_pairs(place: Path, pairs: int) -> list[str]:
    """Resume a stopped run by two processes at once; return the pairs of which not one ran."""
    recipe, wrong = recipe_of("digits", place), []
    preload(recipe)
    if problem := finish(recipe, place / "whole", place / "log"):
        return [problem]
    whole = result(place / "whole")
    for number in range(pairs):
        path = place / f"pair-{number}"

        def begun() -> None:
            train(recipe, path, console=Console(quiet=True), stop=lambda: True)  # noqa: B023

        if ended(child(begun, place / "log")) != 75:
            return [f"pair {number} did not begin"]
        logs = [place / f"log-{each}" for each in "ab"]
        pids = [child(lambda: go(recipe, path), log) for log in logs]  # noqa: B023
        statuses = sorted(ended(pid) for pid in pids)
        said = "".join(log.read_text() for log in logs if log.exists())
        if statuses != [0, 3] or "is being written by process" not in said:
            wrong.append(f"pair {number} ended with {statuses}: {said}")
        if problem := compared(path, whole):
            wrong.append(f"pair {number}: {problem}")
        for log in logs:
            log.unlink(missing_ok=True)
    print(f"{pairs} pairs of resumes: {len(wrong)} went wrong")
    return wrong


# --- two processes that share the parameters ------------------------------------------------------

SHARES = (
    *("--epochs", "2", "--epoch_steps", "3", "--probes", "8", "--model.width", "16"),
    *("--parallel", "fsdp", "--checkpoint.every", "1", "--batch_size", "256"),
)


def share(rank: int, port: int, recipe: recipes.Recipe, path: Path) -> None:
    """Be one of two processes that train together."""
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    AcceleratorState._reset_state(reset_partial_state=True)
    go(recipe, path)


def begun(recipe: recipes.Recipe, path: Path, log: Path) -> list[int]:
    """Start two processes; return their numbers."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    return [
        child(lambda: share(rank, port, recipe, path), log.with_name(f"{log.name}-{rank}"))  # noqa: B023
        for rank in range(2)
    ]


def launched(pid: int, seconds: float = 10.0) -> None:
    """Wait for a child as torchrun does for those that are left when one has died.

    One that has yet to meet the other would wait for half an hour.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def begun_saves(path: Path) -> set[Path]:
    """Return the checkpoints that are being written, or were when their writers died."""
    return set(path.glob("checkpoints/.*.tmp"))


def at_save(path: Path, after: float, until: float) -> None:
    """Wait until a checkpoint begins to be written after a time, or until another time."""
    before = begun_saves(path)
    while (now := time.monotonic()) < until and not (now > after and begun_saves(path) - before):
        time.sleep(0.0005)


def kill_shares(place: Path, kills: int, seed: int) -> list[str]:
    """Kill one of two processes, or both, at random times and in saves, in the background every
    other run; return what went wrong."""
    from equilibria.run import sharding, shares

    assert shares and sharding  # loaded, so that the children start at once
    draw, wrong, done, number, log = random.Random(seed), [], 0, 0, place / "log"
    wholes, inside, unread, differ = {}, 0, 0, 0
    for background in ("false", "true"):
        recipe = recipes.load("digits", [*SHARES, "--checkpoint.async", background])
        preload(replace(recipe, parallel="ddp"))
        path, start = place / f"whole-{background}", time.monotonic()
        if any(map(ended, begun(recipe, path, log))):
            return [f"a run failed: {(place / 'log-0').read_text()}"]
        wholes[background] = recipe, result(path), time.monotonic() - start
    while done < kills:
        background = ("false", "true")[number % 2]
        recipe, whole, seconds = wholes[background]
        path, number = place / f"run-{number}", number + 1
        for _ in range(draw.randint(1, 4)):
            pids = begun(recipe, path, log)
            start, before = time.monotonic(), begun_saves(path)
            after = start + draw.uniform(0, seconds)
            if draw.random() < 0.5:
                at_save(path, after, start + 1.5 * seconds)
                after = time.monotonic() + draw.uniform(0, 0.005)
            time.sleep(max(0.0, after - time.monotonic()))
            victims = draw.choice((pids[:1], pids[1:], pids))
            amid = bool(begun_saves(path) - before)
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            statuses = [ended(victim) for victim in victims]
            killed = -signal.SIGKILL in statuses
            done, inside = done + killed, inside + (killed and amid)
            for pid in set(pids) - set(victims):
                launched(pid)
        statuses = [ended(pid) for pid in begun(recipe, path, log)]
        said = [each.read_text() for each in place.glob("log-*")]
        problem = f"resuming ended with {statuses}: {said}" if any(statuses) else ""
        unread += bool(problem)
        if not problem and (problem := compared(path, whole)):
            differ += 1
        if problem:
            wrong.append(f"{path.name}: {problem}")
        else:
            shutil.rmtree(path)
        for each in place.glob("log-*"):
            each.unlink()
        print(
            f"{done} kills of {number} runs in shares, {inside} of them in a save: {unread} runs "
            f"not resumed, {differ} with another result",
            flush=True,
        )
    return wrong


def main(argv: list[str] | None = None) -> int:
    """Do what the words ask for, in a temporary folder; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("random", "events", "full", "flips", "pairs", "shares"))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--every", type=int, default=1, help="n: before every n-th file event")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(place / "cache")
        wrong = {
            "random": lambda: kill_randomly(place, given.kills, given.seed),
            "events": lambda: at_events(place, False, given.every),
            "full": lambda: at_events(place, True, given.every),
            "flips": lambda: flip_bits(place, given.flips, given.seed),
            "pairs": lambda: resume_in_pairs(place, given.pairs),
            "shares": lambda: kill_shares(place, given.kills, given.seed),
        }[given.what]()
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
