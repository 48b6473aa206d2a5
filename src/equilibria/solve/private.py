"""The private names of torch that this package needs, with a test each in test_private.py."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad, graph

_functorch: Any = torch._C._functorch  # pyright: ignore
_forward_ad: Any = forward_ad
_graph: Any = graph
_eval_frame: Any = torch._C._dynamo.eval_frame  # pyright: ignore

# Takes a compiler, by which the Python code that this thread runs from here on is compiled (None:
# not at all), and returns the one before. It stands without a wrapper, which would be compiled.
compile_frames_by: Callable[[Any], Any] = _eval_frame.set_eval_frame  # pyright: ignore


def transform_active() -> bool:
    """Inside torch.func.grad, vjp, jvp, vmap, ... ?"""
    return _functorch.peek_interpreter_stack() is not None


def differentiates() -> bool:
    """Is what is computed here followed: by autograd, a torch.func transform or forward mode?"""
    return torch.is_grad_enabled() or transform_active() or dual_level_active()


def differentiates_later() -> bool:
    """May a derivative of what is computed here be asked for when it has been computed?

    Forward mode is left out: its tangents are computed along with the values, and need no graph.
    """
    return torch.is_grad_enabled() or transform_active()


class _RunEagerly(threading.local):
    """How often this thread has asked for compiled functions to run uncompiled."""

    depth = 0

    def __enter__(self) -> None:
        _heed_threads()
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


_eager = _RunEagerly()
_heeding = threading.Lock()


def run_eagerly() -> AbstractContextManager[None]:
    """Compiled functions run uncompiled inside, in this thread alone, so that torch's modes see
    what they do."""
    return _eager


def running_eagerly() -> bool:
    return _eager.depth > 0


def _heed_threads() -> None:
    """Makes torch's compiler ask every time whether this thread wants compiled code.

    A function compiled by torch installs its compiler in the running thread whenever it is called,
    and asks `_callback_from_stance` whether to. `torch.compiler.set_stance`, which that function
    looks up, holds for all threads of the process at once. So a second question is put in front of
    it, once and for good: a change that came and went would be a race again.
    """
    module: Any = sys.modules.get("torch._dynamo.eval_frame")
    if module is None or getattr(module._callback_from_stance, "_heeds_threads", False):
        return  # nothing has been compiled, or this has been done
    with _heeding:
        by_stance: Any = module._callback_from_stance
        if getattr(by_stance, "_heeds_threads", False):
            return

        def by_thread(callback: Any) -> Any:
            if not _eager.depth:
                return by_stance(callback)
            _excuse_missing_frames()
            return None

        by_thread._heeds_threads = True  # pyright: ignore[reportFunctionMemberAccess]
        module._callback_from_stance = by_thread


def _excuse_missing_frames() -> None:
    """A function compiled with fullgraph=True raises where no frame of it was: counts one."""
    count: Any = getattr(_eval_frame, "set_fullgraph_compiled_frame_count", None)
    if count is not None and count(-1) >= 0:  # frames are counted
        count(1)  # which would not change a count that has begun


def for_many_backwards() -> AbstractContextManager[Any]:
    """What is compiled inside keeps its buffers, so that it can be differentiated many times.

    Nothing is done where torch keeps this setting for the whole process, as older versions do.
    """
    return _keep_buffers() if "torch._dynamo" in sys.modules else nullcontext()


@cache  # each of torch's patches leaves a context variable behind
def _keep_buffers() -> AbstractContextManager[Any]:
    from torch._functorch import config

    settings: Any = config
    entry = settings._config.get("donated_buffer")
    if not isinstance(getattr(entry, "user_override", None), ContextVar):
        return nullcontext()
    return settings.patch(donated_buffer=False)


def allow_more_backwards(outputs: Sequence[Tensor]) -> bool:
    """Corrects what torch notes of graphs compiled `for_many_backwards`; was there one?

    It notes None for the buffers that they give up, and asks later whether that is an empty list.
    """
    corrected = False
    for noted in _notes_of_compiled(outputs):
        if getattr(noted, "bw_donated_idxs", ()) is None:
            noted.bw_donated_idxs = []
            corrected = True
    return corrected


def made_by_compiled_code(outputs: Sequence[Tensor]) -> bool:
    """Is compiled code, which can be differentiated once, in the graph of these tensors?"""
    return any(True for _ in _notes_of_compiled(outputs))


def _notes_of_compiled(outputs: Sequence[Tensor]) -> Iterator[Any]:
    """What torch notes of each piece of compiled code in the graph of these tensors."""
    pending: list[Any] = [x.grad_fn for x in outputs]
    seen: set[Any] = {None}
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        pending.extend(child for child, _ in node.next_functions)
        function: Any = getattr(node, "_forward_cls", None)
        noted: Any = getattr(function, "metadata", None)
        if noted is not None:
            yield noted


def replays_buffers(compiler: Any) -> bool:
    """Does the compiler make CUDA graphs, whose next call overwrites what the last one returned?"""
    chain = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable")
    while inner := [getattr(compiler, name) for name in chain if hasattr(compiler, name)]:
        compiler = inner[0]
    options: Any = getattr(compiler, "config", None) or {}
    return bool(options.get("triton.cudagraphs")) or (
        getattr(compiler, "compiler_name", None) == "cudagraphs"
    )


def leave_uncompiled(code: CodeType) -> None:
    """Frames of this code are never compiled; those that they call may be."""
    if hasattr(_eval_frame, "set_code_exec_strategy"):
        action = _eval_frame._FrameAction
        _eval_frame.set_code_exec_strategy(
            code, _eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
        )
    else:  # torch 2.6
        _eval_frame.skip_code(code)


def exporting() -> bool:
    """Is this thread recorded by torch.export, which runs everything on tensors without numbers?

    `torch.compiler.is_compiling` speaks for the process: another thread may be the one.
    """
    faked: Any = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)  # pyright: ignore
    return faked is not None and torch.compiler.is_compiling()


def function_mode(kind: type) -> Any:
    """The innermost torch-function mode of a kind that this thread has entered; None where none is.

    Compiled code may ask as well: torch's compiler knows the modes that are entered around it.
    """
    for place in range(torch._C._len_torch_function_stack() - 1, -1, -1):  # pyright: ignore
        mode: Any = torch._C._get_function_stack_at(place)  # pyright: ignore
        if isinstance(mode, kind):
            return mode
    return None


def is_compiled(f: Any) -> bool:
    """Is f, a function or a module, or any part of the module, compiled?"""
    return any(map(is_compiled_itself, f.modules() if isinstance(f, torch.nn.Module) else (f,)))


def is_compiled_itself(part: Any) -> bool:
    """The same, of a function or a module without its parts."""
    return (
        getattr(part, "_compiled_call_impl", None) is not None
        or hasattr(part, "_torchdynamo_orig_callable")
        or hasattr(part, "_orig_mod")
    )


def is_wrapped(tensor: Tensor) -> bool:
    """Does the tensor belong to a level of a torch.func transform?"""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor))


def is_batched_gradient(tensor: Tensor) -> bool:
    """Is it a batch of gradients in one, as torch.autograd.grad(is_grads_batched=True) makes it?"""
    return bool(_functorch.is_legacy_batchedtensor(tensor))


def is_mapped(tensor: Tensor) -> bool:
    """Does the tensor have an axis hidden by torch.vmap, at any level?"""
    while is_wrapped(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def alive(tensor: Tensor) -> Tensor:
    """The tensor, out of the wrapper of a torch.func level that has ended.

    torch.func.vjp hands out a function that is called after its level has ended.
    """
    return _functorch.unwrap_if_dead(tensor)


def some(mask: Tensor) -> bool:
    """Is any entry true, over mapped axes too? Reads the device."""
    return bool(bare(mask).any())


def every(mask: Tensor) -> bool:
    """Are all entries true, over mapped axes too? Reads the device."""
    return bool(bare(mask).all())


def free_to_read(tensor: Tensor) -> bool:
    """Is the tensor in the host's memory, where a look at it waits for nothing?

    Never while code is compiled: a look would break the graph.
    """
    if torch.compiler.is_compiling():
        return False
    wrapped = _functorch.is_functorch_wrapped_tensor(tensor)
    return tensor.device.type == "cpu" and not wrapped


def known_zero(count: Tensor) -> bool:
    """Are all entries known to be zero? False on a device that would have to be waited for."""
    return free_to_read(count) and not count.any()


def bare(tensor: Tensor) -> Tensor:
    """The tensor under all wrappers of torch.func, its mapped axes in the open."""
    while is_wrapped(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def outside_transforms() -> AbstractContextManager[None]:
    """What is computed of bare tensors inside stays bare, inside a transform of torch.func too."""
    return torch._C._DisableFuncTorch()  # pyright: ignore


def dual_level_active() -> bool:
    """Inside forward-mode differentiation?"""
    return _forward_ad._current_level >= 0


def primal(tensor: Tensor) -> Tensor:
    """The tensor without the tangent of the innermost forward-mode level, and that one alone."""
    if not dual_level_active():
        return tensor
    if not transform_active():
        return _forward_ad.unpack_dual(tensor).primal
    # Under torch.func `unpack_dual` would strip the outer levels too. A tensor has its tangent of
    # a level on the wrapper of that level.
    level = _functorch.current_level()
    if not is_wrapped(tensor) or _functorch.maybe_get_level(tensor) != level:
        return tensor
    return _functorch._wrap_for_grad(_functorch._unwrap_for_grad(tensor, level), level)


def forward_mode() -> AbstractContextManager[None]:
    """Lets tangents of outer levels through: torch switches them off inside a jvp rule."""
    return _forward_ad._set_fwd_grad_enabled(True)


def has_tangent(tensor: Tensor) -> bool:
    return dual_level_active() and _forward_ad.unpack_dual(tensor).tangent is not None


def run_backward(
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    inputs: Sequence[Tensor | graph.GradientEdge],
    *,
    keep: bool,
    create: bool = False,
) -> Sequence[Tensor | None]:
    """torch.autograd.grad without the checks that it makes each time.

    They take as long as a small function's products.

    Args:
        cotangents: in the shapes and dtypes of the outputs.
        keep: the graph will be used again.
        create: the result can be differentiated.
    """
    return _graph._engine_run_backward(
        tuple(outputs), tuple(cotangents), keep, create, tuple(inputs), True, accumulate_grad=False
    )


def sequence_number(node: Any) -> int:
    """Counts up with every node that autograd makes; leaves have the largest number there is."""
    return node._sequence_nr()


def gathers_for_dataclasses() -> bool:
    """Does `fully_shard` find the tensors in dataclasses, as a `Solution` is one?

    It gathers parameters for a backward by hooks on the tensors that a unit returns; earlier
    versions look for them in tuples, lists and dictionaries alone.
    """
    from torch.distributed.fsdp import _common_utils

    return hasattr(_common_utils, "collect_grad_tensors")


def find_root(module: Any) -> None:
    """Tell `fully_shard` that a module is the root of its units, before any of them is called.

    It would take the unit that is called first for the root, and refuse all others thereafter.
    """
    module._get_fsdp_state()._lazy_init()


def read_sharding_policies(module: Any) -> list[Any]:
    """The `MixedPrecisionPolicy` of a unit of `fully_shard`, and that of its root, if another one
    has been called; of any other module none."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    if kind is None or not isinstance(module, kind):
        return []
    state: Any = module._get_fsdp_state()  # pyright: ignore
    root = getattr(state._state_ctx, "all_states", [])[:1]
    return [each._mp_policy for each in (state, *root)]
