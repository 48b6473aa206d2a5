"""What one forward of a layer holds fixed: parameters, normalised weights, dropout masks.

A fixed point exists only of one function. The function that a layer solves is evaluated many times,
and again inside backward, after anything may have happened to the layer: it was called again, its
mode changed, `torch.func.functional_call` put its own parameters back. A `Frozen` is made at the
start of a forward and entered around every evaluation of the cell that belongs to it.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

__all__ = ["Frozen"]

_active: ContextVar["Frozen | None"] = ContextVar("equilibria_frozen", default=None)


class Frozen:
    """The tensors of one forward of a cell.

    A layer inside the cell of another makes its own while the outer one is entered. It then finds
    the outer one's weights and shares its masks, since to the outer solve it is part of one f.

    Args:
        cell: a module, a method of one, or a function; of a function nothing is known and nothing
            is held but masks.
        batch: number of samples of this forward, where evaluations name their rows; None otherwise.
    """

    def __init__(self, cell: Callable[..., Any], batch: int | None = None) -> None:
        outer = _active.get()
        self.rows: Tensor | None = None
        self.batch = batch if outer is None or outer.batch is None else outer.batch
        self._masks: dict[Hashable, Tensor | None] = {} if outer is None else outer._masks
        self._tensors: list[tuple[dict[str, Any], str, Tensor]] = []
        self._weights: list[tuple[nn.Module, Tensor]] = []
        owner = module_of(cell)
        for module in owner.modules() if owner is not None else ():
            for store in (module._parameters, module._buffers):
                self._tensors += [(store, k, t) for k, t in store.items() if t is not None]
            if parametrize.is_parametrized(module):
                for name, origin in module.parametrizations.items():  # type: ignore[union-attr]
                    self._weights.append((origin, getattr(module, name)))

    @staticmethod
    def active() -> "Frozen | None":
        """The one whose evaluation is running in this thread, if any."""
        return _active.get()

    def once(self, key: Hashable, make: Callable[[], Tensor | None]) -> Tensor | None:
        """Return the constant that `make` gave when this forward first asked for `key`."""
        if key not in self._masks:
            self._masks[key] = _plain(make())
        return self._masks[key]

    @contextmanager
    def evaluation(self, rows: Tensor | None = None) -> Iterator[None]:
        """Run one evaluation of the cell with everything as it was in the forward.

        Args:
            rows: (samples,) for each sample that takes part its place in the forward's batch; None
                if all take part in order.
        """
        # functional_call lends a module other parameters until it returns; backward comes later.
        lent = [(store, k, store[k], t) for store, k, t in self._tensors if store[k] is not t]
        for store, name, _, tensor in lent:
            store[name] = tensor
        self.rows = rows
        token = _active.set(self)
        try:
            with _held(self._weights):
                yield
        finally:
            _active.reset(token)
            for store, name, before, _ in lent:
                store[name] = before


def module_of(cell: Callable[..., Any]) -> nn.Module | None:
    """The module that holds a cell's weights: the cell, or the object of which it is a method."""
    owner = getattr(cell, "__self__", cell)
    return owner if isinstance(owner, nn.Module) else None


def _plain(constant: Tensor | None) -> Tensor | None:
    """Take off the wrappers of the `torch.func` transforms in which a constant was made.

    The solver evaluates the cell outside of them too. Private names of torch: there is no public
    way to make a plain tensor inside a transform.
    """
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    while constant is not None and functorch.is_functorch_wrapped_tensor(constant):
        constant = functorch.get_unwrapped(constant)
    return constant


@contextmanager
def _held(weights: list[tuple[nn.Module, Tensor]]) -> Iterator[None]:
    """Let parametrised modules find these weights instead of computing them.

    A parametrised attribute is what its `ParametrizationList` returns when called; here it returns
    the weight that was computed. Torch's own cache is switched off meanwhile, a private name of
    torch, `_cache_enabled`: it goes by the identity of the module that was parametrised first, and
    hands a deep copy the weight of another one.
    """
    if not weights:
        yield
        return
    before = [(origin, origin.__dict__.get("forward")) for origin, _ in weights]
    enabled = parametrize._cache_enabled
    parametrize._cache_enabled = 0
    for origin, weight in weights:
        origin.__dict__["forward"] = _returning(weight)
    try:
        yield
    finally:
        parametrize._cache_enabled = enabled
        for origin, forward in before:
            if forward is None:
                del origin.__dict__["forward"]
            else:
                origin.__dict__["forward"] = forward


def _returning(weight: Tensor) -> Callable[[], Tensor]:
    return lambda: weight
