"""The boundary between a program that torch compiles and a solve inside it.

A solve is a loop that ends when its numbers say so; torch's compiler breaks its graph before it and
resumes after it. Inside, this package's code runs as it is, and f alone is compiled, by the
compiler of the program around.

f runs in the autocast regions that it was first called in; solvers run outside of any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from equilibria.solve import private

P = ParamSpec("P")
R = TypeVar("R")

NO_WHOLE_GRAPH = (
    "a fixed point is solved by a loop whose length depends on the data, which no single graph "
    "holds: compile the model without fullgraph=True. To export it, export "
    "equilibria.run.export.exportable(model, evals=30), in which each DEQ evaluates its cell that "
    "many times; put a call of fixed_point into a DEQ first"
)


class _Around(threading.local):
    """The compiler of the program around the boundary that was crossed last in this thread."""

    callback: Any = None


_around = _Around()


def boundary(function: Callable[P, R]) -> Callable[P, R]:
    """The function as one that torch.compile calls and does not look into.

    As `torch.compiler.disable` does it, without its import of the compiler, which takes longer than
    many programs that compile nothing; and it remembers whose compiler was switched off, for
    `as_around`.

    Raises:
        RuntimeError: called under torch.export or torch.jit.trace.
    """

    @wraps(function)
    def call_uncompiled(*args: P.args, **kwargs: P.kwargs) -> R:
        callback = private.compile_frames_by(None)
        outer, _around.callback = _around.callback, callback
        try:
            if private.exporting() or torch.jit.is_tracing():  # pyright: ignore
                raise RuntimeError(NO_WHOLE_GRAPH)
            return function(*args, **kwargs)
        finally:
            _around.callback = outer
            private.compile_frames_by(callback)

    marked: Any = call_uncompiled
    private.leave_uncompiled(marked.__code__)
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = NO_WHOLE_GRAPH
    return call_uncompiled


def as_around(f: Callable[..., Any]) -> Callable[..., Any]:
    """f, which is compiled when it is called, by the compiler of the program around the boundary.

    f itself is returned if that program is not compiled, or if its compiler makes CUDA graphs.
    Their next call overwrites what the last one returned, and a solver still needs that.
    """
    callback = _around.callback
    if not callback or private.replays_buffers(callback):
        return f

    def call_compiled(*arguments: Any, **keywords: Any) -> Any:
        before = private.compile_frames_by(None if private.running_eagerly() else callback)
        try:
            return f(*arguments, **keywords)
        finally:
            private.compile_frames_by(before)

    private.leave_uncompiled(call_compiled.__code__)
    return call_compiled


@dataclass(frozen=True)
class AutocastRegion:
    """The autocast setting of one device type, as f met it."""

    device: str
    dtype: torch.dtype
    enabled: bool

    @property
    def floor(self) -> float:
        """The relative residual that f's rounding leaves: half of its machine epsilon; 0 where f
        computes in the state's dtype."""
        reduced = self.enabled and self.dtype.itemsize < 4
        return 0.5 * torch.finfo(self.dtype).eps if reduced else 0.0

    @classmethod
    def current(cls, device: str) -> AutocastRegion:
        if device == "meta":  # which autocast does not know: its tensors have no numbers
            device = "cpu"
        return cls(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Nothing in the block is cast, where half precision would leave too few digits: in a solver's
    own arithmetic, say.

    Args:
        device: type of the tensors' device.
    """
    if device == "meta" or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def is_current(region: AutocastRegion) -> bool:
    """Is nothing cast, here and in the region?"""
    return not (region.enabled or torch.is_autocast_enabled(region.device))


def enter_region(region: AutocastRegion) -> AbstractContextManager[Any]:
    """Evaluates f in its region, wherever that is: inside backward, say.

    Without autocast's cache of cast weights: it keeps a cast made under no_grad, and a weight read
    from it later would have no gradient.
    """
    if is_current(region):
        return nullcontext()
    return torch.autocast(region.device, region.dtype, region.enabled, cache_enabled=False)
