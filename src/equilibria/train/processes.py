"""What several processes must agree on, and what they say when one of them is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

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
