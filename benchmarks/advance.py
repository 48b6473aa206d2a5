"""What `DEQ.advance` takes beside its mathematics, written by hand.

    python benchmarks/advance.py [coordinates] [width]

Prints, for an iMFN and an iSIREN of one layer, the milliseconds of processor time of f, J^T g and
the products with g + J^T g: by hand without autograd, by autograd alone, and by `advance`, which
measures residuals too; last, `advance` over each of the two. Minima of interleaved runs, with one
thread; the filters are given. Where the weight has a bound, autograd and `advance` compute it, and
its derivative, from what is trained.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import equilibria as eq

RUNS = 30


def main(coordinates: int, width: int) -> None:
    """Time both networks, with and without a bound on the weight."""
    torch.set_num_threads(1)
    print(f"{coordinates:,} coordinates, D = {width}, {torch.__version__}")
    for name in ("imfn", "isiren"):
        for bound in (None, 0.97):
            took = timed(*problem(name, bound, coordinates, width))
            over = " ".join(f"{key} {1e3 * value:.1f} ms" for key, value in took.items())
            by_hand, by_autograd = (took["advance"] / took[key] for key in ("hand", "autograd"))
            print(f"{name}, bound {bound}: {over}; x {by_hand:.2f} and x {by_autograd:.2f}")


def problem(
    name: str, bound: float | None, coordinates: int, width: int
) -> tuple[Callable[[], object], ...]:
    """By hand, by autograd, by `advance`: functions that take one step each."""
    torch.manual_seed(0)
    adjoint = eq.NeumannPhantom(steps=2, damping=1.0)
    options = {"width": width, "scale": 64.0, "bound": bound, "adjoint": adjoint}
    model: Any = eq.models.create(name, **options)
    layer = model.deq.cell.layers[0]
    x = torch.rand(coordinates, 2) * 2 - 1
    with torch.no_grad():
        first, second = (operand.clone() for operand in model.inject(x))
        z: Tensor = model.deq(first, second, z0=torch.zeros(coordinates, width)).value
    g = torch.randn(coordinates, width) / coordinates
    wanted = [first.requires_grad_(), second.requires_grad_(), *model.deq.cell.parameters()]

    @torch.no_grad()
    def hand() -> object:
        weight, bias = layer.weight, layer.bias
        inner = z + first
        h = torch.addmm(bias, inner, weight.T)
        if name == "imfn":
            y, slope = h * second, second
        else:
            h = h + second
            y, slope = h.sin(), h.cos()
        v = torch.addmm(g, g * slope, weight)
        dh = v * slope
        dsecond = v * h if name == "imfn" else dh
        return y, dsecond, dh.T @ inner, dh.sum(0), dh @ weight

    def autograd() -> object:
        at = z.detach().requires_grad_()
        y = model.deq.cell(at, first, second)
        (u,) = torch.autograd.grad(y, at, g, retain_graph=True)
        return torch.autograd.grad(y, wanted, g + u)

    def advance() -> object:
        return torch.autograd.grad(model.deq.advance(z, first, second).value, wanted, g)

    return hand, autograd, advance


def timed(*steps: Callable[[], object]) -> dict[str, float]:
    """The shortest processor time of each in seconds, by its name."""
    took = {step.__name__: float("inf") for step in steps}
    for _ in range(RUNS):
        for step in steps:
            begin = time.process_time()
            step()
            took[step.__name__] = min(took[step.__name__], time.process_time() - begin)
    return took


if __name__ == "__main__":
    main(*(int(given) for given in (*sys.argv[1:], *("16384", "128")[len(sys.argv) - 1 :])))
