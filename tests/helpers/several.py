"""Processes of a test: one, or several that train together as torchrun would start them.

Each is forked from one process that has imported what a training needs and computed nothing yet:
an import of torch takes seconds, and autograd cannot be forked once it has been used.
"""

import multiprocessing
import multiprocessing.connection
import os
import socket
import sys

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule

from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main
from equilibria.run.evaluation import accelerator
from equilibria.run.trainer import Trainer

shards = pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reshard_after_forward"), reason="parallel: fsdp needs torch 2.8"
)
"""Marks tests that shard parameters."""

TIGHT = {
    "solver": {"name": "Anderson", "rtol": 1e-6, "max_evals": 80},
    "adjoint": {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-6}},
}
"""Solves after which only rounding is left between the ways to share out a training."""

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(
    [
        *("pytest", "sklearn.datasets", "sklearn.model_selection", "torch._dynamo"),
        *("torch.distributed.fsdp", "torch.utils.tensorboard", "equilibria.run.loop"),
        *("equilibria.run.sharding", "equilibria.run.shares", "equilibria.run.cli.train"),
    ]
)


def started(work, *given, out=None):
    """Start a process that calls work(*given) where this one is, with its environment variables.

    It has as many threads, and ends with what it returns; it prints to the connection `out`.
    """
    place = os.getcwd(), dict(os.environ), torch.get_num_threads()
    process = forks.Process(target=_begin, args=(place, out, work, given))
    process.start()
    if out is not None:
        out.close()
    return process


def _begin(place, out, work, given):
    folder, variables, threads = place
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    torch.set_num_threads(threads)
    if out is not None:
        for standard in (1, 2):
            os.dup2(out.fileno(), standard)
        out.close()
    sys.exit(work(*given))


def ended(work, *given):
    """Let a process call work(*given); how it ends."""
    process = started(work, *given)
    process.join()
    return process.exitcode


def signalled(number, step, words):
    """Run the command line `words`, a training that gets a signal at the beginning of a step."""
    usual = Trainer.train_step

    def changed(self):
        if self.step + 1 == step:
            os.kill(os.getpid(), number)
        usual(self)

    Trainer.train_step = changed
    return main(words)


def several(work, count, *given):
    """Call work(rank, *given) in `count` processes, for Accelerate those of torchrun.

    If one fails, the others are ended.
    """
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    processes = [started(_one, rank, work, count, port, given) for rank in range(count)]
    # Asked once: waiting for none, where the last has just ended, would never end.
    while (alive := [p.sentinel for p in processes if p.is_alive()]) and not any(
        p.exitcode for p in processes
    ):
        multiprocessing.connection.wait(alive)
    for each in processes:
        if any(p.exitcode for p in processes):
            each.terminate()
        each.join()
    assert [each.exitcode for each in processes] == [0] * count


def _one(rank, work, count, port, given):
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    work(rank, *given)
    if distributed.is_initialized():
        distributed.barrier()
    os._exit(0)  # Gloo's threads may abort while the interpreter shuts down


def trainer_of(tree, *options):
    """A trainer on the CPU, in the precision of its recipe, on whatever processes there are."""
    recipe = recipes.parse(tree, options)
    return Trainer(recipe, recipe.task.load(), accelerator(recipe.precision, "cpu"))
