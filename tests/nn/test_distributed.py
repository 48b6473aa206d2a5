"""Two processes under DDP have the gradient that one has on the whole batch."""

import copy
import os

import pytest
import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import spawn
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
shards = pytest.mark.skipif(
    not private.gathers_for_dataclasses(), reason="fully_shard on a DEQ layer needs torch 2.12"
)


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


def work(rank, folder):
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    model, x = build()
    parallel = DistributedDataParallel(model)
    for _ in range(2):  # the second backward finds what the first left behind
        model.zero_grad()
        parallel(x[rank::2]).square().sum(1).mean().backward()
    torch.save([p.grad for p in model.parameters()], f"{folder}/{rank}.pt")
    distributed.barrier()
    del parallel  # before its group, whose threads would outlive the process
    leave()


def test_two_processes_give_the_gradient_of_one(tmp_path):
    spawn(work, (str(tmp_path),), nprocs=2)
    model, x = build()
    model(x).square().sum(1).mean().backward()
    expected = copy.deepcopy([p.grad for p in model.parameters()])
    for rank in range(2):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


# --- parameters that are sharded ---------------------------------------------------------------


def compare_sharded(rank, folder):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    options = {"solver": Picard(rtol=1e-6), "adjoint": Implicit(linear=GMRES(rtol=1e-6))}
    layer = DEQ(Cell(), **options)
    whole = torch.linspace(-1, 1, BATCH * 5).sin().view(BATCH, 5)
    mine = whole[rank::2]
    expected = copy.deepcopy(layer)
    (expected(whole).value.sum() / 2).backward()
    sharded = copy.deepcopy(layer)
    fully_shard(sharded)
    sharded(mine).value.sum().backward()
    for p, q in zip(sharded.parameters(), expected.parameters(), strict=True):
        assert isinstance(p.grad, DTensor) and q.grad is not None
        torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=1e-4, atol=1e-5)
    fully_shard(layer.cell.recur)
    try:
        layer(mine)
    except RuntimeError as error:
        assert "'recur' in the cell is sharded by fully_shard" in str(error)
    else:
        raise AssertionError("a sharded cell was accepted")
    distributed.barrier()  # its parameters may still be on their way to the other process
    leave()


@shards
def test_a_sharded_layer_is_right_and_a_sharded_cell_is_refused(tmp_path):
    spawn(compare_sharded, (str(tmp_path),), nprocs=2)


# --- what sharding costs, and what it leaves as it was --------------------------------------------


def shard(rank, folder):
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    torch.set_num_threads(1)
    found = {"counts": counts(evals=(5, 50)[rank]), "gradients": gradients(rank)}
    found["refused"] = [refused("param_dtype", torch.bfloat16), refused("output_dtype", None)]
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.barrier()
    leave()


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


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """What two processes have found."""
    folder = tmp_path_factory.mktemp("sharded")
    spawn(shard, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@shards
def test_a_solve_gathers_once_forward_and_once_backward_whatever_its_evaluations(sharded):
    """A process that evaluates 5 times does not wait for one that evaluates 50 times."""
    for found, evals in zip(sharded, (5, 50), strict=True):
        assert len(found["counts"]) == 6
        for adjoint, each in found["counts"].items():
            assert max(each["evals"]) >= evals, adjoint
            assert each["forward"] == {"allgather_base": 1}, adjoint
            assert each["backward"] == {"allgather_base": 1, "reduce_scatter_base": 1}, adjoint


@shards
def test_sharded_gradients_are_those_of_one_process(sharded):
    model, x = build()
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
        model.to(dtype).zero_grad()
        model(x.to(dtype)).square().sum(1).mean().backward()
        size = max(float(p.grad.abs().max()) for p in model.parameters())
        for found in sharded:
            for one, p in zip(found["gradients"][str(dtype)], model.parameters(), strict=True):
                assert float((one - p.grad).abs().max()) <= bound * size


@shards
def test_policies_that_cast_the_cell_or_the_solution_are_refused(sharded):
    for found in sharded:
        (low, outer), (copied, copied_outside) = found["refused"]
        assert "leave param_dtype out, and call the model under" in low and low == outer
        assert "copies the solution that it returns" in copied and copied == copied_outside


# --- parameters that one process alone uses ----------------------------------------------------


class Routed(nn.Module):
    """Each process's samples all take one expert, and not the other's."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(Cell() for _ in range(3))

    def forward(self, z, x):
        return self.experts[int(x[0, 0] > 0)](z, x)


def route(rank, folder):
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    torch.manual_seed(0)
    layer = DEQ(Routed()).double()
    parallel = DistributedDataParallel(layer)
    x = torch.full((2, 5), 2.0 * rank - 1, dtype=torch.float64)
    for _ in range(2):
        layer.zero_grad()
        parallel(x).value.sum().backward()
    torch.save([p.grad for p in layer.parameters()], f"{folder}/{rank}.pt")
    distributed.barrier()
    del parallel
    leave()


def test_experts_that_one_process_alone_uses(tmp_path):
    """All parameters of the cell are counted, so that no process waits for one for ever."""
    spawn(route, (str(tmp_path),), nprocs=2)
    torch.manual_seed(0)
    layer = DEQ(Routed()).double()
    for sign in (-1.0, 1.0):
        (layer(torch.full((2, 5), sign, dtype=torch.float64)).value.sum() / 2).backward()
    for rank in range(2):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for one, p in zip(got, layer.parameters(), strict=True):
            wanted = torch.zeros_like(p) if p.grad is None else p.grad
            torch.testing.assert_close(torch.zeros_like(p) if one is None else one, wanted)
