"""What several processes must agree on, and what they say when one of them is gone."""

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
"""Words by which torch's backends say that a process no longer answers."""


class Elsewhere(RuntimeError):
    """Another process failed at what all of them do; the message is its own."""


class PeerLost(RuntimeError):
    """Another process ended or can't be reached: the run stops, with nothing collective tried."""

    local = True
    """Each process says so for itself: the first may be the one that is gone."""


def meet_again(backend: str) -> None:
    """Form the group of processes that torchrun has started again, before Accelerate would.

    torchrun keeps one meeting place for all its starts (torch issue 135712), where a process may
    find the address of one that has died. On one machine the number of the start tells them apart.
    On several it need not be the same; there TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 helps.

    Args:
        backend: of the group.
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
    """Let a block fail on all processes if it fails on one, so that none waits for another.

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
    """Let a block that fails on one process end on all others with its message.

    It leaves word at the meeting place of the processes, which torchrun keeps. The others hear of
    it once they find that the process is gone, as `reachable` inside the block tells.

    Raises:
        Elsewhere: it failed on another process, which has left word.
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
        if board is not None and not hasattr(error, "exit_status"):  # which is no failure
            ours = type(error).__module__.startswith("equilibria.")
            text = " ".join(str(error).split())
            said = text if ours else f"{type(error).__name__}: {text}"
            with suppress(Exception):  # it is the error that counts
                board.compare_set(WORD, "", f"process {accelerator.process_index}: {said}")
        raise


WORD = "failed"
"""Where the process that fails first leaves word."""

SOON = timedelta(seconds=5)
"""How long the meeting place is given to answer."""


def _board() -> Any:
    """The meeting place of the processes of this start; None where it cannot be reached."""
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
    """What the process that failed first has said; None where it said nothing."""
    try:
        return board.get(WORD).decode() if board is not None and board.check([WORD]) else None
    except RuntimeError:  # the meeting place is gone with its process
        return None


@contextmanager
def reachable(accelerator: Accelerator, advice: str = "") -> Iterator[None]:
    """Turn what torch raises in a block when another process is gone into PeerLost.

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
        reason = re.sub(r"^\[[^]]*\] *", "", text).partition(". ")[0][:120]  # without C++'s place
        raise PeerLost(
            f"another process ended or can't be reached ({reason}), so training stops here{advice}"
        ) from error
