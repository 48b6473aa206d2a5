"""How a model lies on the processes: whole on each, or sharded by torch's `fully_shard`."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import convert_to_fp32
from torch import Tensor, distributed, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from equilibria.nn.using import layers
from equilibria.run.checkpoint import PATIENCE
from equilibria.run.models import Model, Prediction
from equilibria.run.processes import agree, any_of
from equilibria.run.recipe import Parallel
from equilibria.solve import private

# --- deferred -------------------------------------------------------------------------------------

# Models whose values arrive after their parameters were sharded.


def without_data(empty: Callable[[], Model]) -> Model:
    """Return a model with its parameters and buffers on the meta device, where they have no data.

    A constructor that reads the values of tensors, or stores a tensor that is neither a parameter
    nor a buffer (in an attribute, or in a list, tuple or dictionary), runs on the CPU instead.
    """
    try:
        with torch.device("meta"):
            model = empty()
    except Exception as error:  # numpy() raises a TypeError; what is no fault of meta returns below
        reason = " ".join(str(error).split())[:200]
    else:
        plain = [
            f"{path}.{name}" if path else name
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if name not in ("_parameters", "_buffers", "_modules")
            and any(isinstance(x, Tensor) and x.is_meta for x in pytree.tree_leaves(value))
        ]
        if not plain:
            return model
        reason = f"{plain[0]} is neither a parameter nor a buffer"
    warnings.warn(
        f"each process temporarily builds the full model, whose constructor needs data: {reason}",
        stacklevel=2,
    )
    return empty().to("meta")


@torch.no_grad()
def fill(model: Model, whole: Model | None, device: torch.device) -> None:
    """Fill a sharded model without data with the values of the first process's full model."""
    model.to_empty(device=device)
    # By every name: a buffer that two modules share is one in `whole`, and by now two in `model`.
    values = {} if whole is None else dict(_tensors(whole, remove_duplicate=False))
    for name, target in _tensors(model):
        value = torch.empty(target.shape, dtype=target.dtype, device=device)
        if whole is not None:
            value.copy_(values[name])
        broadcast(value)
        target.copy_(share_of(value, target) if hasattr(target, "device_mesh") else value)


def broadcast(tensor: Tensor) -> None:
    """Give a tensor the values that it has on the first process.

    As bytes: no backend takes all types, such as int16 and complex numbers.
    """
    sent = tensor.contiguous()
    distributed.broadcast(sent.view(-1).view(torch.uint8), 0)
    if sent is not tensor:
        tensor.copy_(sent)


def _tensors(model: Model, *, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers by name: each of them once, or by all its names."""
    yield from model.named_parameters(remove_duplicate=remove_duplicate)
    yield from model.named_buffers(remove_duplicate=remove_duplicate)


def share_of(whole: Tensor, like: Any) -> Any:
    """Return this process's shard of a tensor that every process has in full."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, like.placements)


# --- sharding -------------------------------------------------------------------------------------


def extent(parallel: Parallel, shard: int | None, processes: int) -> int:
    """Return how many processes share one copy of the parameters; 1 where each has its own.

    Args:
        parallel: of the recipe.
        shard: of the recipe, for hsdp; None for the number of processes on a machine.
        processes: number of processes of the run.

    Raises:
        ValueError: the processes cannot be split into groups of this size.
    """
    if parallel == "ddp" or processes == 1:
        return 1
    if parallel == "fsdp":
        return processes
    local = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    size = local if shard is None else shard
    if processes % size:
        raise ValueError(
            f"{processes} processes cannot be split into groups of {size} that share the "
            f"parameters: set shard to a divisor of {processes}"
        )
    return size


class Whole:
    """A model that every process has whole; DDP keeps several of them alike.

    Args:
        model: the model, on any device.
        accelerator: of this process.

    Attributes:
        model: the model itself, without the wrapper for several processes.
    """

    patience = math.inf
    """Seconds to wait for a checkpoint that is being written as the run fails."""

    def __init__(self, model: Model, accelerator: Accelerator) -> None:
        self.model, self.accelerator = model, accelerator
        self.wrapped: Any = model

    def prepare(self, optimizer: Optimizer) -> AcceleratedOptimizer:
        """Move the model to its device; return the optimiser as Accelerate wraps it."""
        self.wrapped, prepared = self.accelerator.prepare(self.model, optimizer)
        return prepared

    def predict(self, inputs: Any, **options: Any) -> Prediction:
        """Call the model in the precision of the run."""
        return self.wrapped(inputs, **options)

    def gloo_group(self) -> None:
        """Return no group: the main process writes alone."""

    def gather(self) -> AbstractContextManager[None]:
        """Return a context in which every process has all parameters: any context will do."""
        return nullcontext()

    def sync(self, last: bool) -> AbstractContextManager[None]:
        """Return a context for a micro-batch; gradients are reduced with those of the last."""
        return nullcontext() if last else self.accelerator.no_sync(self.wrapped)

    @torch.no_grad()
    def constrain(self) -> None:
        """Restore the bounds on the weights."""
        self.model.constrain()

    def clip(self, limit: float) -> float | None:
        """Clip the gradients to the norm `limit`; return their norm before, where it is known."""
        length = self.accelerator.clip_grad_norm_(self.model.parameters(), limit)
        return None if length is None else float(length)

    def whole_state(self) -> Mapping[str, Tensor]:
        """Return all parameters and buffers."""
        return self.model.state_dict()


class Sharding:
    """A model whose parameters, gradients and moments are sharded across processes.

    Each outermost `DEQ` layer is one unit of `fully_shard`, and the rest of the model another. A
    unit is gathered once per forward and once per backward, however many evaluations these take:
    no process waits for another within a solve. If the model also uses a cell's weights
    outside its layer, for example to inject its input, the whole model is one unit, which is
    gathered once per step.

    Only the first process builds the full model, on its CPU; the others build it on the meta
    device. The tensors are then broadcast one at a time, and each process keeps its shards.

    Args:
        build: returns the model with its initial weights, the same on any process.
        empty: returns a model of the same shapes, with any weights.
        accelerator: of this process.
        size: number of processes that share one copy of the parameters, see `extent`.
        keep: keep a layer's parameters gathered from its forward to its backward, for terms of the
            loss that evaluate the cell in between. They are then gathered once per step, not twice.
        trial: evaluates a model and its loss once, at any precision.

    Attributes:
        model: the model, whose parameters are `DTensor`s.
        units: the modules that `fully_shard` was called on, the model first.

    Raises:
        ValueError: the installed version of torch does not support this.
        Elsewhere: the first process could not build the model.
    """

    patience = PATIENCE
    """Shares need all processes, one of which may be gone."""

    def __init__(
        self,
        build: Callable[[], Model],
        empty: Callable[[], Model],
        accelerator: Accelerator,
        size: int,
        *,
        keep: bool,
        trial: Callable[[Model], object],
    ) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if not hasattr(FSDPModule, "set_reshard_after_forward"):
            raise ValueError(
                f"parallel: fsdp and hsdp need torch 2.8 or later, and this is {torch.__version__}"
            )
        processes = accelerator.num_processes
        shape = (processes,) if size == processes else (processes // size, size)
        names = ("shard",) if len(shape) == 1 else ("replicate", "shard")
        self.mesh = init_device_mesh(accelerator.device.type, shape, mesh_dim_names=names)
        self.accelerator = accelerator
        self.keep = keep or not private.gathers_for_dataclasses()
        whole, outside = None, False
        with agree(accelerator):
            if accelerator.is_main_process:
                whole = build().cpu()  # a search for a radius has moved it to the device
                outside = _used_outside(whole, trial)
        outside = any_of(accelerator, outside)
        self.model = model = without_data(empty)
        inner = [] if outside else list(layers(model).values())
        for layer in inner:
            fully_shard(layer, mesh=self.mesh, reshard_after_forward=not self.keep)
        fully_shard(model, mesh=self.mesh, reshard_after_forward=False)
        self.units: list[Any] = [model, *inner]
        if accelerator.device.type == "cpu":
            for unit in self.units:  # Gloo's mean of gradients is their sum before torch 2.12
                unit.set_force_sum_reduction_for_comms(True)
        fill(model, whole, accelerator.device)
        private.find_root(model)

    def prepare(self, optimizer: Optimizer) -> AcceleratedOptimizer:
        """Return the optimiser of the shares as Accelerate wraps it."""
        prepared: Any = self.accelerator.prepare_optimizer(optimizer)
        return prepared

    def gloo_group(self) -> Any:
        """Return a group by which all processes agree while training goes on."""
        return distributed.new_group(backend="gloo")

    def predict(self, inputs: Any, **options: Any) -> Prediction:
        """Call the model as Accelerate would have it called, if it had wrapped it."""
        with self.accelerator.autocast(), warnings.catch_warnings():
            # Nobody changes in place what the model returns.
            warnings.filterwarnings(
                "ignore", "FSDP2-wrapped module .* returned a view", UserWarning
            )
            prediction: Any = self.model(inputs, **options)
        if self.accelerator.mixed_precision != "no":
            prediction = convert_to_fp32(prediction)
        return prediction

    def sync(self, last: bool) -> AbstractContextManager[None]:
        """Prepare for a micro-batch, as DDP does: broadcast the first process's buffers.

        Gradients are reduced with those of the `last` micro-batch, and only added up until then.
        """
        for buffer in self.model.buffers():
            broadcast(buffer)
        self.units[0].set_requires_gradient_sync(last)
        return nullcontext()

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Gather all parameters on every process inside a block, which all processes must enter.

        There is no communication inside it, so each process may call the model, or only its layers,
        any number of times. Gradients of the parameters must not be computed.
        """
        root = self.units[0]
        root.set_reshard_after_forward(False)
        root.set_reshard_after_backward(False)
        for unit in self.units:
            unit.unshard()
        try:
            yield
        finally:
            for unit in self.units:
                unit.reshard()
            root.set_reshard_after_backward(True)
            for unit in self.units[1:]:
                unit.set_reshard_after_forward(not self.keep)

    @torch.no_grad()
    def constrain(self) -> None:
        """Restore the bounds on the weights, some of which apply to unsharded matrices."""
        if type(self.model).constrain is Model.constrain:
            return  # no bounds
        shares = dict(self.model.named_parameters())
        with self.gather():
            self.model.constrain()
            for name, whole in self.model.named_parameters():
                shares[name].copy_(share_of(whole.detach(), shares[name]))

    def clip(self, limit: float) -> float:
        """Clip the gradients to the norm `limit`; return their norm before clipping."""
        self.accelerator.unscale_gradients()
        length: Any = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        return float(length.full_tensor() if hasattr(length, "full_tensor") else length)

    def whole_state(self) -> dict[str, Tensor]:
        """Return all parameters and buffers, unsharded, on the CPU of the first process; the other
        processes must call this too, and get an empty dictionary."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: Any = get_model_state_dict(self.model, options=options)
        return dict(state)


class _ParameterWatch(TorchFunctionMode):
    """Detects uses of some layers' parameters while none of these layers is running."""

    def __init__(self, watched: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parameters = {id(p) for layer in watched for p in layer.parameters()}
        self.depth, self.found = 0, False

    def enter(self, *_: object) -> None:
        self.depth += 1

    def leave(self, *_: object) -> None:
        self.depth -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.depth and not self.found:
            given = pytree.tree_leaves((args, kwargs))
            self.found = any(id(each) in self.parameters for each in given)
        return func(*args, **kwargs)


def _used_outside(model: Model, trial: Callable[[Model], object]) -> bool:
    """Return whether a trial uses the parameters of the model's layers outside these layers."""
    watched = list(layers(model).values())
    if not watched:
        return False
    watch = _ParameterWatch(watched)
    handles = [layer.register_forward_pre_hook(watch.enter) for layer in watched]
    handles += [layer.register_forward_hook(watch.leave, always_call=True) for layer in watched]
    try:
        with watch:
            trial(model)
    finally:
        for handle in handles:
            handle.remove()
    return watch.found
