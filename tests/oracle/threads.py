"""Eight threads at once: solves, gradients, borrowed and frozen parameters.

    python tests/oracle/threads.py --rounds 1000 --seed 0

In a round eight threads begin together; each does one of `ACTIONS`, drawn at random. A lock stands
around calls that change a module (`functional_call`, freezing and thawing), as torch needs it;
everything else runs in parallel: backwards of solutions that other threads have made, while the
module is being borrowed or frozen, and solves of functions that close over tensors of a thread. A
result is wrong if it differs from that of a single thread. After each round the modules must hold
the very parameters that they were made with, unchanged. Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import random
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call

import equilibria as eq
from solves import Tally, parser
from witness import Report

THREADS, WIDTH = 8, 6


class Cell(nn.Module):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.state = nn.Linear(WIDTH, WIDTH).double()
        self.input = nn.Linear(WIDTH, WIDTH).double()
        for parameter in self.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data = 0.15 * drawn

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.state(z) + self.input(x))


def close(found: Any, wanted: Any) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(torch.allclose(a, b, rtol=1e-6, atol=1e-9) for a, b in pairs)


class Bench:
    """What the threads share, and what each action should give."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        options: dict[str, Any] = {
            "solver": eq.Anderson(rtol=1e-11),
            "adjoint": eq.Implicit(linear=eq.GMRES(rtol=1e-11)),
        }
        self.layer = eq.DEQ(Cell(generator), **options)
        self.frozen = eq.DEQ(Cell(generator), **options)  # parts of it are, at times
        self.options = options
        self.x = torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)
        self.own: dict[str, Tensor] = dict(self.layer.named_parameters())
        self.lent: dict[str, Tensor] = {
            name: (0.5 * value.detach()).requires_grad_() for name, value in self.own.items()
        }
        self.weights = torch.randn(20, WIDTH, WIDTH, generator=generator, dtype=torch.float64)
        self.weights *= 0.5 / torch.linalg.matrix_norm(self.weights, 2)[:, None, None]
        self.modules = (self.layer, self.frozen)
        self.held = [dict(module.named_parameters()) for module in self.modules]
        self.kept = [{name: p.detach().clone() for name, p in each.items()} for each in self.held]
        self.call = threading.Lock()
        self.pending: list[tuple[str, Tensor]] = []  # losses whose gradients nobody has taken yet
        self.wanted = {which: self._reference(which) for which in ("own", "lent")}
        self.of_frozen = self._grads_of(self.loss(self.frozen(self.x)), self.frozen)
        self.of_closures = [self.closure(i, twice=False) for i in range(len(self.weights))]
        self.twice = [self.closure(i, twice=True) for i in range(len(self.weights))]

    @staticmethod
    def loss(sol: Any) -> Tensor:
        return sol.value.square().sum()

    def parameters(self, which: str) -> dict[str, Tensor]:
        return self.own if which == "own" else self.lent

    def borrowed(self, which: str) -> Tensor:
        """The loss of the layer with its own parameters or with others in their place."""
        with self.call:
            return self.loss(functional_call(self.layer, self.parameters(which), (self.x,)))

    def _reference(self, which: str) -> tuple[Tensor, tuple[Tensor, ...]]:
        loss = self.borrowed(which)
        grads = torch.autograd.grad(loss, list(self.parameters(which).values()))
        return loss.detach(), grads

    @staticmethod
    def _grads_of(loss: Tensor, module: nn.Module) -> dict[str, Tensor]:
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))

    def closure(self, i: int, *, twice: bool) -> tuple[Tensor, ...]:
        """Gradients of a solve whose function closes over a tensor of the caller's own."""
        a, x = self.weights[i].clone().requires_grad_(), self.x.clone().requires_grad_()
        sol = eq.fixed_point(
            lambda z, x: torch.tanh(z @ a + x), torch.zeros_like(x), x, **self.options
        )
        grads = torch.autograd.grad(self.loss(sol), (a, x), create_graph=twice)
        if twice:
            grads = torch.autograd.grad(sum(each.square().sum() for each in grads), (a, x))
        return grads

    # What a thread may do; each returns what was wrong, or None.

    def solve_own(self, draw: random.Random) -> str | None:
        return self._forward("own")

    def solve_lent(self, draw: random.Random) -> str | None:
        return self._forward("lent")

    def _forward(self, which: str) -> str | None:
        loss = self.borrowed(which)
        self.pending.append((which, loss))
        return None if close([loss.detach()], [self.wanted[which][0]]) else f"value of {which}"

    def go_back(self, draw: random.Random) -> str | None:
        """The gradient of a loss that some thread has left."""
        try:
            which, loss = self.pending.pop()
        except IndexError:
            return None
        found = torch.autograd.grad(loss, list(self.parameters(which).values()))
        return None if close(found, self.wanted[which][1]) else f"gradient of {which}"

    def freeze(self, draw: random.Random) -> str | None:
        """A solve with frozen inputs, thawed before its gradient is taken, in another order with
        every other one's."""
        part = self.frozen.cell.input
        with self.call:
            part.requires_grad_(False)
            loss = self.loss(self.frozen(self.x))
            part.requires_grad_(True)
        found = torch.autograd.grad(loss, [self.frozen.cell.state.weight])[0]
        wanted = self.of_frozen["cell.state.weight"]
        return None if close([found], [wanted]) else "gradient beside a frozen part"

    def thaw(self, draw: random.Random) -> str | None:
        """A solve of all parameters, whose gradient is taken while others freeze some.

        By edges of the graph: torch refuses a tensor that is frozen when the gradient is asked for,
        but what is frozen later changes nothing.
        """
        with self.call:
            loss = self.loss(self.frozen(self.x))
            named = dict(self.frozen.named_parameters())
            edges = [get_gradient_edge(parameter) for parameter in named.values()]
        found = torch.autograd.grad(loss, edges, allow_unused=True)
        if lost := [name for name, each in zip(named, found, strict=True) if each is None]:
            return f"a gradient is lost, of what another thread froze meanwhile: {lost}"
        wanted = [self.of_frozen[name] for name in named]
        return None if close(found, wanted) else "gradient of a thawed module"

    def close_over(self, draw: random.Random) -> str | None:
        i = draw.randrange(len(self.weights))
        right = close(self.closure(i, twice=False), self.of_closures[i])
        return None if right else "gradient of a closure"

    def go_back_twice(self, draw: random.Random) -> str | None:
        i = draw.randrange(len(self.weights))
        right = close(self.closure(i, twice=True), self.twice[i])
        return None if right else "second derivative of a closure"

    def check_modules(self) -> list[str]:
        """Does each module hold its own parameters, unchanged and unfrozen?"""
        wrong = []
        for module, held, kept in zip(self.modules, self.held, self.kept, strict=True):
            now = dict(module.named_parameters())
            if now.keys() != held.keys() or any(now[name] is not held[name] for name in held):
                wrong.append("a parameter has been replaced")
            elif any(not torch.equal(now[name], kept[name]) for name in kept):
                wrong.append("a parameter has been changed")
            elif not all(p.requires_grad for p in now.values()):
                wrong.append("a parameter has been left frozen")
        return wrong


ACTIONS: tuple[tuple[str, int], ...] = (  # with how often, of ten
    ("solve_own", 2),
    ("solve_lent", 2),
    ("go_back", 2),
    ("freeze", 1),
    ("thaw", 1),
    ("close_over", 1),
    ("go_back_twice", 1),
)


def run_round(bench: Bench, number: int, seed: int, done: Counter[str]) -> list[str]:
    """Eight threads begin together, each with one action; returns what was wrong."""
    wrong: list[str] = []
    gate = threading.Barrier(THREADS)
    names, often = zip(*ACTIONS, strict=True)

    def work(place: int) -> None:
        draw = random.Random(f"{seed} {number} {place}")
        name = draw.choices(names, often)[0]
        action: Callable[[random.Random], str | None] = getattr(bench, name)
        gate.wait()
        try:
            found = action(draw)
        except Exception as error:
            found = f"raised: {name}: {type(error).__name__}: {str(error)[:200]}"
        done[name] += 1
        if found:
            wrong.append(found)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong + bench.check_modules()


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=1000)
    given = arguments.parse_args()
    sys.setswitchinterval(1e-5)  # threads take turns far more often than by default
    warnings.simplefilter("error")
    bench, done = Bench(given.seed), Counter()
    tally = Tally("rounds of eight threads", every=100)
    for number in range(given.rounds):
        found = run_round(bench, number, given.seed, done)
        tally.add(f"--rounds, number {number}, seed {given.seed}", Report(found))
    print(", ".join(f"{count} x {name}" for name, count in sorted(done.items())))
    return int(not tally.close())


if __name__ == "__main__":
    sys.exit(main())
