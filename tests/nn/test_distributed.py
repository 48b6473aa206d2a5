"""Two processes under DDP have the gradient that one has on the whole batch."""

import copy
import multiprocessing
import os

import pytest
import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from equilibria.nn import DEQ, weight_norm
from equilibria.solve import (
    GMRES,
    Implicit,
    JacobianFree,
    NeumannPhantom,
    Phantom,
    Picard,
    Unrolled,
    private,
)

BATCH = 6
EVALS = (5, 20)  # of the two; after more, rounding may make a state exact
SHARDS = private.gathers_for_dataclasses()
shards = pytest.mark.skipif(not SHARDS, reason="fully_shard on a DEQ layer needs torch 2.12")

# Both processes are forked from one that has imported torch, which takes seconds.
multiprocessing.set_forkserver_preload(["pytest", "torch.distributed.fsdp", "equilibria.nn"])


def leave():
    """End a process: Gloo's threads may abort while the interpreter shuts down."""
    distributed.destroy_process_group()
    os._exit(0)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.recur = nn.Linear(5, 5)
        nn.init.orthogonal_(self.recur.weight, 0.6)

    def forward(self, z, x):
        return torch.tanh(self.recur(z) + x)


class Model(nn.Module):
    """A layer called twice, with weights outside of it before and after."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(3, 5)
        self.deq = DEQ(
            weight_norm(Cell()),
            solver=Picard(rtol=1e-12, max_evals=500),
            adjoint=Implicit(linear=GMRES(rtol=1e-12)),
        )
        self.decode = nn.Linear(5, 2)

    def forward(self, x):
        first = self.deq(self.encode(x)).value
        return self.decode(self.deq(first).value)


def build():
    torch.manual_seed(0)
    return Model().double(), torch.randn(BATCH, 3, dtype=torch.float64)


def reduced(rank):
    """The gradients of a model under DDP."""
    model, x = build()
    parallel = DistributedDataParallel(model)
    for _ in range(2):  # the second backward finds what the first left behind
        model.zero_grad()
        parallel(x[rank::2]).square().sum(1).mean().backward()
    return [p.grad for p in model.parameters()]


class Routed(nn.Module):
    """Each process's samples all take one expert, and not the other's."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(Cell() for _ in range(3))

    def forward(self, z, x):
        return self.experts[int(x[0, 0] > 0)](z, x)


def routed():
    torch.manual_seed(0)
    return DEQ(Routed()).double()


def route(rank):
    """The gradients of parameters that one process alone uses."""
    layer = routed()
    parallel = DistributedDataParallel(layer)
    x = torch.full((2, 5), 2.0 * rank - 1, dtype=torch.float64)
    for _ in range(2):
        layer.zero_grad()
        parallel(x).value.sum().backward()
    return [p.grad for p in layer.parameters()]


def work(rank, folder):
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    torch.set_num_threads(1)
    found = {"reduced": reduced(rank), "routed": route(rank)}
    if SHARDS:
        found["counts"] = counts(evals=EVALS[rank])
        found["gradients"] = gradients(rank)
        found["refused"] = [refused("param_dtype", torch.bfloat16), refused("output_dtype", None)]
        found["sharded"] = compare_sharded(rank)
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.barrier()  # what was sharded may still be on its way to the other process
    leave()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What two processes have found."""
    folder = tmp_path_factory.mktemp("processes")
    start_processes(work, (str(folder),), nprocs=2, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_two_processes_give_the_gradient_of_one(processes):
    model, x = build()
    model(x).square().sum(1).mean().backward()
    for found in processes:
        for one, p in zip(found["reduced"], model.parameters(), strict=True):
            torch.testing.assert_close(one, p.grad, rtol=1e-9, atol=1e-11)


def test_experts_that_one_process_alone_uses(processes):
    """All parameters of the cell are counted, so that no process waits for one for ever."""
    layer = routed()
    for sign in (-1.0, 1.0):
        (layer(torch.full((2, 5), sign, dtype=torch.float64)).value.sum() / 2).backward()
    for found in processes:
        for one, p in zip(found["routed"], layer.parameters(), strict=True):
            wanted = torch.zeros_like(p) if p.grad is None else p.grad
            torch.testing.assert_close(torch.zeros_like(p) if one is None else one, wanted)


# --- parameters that are sharded ---------------------------------------------------------------


def compare_sharded(rank):
    """Gradients of a sharded layer beside those of the whole; what is said of a sharded cell."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.manual_seed(0)
    options = {"solver": Picard(rtol=1e-6), "adjoint": Implicit(linear=GMRES(rtol=1e-6))}
    layer = DEQ(Cell(), **options)
    whole = torch.linspace(-1, 1, BATCH * 5).sin().view(BATCH, 5)
    mine = whole[rank::2]
    expected, sharded = copy.deepcopy(layer), copy.deepcopy(layer)
    (expected(whole).value.sum() / 2).backward()
    fully_shard(sharded)
    sharded(mine).value.sum().backward()
    pairs = []
    for p, q in zip(sharded.parameters(), expected.parameters(), strict=True):
        assert isinstance(p.grad, DTensor)
        pairs.append((p.grad.full_tensor(), q.grad))
    fully_shard(layer.cell.recur)
    try:
        layer(mine)
    except RuntimeError as error:
        return pairs, str(error)
    return pairs, "nothing"


@shards
def test_a_sharded_layer_is_right_and_a_sharded_cell_is_refused(processes):
    for found in processes:
        pairs, said = found["sharded"]
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert "'recur' in the cell is sharded by fully_shard" in said


# --- what sharding costs, and what it leaves as it was --------------------------------------------


class Collectives(TorchDispatchMode):
    """Counts collectives of each kind.

    CommDebugMode follows the modules that run, and fails where a cell is called by its layer again.
    """

    def __init__(self):
        super().__init__()
        self.found = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "c10d" in func.namespace and "wait" not in str(func):
            name = str(func.overloadpacket).partition(".")[2].strip("_")
            self.found[name] = self.found.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def counts(evals):
    """Collectives of a forward and of a backward by each adjoint, of a layer that is one unit."""
    from torch.distributed.fsdp import fully_shard

    found = {}
    for adjoint in (
        *(Implicit(), Implicit(linear=GMRES(rtol=1e-6)), Phantom(steps=3)),
        *(NeumannPhantom(steps=3), JacobianFree(), Unrolled()),
    ):
        torch.manual_seed(0)
        solver = Picard(rtol=0.0, atol=0.0, max_evals=evals, patience=None)
        layer = DEQ(weight_norm(Cell()), solver=solver, adjoint=adjoint).double()
        fully_shard(layer, reshard_after_forward=True)
        x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
        with Collectives() as forward:
            solution = layer(x)
        with Collectives() as backward:
            solution.value.sum().backward()
        found[repr(adjoint)] = {
            "evals": solution.stats.evals.tolist(),
            "forward": forward.found,
            "backward": backward.found,
        }
    return found


def gradients(rank):
    """Of a layer that is called twice in a forward, as a unit within that of the model."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    found = {}
    for dtype in (torch.float32, torch.float64):
        model, x = build()
        model.to(dtype)
        fully_shard(model.deq)
        fully_shard(model)
        for _ in range(2):  # the second backward finds what the first left behind
            model.zero_grad()
            model(x.to(dtype)[rank::2]).square().sum(1).mean().backward()
        assert all(isinstance(p, DTensor) for p in model.parameters())
        found[str(dtype)] = [p.grad.full_tensor() for p in model.parameters()]
    return found


def refused(name, kind):
    """What is said of a policy of the layer, and of one of the model around it."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    said = []
    for inner in (True, False):
        model, x = build()
        model.float()
        policy = MixedPrecisionPolicy(**{name: kind or torch.float32})
        fully_shard(model.deq, **({"mp_policy": policy} if inner else {}))
        fully_shard(model, mp_policy=policy)
        try:
            model(x.float())
        except TypeError as error:
            said.append(str(error))
    return said


@shards
def test_a_solve_gathers_once_forward_and_once_backward_whatever_its_evaluations(processes):
    """A process that evaluates 5 times does not wait for one that evaluates 20 times."""
    for found, evals in zip(processes, EVALS, strict=True):
        assert len(found["counts"]) == 6
        for adjoint, each in found["counts"].items():
            assert max(each["evals"]) >= evals, adjoint
            assert each["forward"] == {"allgather_base": 1}, adjoint
            assert each["backward"] == {"allgather_base": 1, "reduce_scatter_base": 1}, adjoint


@shards
def test_sharded_gradients_are_those_of_one_process(processes):
    model, x = build()
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
        model.to(dtype).zero_grad()
        model(x.to(dtype)).square().sum(1).mean().backward()
        size = max(float(p.grad.abs().max()) for p in model.parameters())
        for found in processes:
            for one, p in zip(found["gradients"][str(dtype)], model.parameters(), strict=True):
                assert float((one - p.grad).abs().max()) <= bound * size


@shards
def test_policies_that_cast_the_cell_or_the_solution_are_refused(processes):
    for found in processes:
        (low, outer), (copied, copied_outside) = found["refused"]
        assert "leave param_dtype out, and call the model under" in low and low == outer
        assert "copies the solution that it returns" in copied and copied == copied_outside
