"""What a layer refuses, what goes wrong where cell and state first meet, and the remedy."""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equilibria.nn.frozen import module_of, walk_modules
from equilibria.solve import Shared, Solution, flatten, private, unflatten
from equilibria.words import nearest, plural

# How torch and Python word it. A text that is not matched costs the remedy alone: the error itself
# is raised in any case.
OF_DTYPES = re.compile(r"dtype|scalar type|input type|float16|half", re.IGNORECASE)
OF_SHAPES = re.compile(
    r"shape|size|channel|dimension|unpack|indices|data type 'str'|where the state is", re.IGNORECASE
)


def raise_with_remedy(
    error: Exception,
    layer: Any,
    z0: Any,
    inputs: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    guessed: bool,
) -> None:
    """Raise what a solve has raised with its remedy, where one is known; else return.

    Args:
        error: of the solve.
        layer: a `DEQ`.
        z0: the start that the solve was given.
        inputs, keywords: of the cell.
        guessed: nobody has named a start: it is zeros like the first input.

    Raises:
        TypeError: the cell takes other arguments; its weights are below float32, outside of
            autocast.
        ValueError: the start was guessed, and its shapes or its structure are not the cell's.
    """
    message = str(error)
    # An error of a kind of its own is the cell's affair; those that name `operand` or `init=` have
    # said what to do, in this layer or in one within it.
    if type(error) not in (IndexError, RuntimeError, TypeError, ValueError):
        return
    if message.startswith("operand ") or "init=" in message:
        return
    if _is_raised_by_user(error):
        return
    cell: Callable[..., Any] = layer.cell
    if isinstance(error, TypeError) and (wrong := _wrong_call(layer, z0, inputs, keywords)):
        raise TypeError(wrong) from error
    leaves = [leaf for leaf in flatten(z0)[0] if isinstance(leaf, Tensor)]
    owner = module_of(cell)
    if owner is not None and leaves and OF_DTYPES.search(message):
        device = leaves[0].device.type
        low = next((p.dtype for p in owner.parameters() if _is_low(p)), None)
        if low is not None and not torch.is_autocast_enabled(device):
            raise TypeError(
                f"the cell has weights in {low} and the state is {leaves[0].dtype}, which a solve "
                "needs. Keep the model in float32 and call it under torch.autocast"
                f"({device!r}, {low}): then the cell alone is evaluated in {low}"
            ) from error
    if guessed and OF_SHAPES.search(message):
        raise ValueError(
            f"the cell failed on its state: {message}. No start was given, "
            f"so the state starts as zeros like the first input, {_shapes(z0)}. If the cell's "
            "state has another shape or is a tree, give the layer "
            "init=lambda x: torch.zeros(len(x), width), or the call z0="
        ) from error


def _is_raised_by_user(error: Exception) -> bool:
    """Was it raised by a `raise` statement outside of this package and of torch?"""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if (
        trace is None
        or trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES
    ):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


_LIBRARIES = ("torch", "equilibria")


def _wrong_call(layer: Any, z0: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """What is wrong with how a layer's cell is called, if something is."""
    cell = layer.cell
    if (signature := _signature(cell)) is None:
        return ""
    try:
        signature.bind(z0, *inputs, **keywords)
    except TypeError:
        count = plural(len(inputs), "input")
        count += "".join(f", {key}=" for key in keywords)
        names = ", ".join(["self, z", *(f"x{i}" for i in range(1, len(inputs) + 1)), *keywords])
        f = cell.forward if isinstance(cell, nn.Module) else cell
        name = getattr(f, "__qualname__", type(cell).__name__)
        remedy = f" Wrap it in a module with forward({names})"
        if strange := [key for key in keywords if key not in signature.parameters]:
            known = [*layer.options, *list(signature.parameters)[1:]]
            remedy = f" '{strange[0]}' is unknown{nearest(strange[0], known)}"
        return (
            f"the cell is called as cell(z, *inputs, **keywords), here with {count}; "
            f"{name}{signature} does not accept that.{remedy}"
        )
    return ""


def refuse_names(cell: Callable[..., Any], options: Sequence[str]) -> None:
    """Refuse a cell with a parameter to be given by name that the layer would take for its own.

    Raises:
        ValueError: one that is keyword-only or has a default has the name of one of `options`.
    """
    signature = _signature(cell)
    parameters = [] if signature is None else list(signature.parameters.values())[1:]
    for each in parameters:
        by_name = each.kind is each.KEYWORD_ONLY or each.default is not each.empty
        if by_name and each.name in options:
            raise ValueError(
                f"the cell has a parameter '{each.name}', and so has the call of the layer, which "
                "would not pass it on: give the cell's another name"
            )


def refuse_cast(layer: nn.Module) -> None:
    """Refuse a layer for which torch's `fully_shard` changes the precision of what it is given.

    The state of a solve is in float32 at least, and a copy of a solution does not hear of its
    backward solve.

    Raises:
        TypeError: the `mp_policy` of the layer, or of the module around it, casts parameters to
            less than float32, or casts outputs.
    """
    for policy in private.read_sharding_policies(layer):
        if policy.param_dtype in (torch.float16, torch.bfloat16):
            raise TypeError(
                f"the layer is sharded with mp_policy param_dtype={policy.param_dtype}, and a "
                "solve needs a float32 state, which such a cell does not take: leave param_dtype "
                "out, and call the model under torch.autocast, where the cell alone runs in less"
            )
        if policy.output_dtype is not None:
            raise TypeError(
                f"the layer is sharded with mp_policy output_dtype={policy.output_dtype}, for "
                "which fully_shard copies the solution that it returns: leave output_dtype out"
            )


def refuse_sharded(cell: nn.Module) -> None:
    """Refuse a cell whose parameters torch's `fully_shard` shards apart from the layer.

    Its hooks gather them at every evaluation and free them after it, while the solve and the
    backward evaluate as often as the data ask, on each process by its own: the processes would wait
    for each other forever, or backward would meet parameters without values.

    Raises:
        RuntimeError: a sub-module of the cell, or the cell, was given to `fully_shard`.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    if kind is None:
        return
    for path, module in walk_modules(cell):
        if isinstance(module, kind):
            place = f"'{path}' in the cell" if path else "the cell"
            raise RuntimeError(
                f"{place} is sharded by fully_shard, which gathers its parameters at every "
                "evaluation of the solve: call fully_shard on the DEQ layer, or on a module around "
                "it, and on nothing inside; then they are gathered once a solve"
            )


def check_parts(cell: Any, init: Any, both: bool) -> None:
    """Raise for a cell or an init that can't be called, or for options that exclude each other."""
    if not callable(cell):
        raise TypeError(f"cell must be a callable cell(z, *inputs) -> z, got {cell!r}")
    if init is not None and not callable(init):
        raise TypeError(
            f"init must be None or a callable of the inputs, got {type(init).__name__}; a "
            "start for one call is given to the call, as z0"
        )
    if both:
        raise ValueError(
            "drop_finished and coupled exclude each other: samples leave one by one "
            "or are solved as one"
        )


def check_warm(warm: Any, inputs: tuple[Any, ...]) -> None:
    if not isinstance(warm, Solution):
        raise TypeError(f"warm: expected an earlier Solution, got {type(warm).__name__}")
    before = next(x.shape[0] for x in flatten(warm.value)[0])
    for leaf in flatten(tuple(x for x in inputs if not isinstance(x, Shared)))[0]:
        if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] != before:
            raise ValueError(
                f"warm is a solution of {before} samples and the inputs have {leaf.shape[0]}: "
                "leave warm out for a batch of another size"
            )


def _signature(cell: Callable[..., Any]) -> inspect.Signature | None:
    """None of a function that is not Python's."""
    try:
        return inspect.signature(cell.forward if isinstance(cell, nn.Module) else cell)
    except (TypeError, ValueError):
        return None


def _is_low(parameter: Tensor) -> bool:
    return parameter.dtype in (torch.float16, torch.bfloat16)


def _shapes(z0: Any) -> Any:
    leaves, spec = flatten(z0)
    return unflatten([tuple(leaf.shape) for leaf in leaves], spec)
