"""Several processes that train together, as torchrun would start them, in one test."""

import os
import socket

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.multiprocessing.spawn import spawn

shards = pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reshard_after_forward"), reason="parallel: fsdp needs torch 2.8"
)
"""Marks tests that shard parameters."""


def several(work, count, *given):
    """Call work(rank, *given) in `count` processes, for Accelerate those of torchrun."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    spawn(_one, (work, count, port, given), nprocs=count)


def _one(rank, work, count, port, given):
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    work(rank, *given)
    if distributed.is_initialized():
        distributed.barrier()
    os._exit(0)  # Gloo's threads may abort while the interpreter shuts down
