"""f as it was when it was given: backward evaluates it again, long after.

By then its modules may hold other tensors. `torch.func.functional_call` lends a module parameters
and takes them back when it returns; parameters are frozen and thawed between a forward and its
backward. Nothing is written to the modules, which other threads may be using: f is evaluated on a
*replica*, the same modules with dictionaries of their own for parameters and buffers.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.boundary import as_around
from equilibria.solve.status import warn
from equilibria.solve.tree import REQUIRES_GRAD


class UserFunction(abc.ABC):
    """f, which stays the function that it was when it was given.

    Attributes:
        closes_over: the parameters and buffers of its modules, of which an evaluation may use some.
        caller: the function that it was given to, for messages.
        is_root: it is g of g(z) = 0, and z - g(z) is iterated.
        keywords: names of the last operands, which f takes by them.
    """

    closes_over: Sequence[Tensor]
    caller: str = "fixed_point"
    is_root: bool = False
    keywords: Sequence[str] = ()
    __call__: Callable[..., Any]

    def enter_evaluation(self) -> AbstractContextManager[None]:
        """The surroundings of the latest evaluation, for a part of f that backward runs again: a
        checkpoint in it."""
        return nullcontext()

    def retire(self) -> None:  # noqa: B027  (nothing to do where f holds no module)
        """The call that was given f returns: from now on its modules may change at any time, in
        other threads too."""


def close_over(f: Callable[..., Any]) -> UserFunction:
    """Return f as a `UserFunction`, with all tensors of its modules in `closes_over`.

    Modules are looked for in f itself, in the object that it is a method of, in what functions and
    partials hold, in callable objects, and in lists, tuples and dicts there. Other tensors are
    found when f is evaluated: see `capture`.
    """
    return f if isinstance(f, UserFunction) else Closure(f)


class Closure(UserFunction):
    """A Python function and what it holds.

    Attributes:
        modules: found in f, each with its sub-modules.
        replaced: replicas and the modules that they stand for, where there are any.
        compiled_around: f is compiled as the program around it is.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        self.modules: list[nn.Module] = []
        self.replaced: dict[Any, nn.Module] = {}
        self._evaluate = as_around(f)
        self.compiled_around = self._evaluate is not f
        self._variables: list[tuple[str, CellType, Any]] = []
        self._replica: Callable[..., Any] | None = None
        self._retired = False
        self._collect(f, set())
        self._held: list[tuple[dict[str, Any], str, Tensor]] = [
            (store, name, tensor)
            for module in self.modules
            for store in _stores(module)
            for name, tensor in store.items()
            if tensor is not None
        ]
        self.closes_over = list({id(tensor): tensor for _, _, tensor in self._held}.values())
        self._constants = [
            x for x in self.closes_over if not (x.requires_grad or private.is_wrapped(x))
        ]

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        for name, cell, content in self._variables:
            if cell.cell_contents is not content:
                raise RuntimeError(
                    f"f closes over the variable '{name}', which has been assigned anew since f "
                    "was solved: backward would differentiate another function. Bind it, for "
                    f"example as a default argument ({name}={name}), or make f in a function of "
                    "its own"
                )
        changed = self._retired and self._replicable
        for store, name, tensor in self._held:
            changed = changed or store.get(name) is not tensor
        # A constant of the forward is one of the backward. Reading `requires_grad` also shows the
        # tensor to a recorder, which sees nothing of what compiled code does with it.
        if not (changed or any(map(REQUIRES_GRAD, self._constants))):
            return self._evaluate(*arguments, **keywords)
        with private.run_eagerly():  # compiled code belongs to the modules themselves
            return self._as_given()(*arguments, **keywords)

    @override
    def retire(self) -> None:
        self._retired = True

    @cached_property
    def _replicable(self) -> bool:
        """Would replicas be as fast? Compiled code belongs to the modules themselves."""
        parts = (self.f, *self.modules)
        return not (self.compiled_around or any(map(private.is_compiled_itself, parts)))

    def _as_given(self) -> Callable[..., Any]:
        """f on replicas of its modules, which hold the tensors of then."""
        replica: Any = self._replica
        if replica is None:
            # Those still frozen as well: another thread may thaw them at any time.
            constants = {id(x): x.detach() for x in self._constants}
            tensors: dict[int, dict[str, Tensor]] = {}
            for store, name, tensor in self._held:
                tensors.setdefault(id(store), {})[name] = constants.get(id(tensor), tensor)
            replicas = _Replicas(tensors)
            replica = replicas.of(self.f)
            self.replaced.update(replicas.modules)
            self._replica = replica
        return replica

    def _collect(self, part: Any, seen: set[int]) -> None:
        """Notes the modules, and the variables that can carry tensors, in a part of f."""
        if id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, nn.Module):
            for module in part.modules():
                seen.add(id(module))
                if not isinstance(module, torch.jit.ScriptModule):  # whose tensors are not Python's
                    self.modules.append(module)
            return
        if isinstance(part, FunctionType):
            self._variables += _variables(part)
        for each in _parts(part):
            if _may_hold_modules(each):
                self._collect(each, seen)


_PARTIAL: Any = partial
_DICT: Any = dict
_TUPLE: Any = tuple
_CONTENTS: Any = (Tensor, nn.Module, FunctionType, MethodType, partial)
_SEVERAL: Any = (list, tuple)
_CARRIERS: Any = (nn.Module, FunctionType, MethodType, partial, list, tuple, dict)
_LIBRARIES = ("torch", "builtins", "functools")


def _stores(module: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return module._parameters, module._buffers


def _variables(f: FunctionType) -> list[tuple[str, CellType, Any]]:
    """The variables that a function closes over and that can carry tensors."""
    found: list[tuple[str, CellType, Any]] = []
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
        if _is_set(cell) and isinstance(content := cell.cell_contents, _CONTENTS):
            found.append((name, cell, content))
    return found


def _may_hold_modules(part: Any) -> bool:
    return isinstance(part, _CARRIERS) or _holds_attributes(part)


def _holds_attributes(part: Any) -> bool:
    """Is it an object that can be called, of a class that Python code outside of torch defines?"""
    return (
        callable(part)
        and hasattr(part, "__dict__")
        and not isinstance(part, (type, Tensor, nn.Module, FunctionType))
        and part.__class__.__module__.partition(".")[0] not in _LIBRARIES
    )


def _parts(part: Any) -> Iterable[Any]:
    """What a part of f holds that it may use in an evaluation."""
    if isinstance(part, FunctionType):
        if compiled := getattr(part, "_torchdynamo_orig_callable", None):
            return (compiled,)
        contents = [cell.cell_contents for cell in part.__closure__ or () if _is_set(cell)]
        return (*contents, *(part.__defaults__ or ()), *(part.__kwdefaults__ or {}).values())
    if isinstance(part, MethodType):
        owner = part.__self__
        inner = (owner,) if isinstance(owner, nn.Module) else _attributes(owner).values()
        return (*inner, part.__func__)
    if isinstance(part, _PARTIAL):
        return (part.func, *part.args, *part.keywords.values())
    if isinstance(part, _DICT):
        return part.values()
    if isinstance(part, _SEVERAL):
        return part
    return _attributes(part).values() if _holds_attributes(part) else ()


def _attributes(owner: Any) -> dict[str, Any]:
    return getattr(owner, "__dict__", {})


def _is_set(cell: CellType) -> bool:
    """Has the variable been assigned yet?"""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


class _Replicas:
    """Copies of functions and modules that share everything but the modules' tensors.

    Args:
        tensors: by the identity of a module's dictionary, what stands in its copy.

    Attributes:
        modules: the replicas, with the modules that they stand for.
    """

    def __init__(self, tensors: dict[int, dict[str, Tensor]]) -> None:
        self.modules: dict[nn.Module, nn.Module] = {}
        self._tensors = tensors
        self._made: dict[int, Any] = {}
        self._kept: list[Any] = []  # alive, for their identities are keys

    def of(self, part: Any) -> Any:
        if id(part) not in self._made:
            self._kept.append(part)
            self._made[id(part)] = part  # what it holds may hold it
            if isinstance(part, nn.Module):
                self._copy_module(part)
            elif self._reaches_module(part, set()):
                self._copy(part)
        return self._made[id(part)]

    def _copy_module(self, module: nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            return
        inner: Any = getattr(module, "_orig_mod", None)
        if isinstance(inner, nn.Module):  # compiled code would use the module itself
            self._made[id(module)] = self.of(inner)
            return
        replica: Any = object.__new__(type(module))
        self._made[id(module)] = replica
        self.modules[replica] = module
        attributes: dict[str, Any] = replica.__dict__
        attributes.update(module.__dict__)
        for name, store in zip(("_parameters", "_buffers"), _stores(module), strict=True):
            attributes[name] = store | self._tensors.get(id(store), {})
        attributes["_compiled_call_impl"] = None
        for name, value in module.__dict__.items():
            if name == "_modules":
                attributes[name] = {k: self.of(child) for k, child in value.items()}
            elif isinstance(value, _CARRIERS) and name not in ("_parameters", "_buffers"):
                attributes[name] = self.of(value)

    def _copy(self, part: Any) -> None:
        made = self._made
        if isinstance(part, FunctionType) and hasattr(part, "_torchdynamo_orig_callable"):
            made[id(part)] = self.of(getattr(part, "_torchdynamo_orig_callable"))  # noqa: B009
        elif isinstance(part, FunctionType):
            cells = tuple(CellType() for _ in part.__closure__ or ())
            f = FunctionType(part.__code__, part.__globals__, part.__name__, None, cells or None)
            f.__dict__.update(part.__dict__)
            made[id(part)] = f
            for new, old in zip(cells, part.__closure__ or (), strict=True):
                if _is_set(old):
                    new.cell_contents = self.of(old.cell_contents)
            f.__defaults__ = self._copy_all(part.__defaults__)
            f.__kwdefaults__ = self._copy_values(part.__kwdefaults__)
        elif isinstance(part, MethodType):
            owner = part.__self__
            if not isinstance(owner, nn.Module) and made.get(id(owner), owner) is owner:
                self._copy_attributes(owner)
            made[id(part)] = MethodType(self.of(part.__func__), self.of(owner))
        elif isinstance(part, _PARTIAL):
            keywords = self._copy_values(part.keywords)
            made[id(part)] = partial(self.of(part.func), *self._copy_all(part.args), **keywords)
        elif isinstance(part, _TUPLE):
            several = self._copy_all(part)
            made[id(part)] = type(part)(*several) if hasattr(part, "_fields") else several
        elif isinstance(part, (_DICT, *_SEVERAL)):
            new: Any = copy.copy(part)
            made[id(part)] = new
            for key in part if isinstance(part, _DICT) else range(len(part)):
                new[key] = self.of(part[key])
        else:
            self._copy_attributes(part)

    def _copy_attributes(self, part: Any) -> None:
        new: Any = object.__new__(part.__class__)
        self._made[id(part)] = new
        self._kept.append(part)
        new.__dict__.update(self._copy_values(_attributes(part)))

    def _copy_all(self, parts: Any) -> Any:
        return None if parts is None else tuple(self.of(each) for each in parts)

    def _copy_values(self, parts: Any) -> Any:
        return None if parts is None else {k: self.of(each) for k, each in parts.items()}

    def _reaches_module(self, part: Any, seen: set[int]) -> bool:
        if isinstance(part, nn.Module):
            return True
        if id(part) in seen or not _may_hold_modules(part):
            return False
        seen.add(id(part))
        return any(self._reaches_module(each, seen) for each in _parts(part))


def warn_of_unsteady(where: str, modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Warn once for each module that makes each evaluation of f another function.

    Args:
        where: of what the paths are, for the message.
        modules: with their paths. Those in eval mode are taken as frozen on purpose.
    """
    for path, module in modules:
        if advice := _advice(module):
            name = f"'{path}' " if path else "a module "
            warn(f"in {where}, {name}{advice}", UserWarning)


def _advice(module: nn.Module) -> str:
    """Say what is wrong with a module and what to use instead; nothing if it is fit for a cell."""
    name = f"({type(module).__name__})"
    hooks: Any = module._forward_pre_hooks  # pyright: ignore
    for hook in hooks.values():
        if isinstance(hook, SpectralNorm | WeightNorm):
            return (
                f"{name} computes its weight anew at each evaluation, through a hook of "
                "torch.nn.utils: use weight_norm or spectral_norm of equilibria.nn"
            )
    if isinstance(module, _BatchNorm):
        if not module.training and module.track_running_stats:
            return ""
        return (
            f"{name} depends on the other samples of the batch and changes at each evaluation: use "
            "GroupNorm or LayerNorm"
        )
    if not module.training:
        return ""
    if isinstance(module, _DropoutNd) and module.p > 0:
        return (
            f"{name} draws a new mask at each evaluation, so there is no fixed point: use "
            f"equilibria.nn.VariationalDropout({module.p}{_name_axes(module)})"
        )
    if isinstance(module, nn.RReLU):
        return f"{name} draws new slopes at each evaluation: use LeakyReLU"
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0:
        return (
            f"{name} draws a new dropout mask at each evaluation: build it with dropout=0 and put "
            "equilibria.nn.VariationalDropout behind it"
        )
    return ""


def _name_axes(module: _DropoutNd) -> str:
    """The argument that makes a variational dropout drop whole channels where `module` does."""
    kinds = ((nn.Dropout1d, "(2,)"), (nn.Dropout2d, "(2, 3)"), (nn.Dropout3d, "(2, 3, 4)"))
    return next((f", shared={axes}" for kind, axes in kinds if isinstance(module, kind)), "")
