"""Cells that are cut from autograd inside, and cells that are not: which are found?

    python tests/oracle/cuts.py --wrong 300 --right 1000 --seed 0

Random cells in float32 or float64, of several kinds, sizes and scales, some of which compute in
float32 or bfloat16 inside. Wrong ones have one of six cuts; each must be named by finite
differences (`Comparison.cuts`), and one that autograd takes for a constant must warn in a backward.
Right ones must give neither. Exits with 1 if a cut is missed or an alarm is false.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import equilibria as eq
from equilibria.stability.derivative_check import Cut, find_cuts
from equilibria.stability.examined import Exact, Patient
from solves import Tally, parser
from witness import Report

KINDS = ("dense", "normalised", "image", "attention", "gated", "graph", "energy", "pair")
CUTS = ("state", "part", "numpy", "number", "energy", "some")
INSIDE = (None, None, None, torch.float32, torch.bfloat16)
ACTIVATIONS = (torch.tanh, torch.relu, functional.gelu, functional.silu, functional.softplus)
BACKWARD = "autograd finds no dependence"


class Cell(nn.Module):
    """unit f(z / unit, x): f random, a contraction mostly.

    Args:
        kind: one of `KINDS`.
        cut: one of `CUTS`, None for a right cell.
        unit: the size of the state.
        inside: the dtype that its products are computed in; None for that of the state.
    """

    def __init__(
        self, rng: np.random.Generator, kind: str, cut: str | None, unit: float, inside: Any
    ) -> None:
        super().__init__()
        self.kind, self.cut, self.unit, self.inside = kind, cut, unit, inside
        self.act = ACTIVATIONS[rng.integers(len(ACTIVATIONS))]
        self.channels = int(rng.choice([4, 8]))
        self.width = self.channels * 9 if kind == "image" else self.channels
        gain, n = rng.uniform(0.2, 0.8), self.channels

        def drawn(*shape: int) -> nn.Parameter:
            values = torch.as_tensor(rng.standard_normal(shape)).float()
            return nn.Parameter(values / values[0].numel() ** 0.5)

        self.weight = nn.Parameter(gain * drawn(n, n).data / 2)
        self.inward, self.bias = drawn(n, n), nn.Parameter(drawn(n).data / 4)
        if rng.random() < 0.3:
            self.bias.data.zero_()
        self.kernel = nn.Parameter(gain * drawn(n, n, 3, 3).data / 2)
        self.queries, self.keys = drawn(n, n), drawn(n, n)
        self.norm = nn.LayerNorm(n)
        self.groups = nn.GroupNorm(2, n)
        self.normalizer = bool(rng.integers(2)) or cut in ("part", "number")
        self.what = str(rng.choice(["rows", "columns", "weight", "bias", "operand"]))
        if kind == "pair":  # whose two leaves each take a part of the same value
            self.what = str(rng.choice(["leaf", "weight", "operand"]))
        if kind == "energy":
            self.what = str(rng.choice(["rows", "columns", "operand"]))
        if kind in ("image", "attention", "graph") and self.what in ("weight", "bias"):
            self.what = "operand"
        self.edges = torch.as_tensor(rng.random((6, 6)) < 0.4).float()

    def cut_at(self, place: str, x: Tensor) -> Tensor:
        """The tensor, cut from autograd if this is the place."""
        if self.cut == "some" and self.what == place:
            return x.detach()
        if place == "state" and self.cut == "some" and self.what in ("rows", "columns"):
            whole = torch.ones_like(x)
            (whole[: max(1, len(x) // 4)] if self.what == "rows" else whole[..., :1]).zero_()
            return torch.where(whole > 0, x, x.detach())
        if place == "state" and self.cut == "state":
            return x.detach()
        if place == "state" and self.cut == "numpy":
            return torch.from_numpy(x.detach().numpy().copy())
        return x

    def product(self, z: Tensor, weight: Tensor) -> Tensor:
        inside = self.inside or z.dtype
        return (z.to(inside) @ weight.to(inside)).to(z.dtype)

    def forward(self, z: Any, x: Tensor) -> Any:
        if self.kind == "pair":
            a, b = z
            b = self.cut_at("leaf", b / self.unit)
            y = self.value(a / self.unit + 0.5 * b, x)
            return self.unit * y, self.unit * 0.3 * torch.tanh(y + 0.5 * b)
        return self.unit * self.value(z / self.unit, x)

    def value(self, z: Tensor, x: Tensor) -> Tensor:
        z, x = self.cut_at("state", z), self.cut_at("operand", x)
        weight, bias = self.cut_at("weight", self.weight), self.cut_at("bias", self.bias)
        if self.kind == "energy" or self.cut == "energy":
            return self.descend(z, x)
        if self.normalizer:
            size = z.norm(dim=-1, keepdim=True)
            if self.cut == "part":
                size = size.detach()
            if self.cut == "number":
                size = float(z.detach().norm())
            z = 2.0 * z / (1.0 + size)
        if self.kind == "image":
            x = x.view(len(x), -1, 3, 3)
            z = z.view_as(x)
            inside = self.inside or z.dtype
            out = functional.conv2d(z.to(inside), self.kernel.to(inside), padding=1).to(z.dtype)
            return (0.4 * self.groups(self.act(out + x))).flatten(1)
        drive = self.product(x, self.inward) + bias
        if self.kind == "attention":
            q, k = self.product(z, self.queries), self.product(z, self.keys)
            mixed = torch.softmax(q @ k.mT / self.channels**0.5, -1) @ self.product(z, weight)
            return 0.5 * self.norm(self.act(mixed + drive))
        if self.kind == "gated":
            gate = torch.sigmoid(self.product(z, self.keys) + drive)
            return gate * torch.tanh(self.product(z, weight) + drive) + (1 - gate) * 0.3 * z
        if self.kind == "graph":
            z = self.edges.to(z) @ z / 6
        out = self.product(z, weight) + drive
        return 0.5 * self.norm(self.act(out)) if self.kind == "normalised" else self.act(out)

    def descend(self, z: Tensor, x: Tensor) -> Tensor:
        """-dE/dz and x."""
        with torch.enable_grad():
            z = z if z.requires_grad else z.detach().requires_grad_()
            energy = torch.log(torch.cosh(self.product(z, self.weight))).sum()
            right = self.cut != "energy"
            (slope,) = torch.autograd.grad(energy, z, create_graph=right and self.tracked)
        return 0.5 * x - slope

    @property
    def tracked(self) -> bool:
        return torch.is_grad_enabled()


def examined(number: int, seed: int, cut: str | None) -> tuple[str, tuple[Cut, ...], bool]:
    """A random cell: what it is, which of its derivatives are called wrong, does backward warn?"""
    rng = np.random.default_rng([seed, cut is not None, number])
    torch.manual_seed(number)
    kind = "energy" if cut == "energy" else str(rng.choice(KINDS))
    if kind == "energy" and cut in ("part", "number"):
        kind = "dense"
    dtype = [torch.float32, torch.float64][rng.integers(2)]
    unit = 10 ** rng.uniform(-8, 8) if rng.random() < 0.5 else 1.0
    inside = INSIDE[rng.integers(len(INSIDE) - (cut is not None))]  # bfloat16 hides parts
    cell = Cell(rng, kind, cut, unit, inside).to(dtype)
    # Of one row a ReLU may pass nothing, and then nothing is cut.
    rows = 6 if kind == "graph" else int(rng.choice([4, 16] if cut else [1, 4, 16]))
    shape = (rows, 5, cell.width) if kind == "attention" else (rows, cell.width)
    x = torch.as_tensor(rng.standard_normal(shape)).to(dtype)
    if rng.random() < 0.2 and rows > 1:
        x[0] = 0  # a row of padding
    mixes = kind == "graph" or cut == "number"
    start = (torch.zeros_like(x),) * 2 if kind == "pair" else torch.zeros_like(x)
    limits = {"rtol": 1e-3, "max_evals": 60}
    solver = [eq.Picard(damping=0.7, **limits), eq.Broyden(**limits), eq.NewtonKrylov(**limits)]
    layer = eq.DEQ(cell, solver=solver[rng.integers(3)], init=lambda _: start, coupled=mixes)
    about = f"number {number}, seed {seed}: {cut} in {kind} {cell.act.__name__} {cell.what} "
    about += f"{tuple(x.shape)} {dtype} {inside} unit {unit:.1e}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = layer(x.requires_grad_())
        torch.utils._pytree.tree_leaves(found.value)[0].sum().backward()
    warned = any(BACKWARD in str(each.message) for each in caught)
    with warnings.catch_warnings(action="ignore"):
        patient = Patient.admit(layer, (x.detach(),))
        patient.layer.init = lambda _: torch.utils._pytree.tree_map(Tensor.double, start)
        cuts = find_cuts(Exact.of(patient, found), seed)
    return about, cuts, warned


def judged(number: int, seed: int, cut: str | None) -> tuple[str, Report]:
    """The same, and what is false in it."""
    about, cuts, warned = examined(number, seed, cut)
    report = Report(remarks=[f"warned in backward ({cut})"] * warned)
    if cut is None:
        report.false += [f"false alarm: {each}" for each in cuts]
        report.false += ["false warning in backward"] * warned
    else:
        report.false += [] if cuts else [f"missed: {cut}"]
        missed = cut in ("state", "numpy") and "pair" not in about and not warned
        report.false += ["no warning in backward"] * missed
    return about, report


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--wrong", type=int, default=300)
    arguments.add_argument("--right", type=int, default=1000)
    given = arguments.parse_args()
    right = True
    for what, count in (("wrong cells", given.wrong), ("right cells", given.right)):
        tally = Tally(what, every=100)
        for number in range(count):
            cut = CUTS[number % len(CUTS)] if what == "wrong cells" else None
            tally.add(*judged(number, given.seed, cut))
        right = tally.close() and right
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
