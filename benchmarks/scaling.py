"""Samples a second of two processes of one thread each, beside one process of one thread.

    python benchmarks/scaling.py [recipe] [rows] [rounds]

Every process takes steps of `rows` samples, so that two of them take twice as many a step, and
averages its gradients with the others over gloo. Rounds of one and of two processes alternate, each
in new processes; a round's figure is the median of its steps, and what is printed the median of the
rounds, with the smallest and the largest. Last: the share of the time that two processes waited for
the one with more evaluations, of what their ratio falls short of 2. The default recipe, `shapes`,
draws its data; it is trained without its shallow start and its penalty. The machine should have two
cores and nothing else to do.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time

STEPS, WARM = 12, 3
"""Steps of a round, and how many before them are not counted."""

OFF = ("--pretrain.name", "null", "--regulariser.name", "null", "--epochs", "1000")


def main(recipe: str, rows: int, rounds: int) -> None:
    """Run all rounds and print what they say."""
    found: dict[int, list[float]] = {1: [], 2: []}
    idle: list[float] = []
    for number in range(rounds):
        for processes in (1, 2):
            result = launched(recipe, rows, processes)
            found[processes].append(result["speed"])
            if processes == 2:
                idle.append(result["idle"])
        print(f"round {number + 1}: {found[1][-1]:.1f} and {found[2][-1]:.1f} samples/s")
    for processes, speeds in found.items():
        middle, low, high = statistics.median(speeds), min(speeds), max(speeds)
        print(f"{processes} x 1 thread: {middle:.1f} samples/s ({low:.1f} to {high:.1f})")
    ratios = [two / one for one, two in zip(found[1], found[2], strict=True)]
    print(
        f"{recipe}, {rows} samples a process: {statistics.median(ratios):.2f} times as many "
        f"({min(ratios):.2f} to {max(ratios):.2f}); {100 * statistics.median(idle):.1f} % idle by "
        "unequal evaluations"
    )


def launched(recipe: str, rows: int, processes: int) -> dict[str, float]:
    """What a round of so many processes says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank in range(processes):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes}
        environment = {
            **os.environ,
            **{name: str(number) for name, number in place.items()},
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
        }
        words = [sys.executable, __file__, "worker", recipe, str(rows)]
        started.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit("a process failed; its error is above")
    return json.loads(said[0].splitlines()[-1])


def worker(recipe: str, rows: int) -> None:
    """One process of a round; the first prints the samples a second of all."""
    import torch
    from accelerate.utils import gather_object

    from equilibria.train import evaluation
    from equilibria.train import recipe as recipes
    from equilibria.train.throughput import imbalance
    from equilibria.train.trainer import Trainer

    torch.set_num_threads(1)
    processes = int(os.environ["WORLD_SIZE"])
    config = recipes.load(recipe, [*OFF, "--batch_size", str(rows * processes)])
    accelerator = evaluation.accelerator("float32", "cpu")
    trainer = Trainer(config, config.task.load(), accelerator)
    seconds: list[float] = []
    for _ in range(WARM + STEPS):
        begin = time.perf_counter()
        trainer.train_step()
        seconds.append(time.perf_counter() - begin)
    works = gather_object([trainer.tally.work])
    if accelerator.is_main_process:
        step = statistics.median(seconds[WARM:])
        waited = imbalance(works)
        result = {"speed": rows * processes / step, "idle": waited[2] if waited else 0.0}
        print(json.dumps(result))
    accelerator.end_training()
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads may abort while the interpreter shuts down


if __name__ == "__main__":
    given = sys.argv[1:]
    if {"-h", "--help"} & set(given):
        print(__doc__)
    elif given[:1] == ["worker"]:
        worker(given[1], int(given[2]))
    else:
        recipe, rows, rounds = (*given, *("shapes", "8", "5")[len(given) :])
        main(recipe, int(rows), int(rounds))
