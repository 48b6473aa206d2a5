"""A trained model as a function of tensors: raw inputs in, logits out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from equilibria.nn import DEQ
from equilibria.run.export.iterated import Iterated, Method
from equilibria.run.export.program import ExportError
from equilibria.run.models import Model
from equilibria.run.tasks import Task
from equilibria.run.tasks.base import SampleTask, check_split
from equilibria.run.tasks.feed import Indexed, PreparedSamples

# --- inputs ---------------------------------------------------------------------------------------

# The inputs of a task as they were before it prepared them, and what it does to them.


class PairedBatch(NamedTuple):
    """A batch twice: for the exported file, and for the model."""

    raw: tuple[Tensor, ...]
    """Inputs of the file: samples, and lengths where sequences differ in them."""
    inputs: Any
    """What the task gives to the model."""
    targets: Any


Prepare = Callable[[Tensor], Tensor]
"""Raw inputs -> the inputs that a model sees."""


def preparation(task: Task) -> Prepare:
    """Return what a task does to its inputs, by statistics of the training data."""
    samples = _samples(task, task.eval_split)
    return samples.statistics.apply if isinstance(samples, PreparedSamples) else lambda x: x


def pairs(
    task: Task, split: str, batch_size: int, count: int | None = None
) -> Iterator[PairedBatch]:
    """Go through a split once.

    Args:
        task: whose samples they are.
        split: one of its splits.
        batch_size: samples of a batch.
        count: of the first samples, to take no more; None for all.

    Raises:
        ExportError: the task has no such split, no separate samples, or none in the split.
    """
    samples = _samples(task, split)
    raw = samples.raw if isinstance(samples, PreparedSamples) else samples
    stop = len(samples) if count is None else min(count, len(samples))
    if stop == 0:
        raise ExportError(f"the {split} split is empty: there is nothing to compare on")
    for start in range(0, stop, batch_size):
        place = slice(start, min(start + batch_size, stop))
        inputs, targets = samples[place]
        given, _ = raw[place]
        yield PairedBatch(given if isinstance(given, tuple) else (given,), inputs, targets)


def _samples(task: Task, split: str) -> Indexed:
    if not isinstance(task, SampleTask):
        raise ExportError(
            f"the task {type(task).__name__} has no separate samples to check a file on: tasks of "
            "classification can be exported"
        )
    try:
        return task.samples[check_split(task, split)]
    except ValueError as error:
        raise ExportError(str(error)) from None


# --- inference ------------------------------------------------------------------------------------


M = TypeVar("M", bound=nn.Module)


@runtime_checkable
class PreparesExport(Protocol):
    """A module that computes some of its numbers once for all before it is exported."""

    def prepare_export(self) -> None:
        """Replace in place what depends on weights and statistics alone by plain numbers.

        It is called on a copy in evaluation mode, on the CPU, whose weights have neither gradients
        nor parametrisations.
        """
        ...


def layers(model: nn.Module) -> list[DEQ]:
    """Return the equilibrium layers of a model."""
    return [module for module in model.modules() if isinstance(module, DEQ)]


def find_iterated(model: nn.Module) -> list[Iterated]:
    """Return what stands for the equilibrium layers in a model made by `exportable`."""
    return [module for module in model.modules() if isinstance(module, Iterated)]


def exportable(model: M, evals: int, method: Method = "anderson") -> M:
    """Return a copy of any module that `torch.export` and `torch.onnx.export` take.

    Each `DEQ` in it evaluates its cell `evals` times from its own start, z_(k+1) = f(z_k), whatever
    the residual is then; every third step of "anderson" is an extrapolation from the steps before.
    Normalised weights and statistics of batches are plain numbers; a module with more to prepare
    has a method `prepare_export`, which is called on the copy. The copy is in evaluation mode,
    on the CPU, and without gradients. In place of a `Solution` its layers return an object with
    `value` alone: compare with the module itself to see what the evaluations leave.

    Args:
        model: a trained model of this library, or a module of your own that holds a `DEQ`.
        evals: evaluations of each equilibrium layer, 1 or more.
        method: "anderson", or "picard" for plain iteration, a smaller graph.

    Raises:
        ExportError: what the model computes is no fixed sequence of operations even so; or a layer
            is coupled and the method "anderson", which extrapolates each row by itself.
        ValueError: no such number of evaluations or method.

    Example:
        >>> plain = exportable(model, evals=30)
        >>> program = torch.export.export(plain, (x,))
    """
    if isinstance(evals, bool) or not isinstance(evals, int) or evals < 1:
        raise ValueError(f"evals: expected a whole number >= 1, got {evals!r}")
    if method not in get_args(Method):
        raise ValueError(f"method: expected 'anderson' or 'picard', got {method!r}")
    if isinstance(model, Model) and (why := model.refuses_export()):
        raise ExportError(why)
    if method == "anderson" and (coupled := [x for x in layers(model) if x.coupled]):
        raise ExportError(
            f"{len(coupled)} of the equilibrium layers of {type(model).__name__} solve all rows as "
            "one sample, and method='anderson' takes each row by itself: give method='picard'"
        )
    model = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            _resolve(module)
    for module in list(model.modules()):
        if isinstance(module, PreparesExport):
            module.prepare_export()
    whole: Any = model
    stands: dict[nn.Module, Any] = {x: Iterated(x, evals, method) for x in layers(model)}
    for above in list(model.modules()):
        for own, module in list(above._modules.items()):  # a layer may have several names
            if module in stands:
                setattr(above, own, stands[module])
    return stands.get(whole, whole)


def _resolve(module: Any) -> None:
    """Put plain weights in place of parametrised ones.

    Torch's `remove_parametrizations` would take the property away from the class, which a copy
    shares with the module that it is a copy of.
    """
    weights = {name: getattr(module, name) for name in module.parametrizations}
    del module.parametrizations
    module.__class__ = type(module).__bases__[0]
    for name, weight in weights.items():
        module.register_parameter(name, nn.Parameter(weight.detach().clone(), requires_grad=False))


class WholeInput(nn.Module):
    """Logits (batch, classes) of whole inputs, as they were before the task prepared them.

    Args:
        model: one made by `exportable`.
        prepare: what the task does to its inputs.
    """

    def __init__(self, model: Model, prepare: Prepare) -> None:
        super().__init__()
        self.model, self.prepare = model, prepare

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits of `x`; with lengths, of sequences padded at their ends."""
        x = self.prepare(x)
        return self.model(x if lengths is None else (x, lengths)).output


class RecurrentStep(nn.Module):
    """One step of a recurrent model: (x, *state) -> (logits, *state).

    Args:
        model: one made by `exportable`, with `begin` and `step`.
        prepare: what the task does to its inputs.
    """

    def __init__(self, model: Any, prepare: Prepare) -> None:
        super().__init__()
        self.model, self.prepare = model, prepare

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the logits after the step, and the state for the next.

        Args:
            x: one step of each sequence, (batch, channels).
            state: of `begin`, or of the step before.
        """
        logits, after = self.model.step(self.prepare(x), tuple(state))
        return (logits, *after)


class Stream:
    """A recurrent model step by step, with its state before the first step.

    Args:
        step: the model's step.
        sample: raw sequences (batch, time, ...) that it is tried on.

    Attributes:
        one: the state of one sequence before its first step.
        axes: of the batch in each tensor of the state; None for one without.

    Raises:
        ExportError: the model has no step, or its steps do not give what it makes of the whole.
    """

    @torch.no_grad()
    def __init__(self, step: RecurrentStep, sample: Tensor) -> None:
        model, name = step.model, type(step.model).__name__
        if not (hasattr(model, "begin") and hasattr(model, "step")):
            raise ExportError(f"{name} is no recurrent model: it has no step to stream")
        try:
            self.one, two, three = (list(model.begin(count)) for count in (1, 2, 3))
            self.axes = [_batch_axis(a, b) for a, b in zip(two, three, strict=True)]
            whole = WholeInput(model, step.prepare)(sample)
            *_, last = self.run(step, sample)
        except (IndexError, RuntimeError, ValueError) as error:
            raise ExportError(f"{name} cannot be streamed: {error}") from error
        if not torch.allclose(last, whole, rtol=1e-4, atol=1e-4 * float(whole.abs().max())):
            raise ExportError(
                f"{name} cannot be streamed: its steps differ in time, and an exported step is the "
                "same at all times"
            )

    def begin(self, batch: int) -> list[Tensor]:
        """Return the state of so many sequences before their first step."""
        return [
            tensor if axis is None else tensor.repeat_interleave(batch, axis)
            for tensor, axis in zip(self.one, self.axes, strict=True)
        ]

    def run(self, step: Callable[..., Sequence[Tensor]], x: Tensor) -> Iterator[Tensor]:
        """Go through sequences (batch, time, ...) and give the logits after each step."""
        state: Sequence[Tensor] = self.begin(len(x))
        for each in x.unbind(1):
            logits, *state = step(each, *state)
            yield logits


def _batch_axis(two: Tensor, three: Tensor) -> int | None:
    sizes = zip(two.shape, three.shape, strict=True)
    return next((axis for axis, (a, b) in enumerate(sizes) if a != b), None)
