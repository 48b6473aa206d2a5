"""Counting what a solve does: calls of f, operations beyond f, and reads by the host."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

# --- clock ----------------------------------------------------------------------------------------

# Time of calls that are compared with each other, on the CPU and on a GPU.


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the wall-clock time of one call, with all that it has asked of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def fit_rounds(rounds: int, within: float, each: float, fewest: int) -> int:
    """Return how many of the rounds fit into some seconds, `each` so long, but not below fewest."""
    return min(rounds, max(fewest, int(within / each))) if each else rounds


def interleave(
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


# --- count ----------------------------------------------------------------------------------------


# Views that their schema calls copies, and room that nothing is written into.
FREE = {
    *("aten::_unsafe_view", "aten::_reshape_alias", "aten::lift_fresh", "aten::detach"),
    *("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted"),
    *("aten::new_empty", "aten::new_empty_strided", "aten::resize_", "aten::set_"),
    *("aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset"),
    *("aten::is_same_size", "aten::_has_same_storage_numel", "aten::alias", "prim::device"),
}
# What the host must wait for: its result decides, there and then, how Python goes on.
READS = {
    *("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"),
    *("aten::allclose", "aten::nonzero", "aten::masked_select", "aten::_linalg_check_errors"),
    *("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::argwhere"),
}
# Methods that read a tensor's memory without an operation.
SILENT_READS = {Tensor.tolist, Tensor.numpy, Tensor.__array__}


@dataclass
class Calls:
    """A map f that counts its `calls`, `limit` at most, and the `samples` in them."""

    f: Callable[..., Tensor]
    limit: int
    calls: int = 0
    samples: int = 0

    def __call__(self, z: Tensor, *operands: Tensor) -> Tensor:
        """Return f(z), or raise `Spent`."""
        if self.calls >= self.limit:
            raise Spent(f"more than {self.limit} evaluations of f")
        self.calls += 1
        self.samples += z.shape[0]
        return self.f(z, *operands)


class Spent(RuntimeError):
    """A solver wanted more evaluations than it was given."""


@dataclass(frozen=True)
class Counts:
    """What happened in one solve outside of f.

    Attributes:
        between: operations that compute or copy, between each two successive calls of f.
        outside: those before the first call and after the last.
        reads: host reads of the whole solve.
    """

    between: Sequence[int]
    outside: int
    reads: int

    @property
    def per_evaluation(self) -> float | None:
        """The median between two calls; None where f was called once."""
        return statistics.median(self.between) if self.between else None


class _Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.depth = 0  # of calls of f
        self.reads = 0
        self.now = 0  # operations since f was last left

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.depth:
            name = func._schema.name
            self.reads += name in READS or _leaves_device(name, args, kwargs or {})
            self.now += computes(func)
        return func(*args, **(kwargs or {}))


class _Silent(TorchFunctionMode):
    def __init__(self, ops: _Ops) -> None:
        super().__init__()
        self.ops = ops

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SILENT_READS and not self.ops.depth:
            self.ops.reads += 1
        return func(*args, **(kwargs or {}))


def computes(func: Any) -> bool:
    """Does an ATen operation compute or copy? Views, room without content and reads do not."""
    schema = func._schema
    if schema.name in FREE or schema.name in READS:
        return schema.name in ("aten::equal", "aten::allclose", "aten::nonzero")
    aliases = [each.alias_info for each in schema.returns]
    return not aliases or any(alias is None or alias.is_write for alias in aliases)


def _leaves_device(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """A copy from an accelerator into the host's memory."""
    if name == "aten::_to_copy":
        device = kwargs.get("device") or args[0].device
        return torch.device(device).type == "cpu" != args[0].device.type
    if name == "aten::copy_":
        return args[0].device.type == "cpu" != args[1].device.type
    if name in ("aten::index", "aten::index_put_", "aten::index_put"):  # a mask asks for its size
        indices = pytree.tree_leaves(args[1])
        return any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)
    return False


def count(solve: Callable[[Callable[..., Tensor]], object], f: Callable[..., Tensor]) -> Counts:
    """Count the operations of `solve(f)` on the dispatcher, eagerly, f's own aside.

    Operations that compute or copy are counted, one each however much they do; views are free. A
    composite operation counts as the operations that it is made of.
    """
    ops = _Ops()
    gaps: list[int] = []

    def watch(*args: Tensor) -> Tensor:
        if not ops.depth:
            gaps.append(ops.now)
            ops.now = 0
        ops.depth += 1
        try:
            return f(*args)
        finally:
            ops.depth -= 1

    with _Silent(ops), ops:
        solve(watch)
    gaps.append(ops.now)
    first, *between, last = gaps if len(gaps) > 1 else (*gaps, 0)
    return Counts(between=between, outside=first + last, reads=ops.reads)
