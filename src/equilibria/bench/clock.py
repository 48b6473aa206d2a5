"""Time and memory of a call, on the CPU and on a GPU."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from equilibria.train.memory import peak_bytes as _peak_on_cpu

__all__ = ["interleaved", "median", "peak_bytes", "seconds"]

median = statistics.median


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Wall clock of one call, with all that it has asked of the device."""
    _synchronise(device)
    start = time.perf_counter()
    call()
    _synchronise(device)
    return time.perf_counter() - start


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection inside, so that none falls on one contestant by chance."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    turns: int,
    few: Mapping[str, int] | None = None,
) -> dict[str, float]:
    """Median seconds of each call. All take a turn before any takes the next, so that what
    disturbs the machine disturbs all of them; who goes first changes from turn to turn.

    Args:
        calls: by name; already warm.
        turns: of each.
        few: names that take fewer turns, spread evenly over the others'.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    with _uncollected():
        for turn in range(turns):
            shift = turn % max(1, len(names))
            for name in names[shift:] + names[:shift]:
                own = min(turns, (few or {}).get(name, turns))
                if (turn + 1) * own // turns > turn * own // turns:
                    taken[name].append(seconds(calls[name], device))
    return {name: statistics.median(times) for name, times in taken.items() if times}


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """The largest number of bytes that the call has allocated at one time."""
    if device.type != "cuda":
        return _peak_on_cpu(call)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
