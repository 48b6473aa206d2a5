"""f as it was when it was given: backward evaluates it again, long after.

Two things can have changed by then. `torch.func.functional_call` lends a module parameters and
takes them back when it returns; and a variable that a function closes over can have been assigned
anew, as a loop does to its variable.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from equilibria.solve.boundary import as_around


class HeldFunction(abc.ABC):
    """A function that keeps what it closes over as it is, for its later evaluations, by itself.

    Attributes:
        closes_over: the tensors, of which an evaluation may use some.
    """

    closes_over: Sequence[Tensor]
    __call__: Callable[..., Any]

    @abc.abstractmethod
    def held(self) -> AbstractContextManager[None]:
        """Inside, what the latest evaluation found stands where it found it: for a part of f that
        backward runs again, a checkpoint in it."""


def closed_over(f: Callable[..., Any]) -> Sequence[Tensor]:
    """The tensors that f is known to close over: a module's parameters, or what f declares."""
    if isinstance(f, nn.Module):
        return list(f.parameters())
    return f.closes_over if isinstance(f, HeldFunction) else ()


def held(f: Callable[..., Any]) -> AbstractContextManager[None]:
    """See `HeldFunction.held`; nothing for other functions."""
    return f.held() if isinstance(f, HeldFunction) else _NOTHING


_NOTHING = nullcontext()


def bind(f: Callable[..., Any]) -> Callable[..., Any]:
    """f with the parameters that its modules have been lent; it refuses to run on other variables.

    Modules are looked for in f itself, in the object that it is a method of, and in what functions
    close over.
    """
    if isinstance(f, HeldFunction):
        return f
    parts = list(_parts(f, set()))
    lent = [entry for part in parts if isinstance(part, nn.Module) for entry in _lent(part)]
    cells = [entry for part in parts if isinstance(part, FunctionType) for entry in _cells(part)]
    evaluate = as_around(f)
    if not lent and not cells:
        return evaluate

    def bound(*arguments: Any) -> Any:
        for name, cell, content in cells:
            if cell.cell_contents is not content:
                raise RuntimeError(
                    f"f closes over the variable '{name}', which has been assigned anew since f "
                    "was solved: backward would differentiate another function. Bind it, for "
                    f"example as a default argument ({name}={name}), or make f in a function of "
                    "its own"
                )
        before = [(store, name, store[name]) for store, name, _ in lent]
        for store, name, tensor in lent:
            store[name] = tensor
        try:
            return evaluate(*arguments)
        finally:
            for store, name, tensor in before:
                store[name] = tensor

    return bound


_PARTIAL: Any = partial
_CARRIERS: Any = (Tensor, nn.Module, FunctionType, MethodType, partial)


def _parts(f: Any, seen: set[int]) -> Iterator[Any]:
    """What f is made of: modules and functions."""
    if id(f) in seen:
        return
    seen.add(id(f))
    if isinstance(f, nn.Module):
        yield f
    elif isinstance(f, MethodType):
        yield from _parts(f.__self__, seen)
        yield from _parts(f.__func__, seen)
    elif isinstance(f, _PARTIAL):
        for part in (f.func, *f.args, *f.keywords.values()):
            yield from _parts(part, seen)
    elif isinstance(f, FunctionType):
        yield f
        for _, _, content in _cells(f):
            yield from _parts(content, seen)


def _cells(f: FunctionType) -> list[tuple[str, CellType, Any]]:
    """The variables that a function closes over and that can carry tensors."""
    found: list[tuple[str, CellType, Any]] = []
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
        try:
            content: Any = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if isinstance(content, _CARRIERS):
            found.append((name, cell, content))
    return found


def _lent(owner: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    for module in owner.modules():
        store: dict[str, Any] = module._parameters  # pyright: ignore[reportPrivateUsage]
        for name, tensor in store.items():
            if tensor is not None and not isinstance(tensor, nn.Parameter):
                yield store, name, tensor
