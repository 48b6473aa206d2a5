"""The device to work on, by the name that a user gives it."""

from __future__ import annotations

import os

import torch


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
