"""The largest number of bytes that something allocates at one time."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from itertools import accumulate
from typing import Any, cast

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_bytes"]

CPU = torch.device("cpu")


def peak_bytes(step: Callable[[], object], device: torch.device = CPU) -> int:
    """Return the largest number of bytes that `step` has allocated at one time on a device."""
    gc.collect()  # memory allocated before and freed during the step would be miscounted
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    # Read when torch first profiles: two lines would be logged for each call.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    cpu = [ProfilerActivity.CPU]
    # Without acc_events some versions warn that there is only one cycle, which is all that is read.
    with profile(activities=cpu, profile_memory=True, acc_events=True) as profiler:
        step()
    # kineto_results has no underscore but no documentation either. The documented way to the same
    # numbers, export_chrome_trace, takes five times as long.
    results = cast(Any, profiler.profiler).kineto_results
    changes = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    changes.sort(key=lambda change: change[0])
    return max(accumulate((size for _, size in changes), initial=0))
