"""One of several processes that train together, and how fast they do.

It is started by `launch`, as a script, with a recipe and a number of rows.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time

import torch
from accelerate.utils import gather_object

from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.tally import imbalance
from equilibria.run.trainer import Trainer

STEPS, WARM = 30, 5
"""Steps that are timed, and how many before them are not."""

OPTIONS = ("--pretrain.name", "null", "--regulariser.name", "null", "--epochs", "1000")
"""Every step solves, and solves alone."""


def launch(recipe: str, rows: int, processes: int) -> dict[str, float]:
    """Train in new processes of one thread each, on the CPU.

    Args:
        recipe: its name.
        rows: of a step, on each process.
        processes: how many, which average their gradients over gloo.

    Returns:
        `speed`, in samples per second of all processes, the median over the steps; and `idle`, the
        share of the time that they waited for the one with the most evaluations, if all
        evaluations take equally long.

    Raises:
        RuntimeError: a process failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-P", __file__, recipe, str(rows)]
    started = []
    for rank in range(processes):
        own = {**shared, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": 1}
        environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
        started.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ended = [process.communicate() for process in started]
    for process, (_, error) in zip(started, ended, strict=True):
        if process.returncode:
            last = (error.strip() or "no message").splitlines()[-1]
            raise RuntimeError(f"{recipe} on {processes} processes failed: {last[:500]}")
    return json.loads(ended[0][0].splitlines()[-1])


def main(recipe: str, rows: int) -> None:
    """Take steps, and let the first process print how fast all were."""
    torch.set_num_threads(1)
    processes = int(os.environ["WORLD_SIZE"])
    config = recipes.load(recipe, [*OPTIONS, "--batch_size", str(rows * processes)])
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
    main(sys.argv[1], int(sys.argv[2]))
