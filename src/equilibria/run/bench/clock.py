"""Time of calls that are compared with each other, on the CPU and on a GPU."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

__all__ = ["fitting", "interleaved", "seconds"]


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the wall-clock time of one call, with all that it has asked of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def fitting(rounds: int, within: float, each: float, fewest: int) -> int:
    """Return how many of the rounds fit into some seconds, `each` so long, but not below fewest."""
    return min(rounds, max(fewest, int(within / each))) if each else rounds


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    rounds: int,
    few: Mapping[str, int] | None = None,
    statistic: Callable[[Sequence[float]], float] = statistics.median,
) -> dict[str, float]:
    """Return the seconds that each call takes, the median over the rounds.

    In a round each call is made once, so that what disturbs the machine disturbs all of them; which
    one is first changes from round to round. Garbage is not collected meanwhile: it would fall on
    one of them by chance.

    Args:
        calls: by name; already warm.
        device: that they compute on.
        rounds: of all calls.
        few: names that take part in so many rounds only, spread evenly over all.
        statistic: of the times of a call.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for number in range(rounds):
            shift = number % max(1, len(names))
            for name in names[shift:] + names[:shift]:
                own = min(rounds, (few or {}).get(name, rounds))
                if (number + 1) * own // rounds > number * own // rounds:
                    taken[name].append(seconds(calls[name], device))
    finally:
        if enabled:
            gc.enable()
    return {name: statistic(times) for name, times in taken.items() if times}
