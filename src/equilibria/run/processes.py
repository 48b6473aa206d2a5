"""Agreement between processes, and error messages when one of them fails or is lost."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import distributed

# --- device ---------------------------------------------------------------------------------------

# The device to work on, by the name that a user gives it.


class DeviceError(RuntimeError):
    """There is no such device, or the solvers cannot use it; the message says what there is."""


def device(name: str | None = None) -> torch.device:
    """Return the device that `name` means.

    Args:
        name: cpu, cuda or cuda:N; None for a GPU where there is one, else the CPU.

    Raises:
        DeviceError: there is no such device here, it is neither a CPU nor a CUDA device, or `name`
            numbers a GPU where a launcher gives each process its own.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"'{name}' is not a device: {_there()}") from None
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        reason = ", and mps has no float64" if found.type == "mps" else ""
        raise DeviceError(f"the solvers need cpu or cuda{reason}; got {name}: {_there()}")
    if not torch.cuda.is_available():
        built = "" if torch.backends.cuda.is_built() else " (this torch is built without CUDA)"
        raise DeviceError(f"torch finds no GPU for {name}{built}: {_there()}")
    if found.index is not None and found.index >= torch.cuda.device_count():
        raise DeviceError(f"there is no {name}: {_there()}")
    if found.index is not None and processes() > 1:
        raise DeviceError(
            f"{name} is one GPU, and each of {processes()} processes takes one of its own: ask for "
            "cuda, and choose the GPUs with CUDA_VISIBLE_DEVICES"
        )
    return found


def processes() -> int:
    """Return how many processes a launcher has started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _there() -> str:
    """What can be asked for here."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"choose from {', '.join(['cpu', *(f'cuda:{n}' for n in range(count))])}"


# --- processes ------------------------------------------------------------------------------------


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
def agree(accelerator: Accelerator) -> Iterator[None]:
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
    return total_over(accelerator, float(flag))[0] > 0


def total_over(accelerator: Accelerator, *values: float) -> Sequence[float]:
    """Return the sums of some numbers over all processes."""
    if accelerator.num_processes == 1:
        return values
    own = torch.tensor(values, dtype=torch.float64, device=accelerator.device)
    total: Any = accelerator.reduce(own, "sum")
    return total.tolist()


@contextmanager
def share_errors(accelerator: Accelerator) -> Iterator[None]:
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


# --- randomness -----------------------------------------------------------------------------------

# The global random generators of a process.


CUDA = torch.cuda.is_available()


def seed_all(seed: int) -> None:
    """Seed all global random generators."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Return the state of all global random generators of this process, in plain numbers."""
    _, keys, position, has_gauss, gauss = numpy.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state().tolist(),
        "cuda": torch.cuda.get_rng_state().tolist() if CUDA else [],  # of this process's device
        "numpy": [numpy.asarray(keys).tolist(), position, has_gauss, gauss],
        "python": [version, list(internal), gauss_next],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore all global random generators of this process to a state from `random_state`."""
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    if state["cuda"] and CUDA:
        torch.cuda.set_rng_state(torch.tensor(state["cuda"], dtype=torch.uint8))
    keys, position, has_gauss, gauss = state["numpy"]
    numpy.random.set_state(("MT19937", keys, position, has_gauss, gauss))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Leave all global random generators after a block as they were before it."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


def state_of_seed(seed: int) -> dict[str, Any]:
    """Return the state of all global random generators just after `seed_all`; change nothing."""
    with keep_random_state():
        seed_all(seed)
        return random_state()
