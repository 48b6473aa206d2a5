"""Modules that were lent other parameters.

`torch.func.functional_call` lends a module parameters and takes them back when it returns; backward
evaluates f later than that. Where f is a module, or a method of one, it keeps what it was lent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def keep_lent(f: Callable[..., Any]) -> Callable[..., Any]:
    """f as it is now: every call finds the parameters that its module has been lent."""
    owner = getattr(f, "__self__", f)
    if not isinstance(owner, nn.Module):
        return f
    lent: list[tuple[dict[str, Any], str, Tensor]] = []
    for module in owner.modules():
        store: dict[str, Any] = module._parameters  # pyright: ignore[reportPrivateUsage]
        for name, tensor in store.items():
            if tensor is not None and not isinstance(tensor, nn.Parameter):
                lent.append((store, name, tensor))
    if not lent:
        return f

    def kept(*arguments: Any) -> Any:
        before = [(store, name, store[name]) for store, name, _ in lent]
        for store, name, tensor in lent:
            store[name] = tensor
        try:
            return f(*arguments)
        finally:
            for store, name, tensor in before:
                store[name] = tensor

    return kept
