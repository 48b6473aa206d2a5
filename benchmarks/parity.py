"""Running parity of bits, by a layer in which a signal travels from position to position.

    python benchmarks/parity.py [seeds]

z_i = g(z_{i-1}, u_i) for all positions at once: df/dz is nilpotent, the residual does not fall
until the signal has arrived, and plain iteration takes one evaluation more than there are
positions. The cell is trained on strings of 4 to 24 bits by the default solver and adjoint, and by
Anderson acceleration at every third evaluation, the default before; then solved for 128 and 300
bits, with `max_evals` alone set. Prints the shares of right answers and of samples that converged,
and the evaluations.
"""

import sys
import warnings
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

import equilibria as eq

WIDTH, BATCH, STEPS = 16, 64, 1200


class Cell(nn.Module):
    """z_i = tanh(W2 relu(W1 (z_{i-1}, u_i)))."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(WIDTH + 1, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH), nn.Tanh()
        )

    def forward(self, z: Tensor, bits: Tensor) -> Tensor:
        before = functional.pad(z[:, :-1], (0, 0, 1, 0))
        return self.net(torch.cat([before, bits.unsqueeze(2)], 2))


def draw(length: int) -> tuple[Tensor, Tensor]:
    """Bits of -1 and 1, and their running parity."""
    bits = torch.randint(0, 2, (BATCH, length))
    return 2.0 * bits - 1, (bits.cumsum(1) % 2).float()


def solve(cell: nn.Module, bits: Tensor, solver: eq.Solver) -> eq.Solution:
    z0 = bits.new_zeros(*bits.shape, WIDTH)
    return eq.fixed_point(cell, z0, bits, solver=solver)


def train(solver: eq.Solver, seed: int) -> tuple[nn.Module, nn.Module]:
    """The cell and its read-out after training."""
    torch.manual_seed(seed)
    cell, out = Cell(), nn.Linear(WIDTH, 1)
    optimizer = torch.optim.Adam([*cell.parameters(), *out.parameters()], 3e-3)
    for step in range(STEPS):
        bits, parity = draw(4 + 20 * step // STEPS)
        answer = out(solve(cell, bits, solver).value).squeeze(2)
        loss = functional.binary_cross_entropy_with_logits(answer, parity)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return cell, out


@torch.no_grad()
def describe(cell: nn.Module, out: nn.Module, length: int, solver: eq.Solver) -> str:
    """How well a trained cell does on strings of a length."""
    bits, parity = draw(length)
    sol = solve(cell, bits, solver)
    right = ((out(sol.value).squeeze(2) > 0) == (parity > 0)).double()
    reached = (sol.status == eq.Status.CONVERGED).double().mean()
    return (
        f"{length} bits: {100 * float(right[:, -1].mean()):.1f} % right at the last bit, "
        f"{100 * float(reached):.0f} % CONVERGED, {int(sol.stats.evals.max())} evaluations at most"
    )


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    before = eq.Anderson(period=3)
    for name, solver in {"Auto()": eq.Auto(), "Anderson(period=3)": before}.items():
        for seed in range(seeds):
            cell, out = train(solver, seed)
            print(f"trained by {name}, seed {seed}")
            for length, limited in ((16, solver), (128, replace(solver, max_evals=154))):
                print(f"  {describe(cell, out, length, limited)}")
            print(f"  {describe(cell, out, 300, replace(solver, max_evals=380))}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
