"""Two processes under DDP have the gradient that one has on the whole batch."""

import copy

import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from equilibria.nn import DEQ, weight_norm
from equilibria.solve import GMRES, Implicit, Picard

BATCH = 6


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
    distributed.destroy_process_group()


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
    distributed.destroy_process_group()


def test_a_sharded_layer_is_right_and_a_sharded_cell_is_refused(tmp_path):
    spawn(compare_sharded, (str(tmp_path),), nprocs=2)


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
    distributed.destroy_process_group()


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
