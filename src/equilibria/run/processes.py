"""Agreement between processes, and error messages when one of them fails or is lost."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import distributed

UNREACHABLE = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|gloo|nccl|socket|rendezvous", re.I
)
"""Words in the errors of torch's backends when a process no longer responds."""


class Elsewhere(RuntimeError):
    """Another process failed; the message is the one it gave."""


class PeerLost(RuntimeError):
    """Another process exited or can't be reached: the run stops without further communication."""

    local = True
    """Every process reports it, since the first may be the one that is lost."""


def meet_again(backend: str) -> None:
    """Form the process group after a restart by torchrun, before Accelerate would.

    torchrun keeps one store across restarts (torch issue 135712), in which a process may find the
    address of one that has died. On one machine the restart count tells them apart. On several
    machines it may differ; there, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.

    Args:
        backend: of the process group.
    """
    known = os.environ.get
    count, shared = int(known("TORCHELASTIC_RESTART_COUNT", "0")), "TORCHELASTIC_USE_AGENT_STORE"
    if not count or known(shared) != "True" or known("GROUP_WORLD_SIZE") != "1":
        return
    if distributed.is_initialized():
        return
    stores: Any = distributed
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = stores.PrefixStore(f"start-{count}", stores.TCPStore(place, port, is_master=False))
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)


@contextmanager
def agreed(accelerator: Accelerator) -> Iterator[None]:
    """Make a block fail on all processes if it fails on any, so that none waits for another.

    The block itself must not communicate.

    Raises:
        Elsewhere: it failed on another process only.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    if accelerator.num_processes > 1:
        said = None if error is None else f"process {accelerator.process_index}: {error}"
        others = [each for each in gather_object([said]) if each is not None]
        if error is None and others:
            raise Elsewhere(others[0])
    if error is not None:
        raise error


def any_of(accelerator: Accelerator, flag: bool) -> bool:
    """Return whether `flag` is true on any process; the same on all of them."""
    if accelerator.num_processes == 1:
        return flag
    own = torch.tensor(float(flag), device=accelerator.device)
    total: Any = accelerator.reduce(own, "sum")
    return bool(total > 0)


@contextmanager
def told(accelerator: Accelerator) -> Iterator[None]:
    """Make a block that fails on one process fail on all others with the same message.

    The failing process leaves its message in torchrun's store. The others read it once they find
    that the process is gone, by `reachable` inside the block.

    Raises:
        Elsewhere: it failed on another process, which left a message.
    """
    board = None if accelerator.num_processes == 1 else _board()
    try:
        yield
    except Elsewhere:
        raise
    except PeerLost as error:
        if (said := _read(board)) is not None:
            raise Elsewhere(said) from error
        raise
    except Exception as error:
        if board is not None and not hasattr(error, "exit_status"):  # which is not a failure
            ours = type(error).__module__.startswith("equilibria.")
            text = " ".join(str(error).split())
            said = text if ours else f"{type(error).__name__}: {text}"
            with suppress(Exception):  # the original error matters more
                board.compare_set(WORD, "", f"process {accelerator.process_index}: {said}")
        raise


WORD = "failed"
"""Key of the message of the process that fails first."""

SOON = timedelta(seconds=5)
"""Timeout for connecting to the store."""


def _board() -> Any:
    """Return the processes' store for this restart; None if it cannot be reached."""
    stores: Any = distributed
    place, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not place or not port:
        return None
    try:
        store = stores.TCPStore(
            place, int(port), is_master=False, timeout=SOON, wait_for_workers=False
        )
        count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return stores.PrefixStore(f"equilibria/{count}", store)
    except (RuntimeError, ValueError):
        return None


def _read(board: Any) -> str | None:
    """Return the message of the process that failed first; None if it left none."""
    try:
        return board.get(WORD).decode() if board is not None and board.check([WORD]) else None
    except RuntimeError:  # the store is gone with its process
        return None


@contextmanager
def reachable(accelerator: Accelerator, advice: str = "") -> Iterator[None]:
    """Convert the errors that torch raises in a block when another process is gone to PeerLost.

    Args:
        accelerator: of this process.
        advice: what to do, for the message.
    """
    try:
        yield
    except RuntimeError as error:
        ours = type(error).__module__.startswith("equilibria.")
        if accelerator.num_processes == 1 or ours or not UNREACHABLE.search(str(error)):
            raise
        text = " ".join(str(error).split())
        reason = re.sub(r"^\[[^]]*\] *", "", text).partition(". ")[0][
            :120
        ]  # without the C++ source location
        raise PeerLost(
            f"another process exited or can't be reached ({reason}), so training stops here{advice}"
        ) from error
