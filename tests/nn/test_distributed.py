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
