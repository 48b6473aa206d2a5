"""What one forward of a layer holds fixed: parameters, normalised weights, dropout masks.

A fixed point exists only of one function. The function that a layer solves is evaluated many times,
and again inside backward, after anything may have happened to the layer: it was called again, in
another thread perhaps, its mode changed, `torch.func.functional_call` put its own parameters back.
A `Frozen` is made at the start of a forward and entered around every evaluation of the cell that
belongs to it. Which one is entered is known to the running thread alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from equilibria.solve import Closure, UserFunction, private

_active: ContextVar[Frozen | None] = ContextVar("equilibria_frozen", default=None)

# A parametrisation may write to its buffers in train mode, as torch's spectral_norm does.
_writing = threading.RLock()


class _Latest(threading.local):
    """The rows of this thread's latest evaluation."""

    rows: Tensor | None = None


class Frozen:
    """The tensors of one forward of a cell.

    A layer inside the cell of another makes its own while the outer one is entered. It then finds
    the outer one's weights and shares its masks, since to the outer solve it is part of one f.

    Args:
        cell: a module or a function.
        batch: number of samples of this forward, where evaluations name their rows; None otherwise.

    Attributes:
        cell: the function with the tensors that its modules hold now.
        parameters: of the cell as they are used: where a weight is parametrised, the weight.
    """

    def __init__(self, cell: Callable[..., Any], batch: int | None = None) -> None:
        outer = _active.get()
        self.batch = batch if outer is None or outer.batch is None else outer.batch
        self.cell = Closure(cell)
        self._outer = outer
        self._latest = _Latest()
        self._masks: dict[Hashable, Tensor | None] = {} if outer is None else outer._masks
        self.weights: dict[nn.Module, Tensor] = {}
        for module in self.cell.modules:
            if parametrize.is_parametrized(module):
                self._compute(module)
        inner = {id(x) for origin in self.weights for x in origin.parameters()}
        own = [x for x in self.cell.closes_over if id(x) not in inner]
        self.parameters: list[Tensor] = [*own, *self.weights.values()]

    def _compute(self, module: nn.Module) -> None:
        origins: Any = module.parametrizations
        for name, origin in origins.items():
            _make_readable(type(module), name)
            with _writing if module.training else nullcontext():
                self.weights[origin] = getattr(module, name)

    @staticmethod
    def active() -> Frozen | None:
        """The one whose evaluation is running in this thread, if any."""
        return _active.get()

    @property
    def rows(self) -> Tensor | None:
        """`(samples,)`, the place in the forward's batch of each sample that takes part in this
        thread's latest evaluation; None: all take part in order."""
        return self._latest.rows

    def weight(self, origin: nn.Module) -> Tensor | None:
        """What the forward has computed of a parametrised weight, by its list of parametrisations;
        None where the weight is none of the cell's."""
        held = self.weights.get(self.cell.replaced.get(origin, origin))
        return held if held is not None or self._outer is None else self._outer.weight(origin)

    def once(self, key: Hashable, make: Callable[[], Tensor | None]) -> Tensor | None:
        """Return the constant that `make` gave when this forward first asked for `key`."""
        frozen: Frozen | None = self
        while frozen is not None:  # a replica of a module has the constants of the module
            key = frozen.cell.replaced.get(key, key)
            frozen = frozen._outer
        if key not in self._masks:
            mask = make()  # without the wrappers of the transforms in which it was made
            self._masks[key] = None if mask is None else private.bare(mask)
        return self._masks[key]

    @contextmanager
    def evaluation(self, rows: Tensor | None = None) -> Generator[None]:
        """Inside, the cell has the weights and the masks of the forward; see `run`."""
        self._latest.rows = rows
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)

    def run(self, rows: Tensor | None, /, *arguments: Any, **keywords: Any) -> Any:
        """Evaluate the cell with everything as it was in the forward.

        Args:
            rows: (samples,) for each sample that takes part its place in the forward's batch; None
                if all take part in order.
        """
        self._latest.rows = rows
        token = _active.set(self)
        try:
            return self.cell(*arguments, **keywords)
        finally:
            _active.reset(token)


class _Holding(TorchFunctionMode):
    """A forward whose weights compiled code reads.

    Torch's compiler knows no context variables, but it knows the modes of the running thread: what
    it compiles inside takes the weights as inputs.
    """

    def __init__(self, frozen: Frozen) -> None:
        super().__init__()
        self.frozen = frozen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Evaluation(UserFunction):
    """A cell as the function that one forward solves: `Frozen` is entered whenever it is called.

    Args:
        cell: cell(z, *inputs, **keywords) -> z.
        rows: number the samples (batch,), where masks must follow them. The operand after the
            inputs is then the rows of the samples that take part.
        keywords: names of the operands after these.
    """

    def __init__(
        self, cell: Callable[..., Any], rows: Tensor | None, keywords: Sequence[str] = ()
    ) -> None:
        self.keywords = keywords
        self.follows_rows = rows is not None
        self.frozen = Frozen(cell, batch=None if rows is None else rows.shape[0])
        self.closes_over = self.frozen.parameters
        self.holds = bool(self.frozen.weights) and (
            self.frozen.cell.compiled_around or private.is_compiled(cell)
        )

    def __call__(self, z: Any, *operands: Any) -> Any:
        split = len(operands) - len(self.keywords)
        inputs, named = operands[:split], dict(zip(self.keywords, operands[split:], strict=True))
        rows = None
        if self.follows_rows:
            *inputs, rows = inputs
        with _Holding(self.frozen) if self.holds else nullcontext():
            return self.frozen.run(rows, z, *inputs, **named)

    def retire(self) -> None:
        self.frozen.cell.retire()

    @contextmanager
    def enter_evaluation(self) -> Generator[None]:
        with self.frozen.evaluation(self.frozen.rows):  # the latest evaluation's, when entered
            yield


def module_of(cell: Callable[..., Any]) -> nn.Module | None:
    """The module that holds a cell's weights: the cell, or the object of which it is a method."""
    owner = getattr(cell, "__self__", cell)
    return owner if isinstance(owner, nn.Module) else None


def walk_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts of a module by their paths, itself included; torch's method has no types."""
    return cast(Any, module).named_modules()


class _Readable(property):
    """A parametrised weight as an attribute: what the forward holds, else what torch computes."""


def _make_readable(kind: type[nn.Module], name: str) -> None:
    """Let a parametrised weight of a class of modules be read from the active `Frozen`.

    Torch gives every parametrised module a class of its own, which its copies share, with a
    property for each weight. It is replaced once and for good by one that looks for the running
    thread's `Frozen` first: nothing is swapped while a layer runs. It looks before torch's own
    cache, which goes by the identity of the module that was parametrised first and would hand a
    copy the weight of another one.
    """
    owner = next(base for base in kind.__mro__ if name in vars(base))
    attribute = vars(owner)[name]
    if isinstance(attribute, property) and not isinstance(attribute, _Readable):
        setattr(owner, name, _readable(name, attribute))


def _readable(name: str, computed: property) -> _Readable:
    assert computed.fget is not None
    compute = computed.fget

    def read(self: Any) -> Any:
        origin = self.parametrizations[name]
        holding = private.function_mode(_Holding)
        held = None if holding is None else holding.frozen.weight(origin)
        if held is None and (frozen := _active.get()) is not None:
            held = frozen.weight(origin)
        return compute(self) if held is None else held

    return _Readable(read, computed.fset, computed.fdel, computed.__doc__)
