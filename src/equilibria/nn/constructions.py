"""Why one layer is enough: the constructions in the universality proofs, as modules.

`WeightTied` rewrites a deep network as one layer applied again and again; `Stacked` merges a stack
of equilibrium layers into one. Both are cells for a `DEQ`, made to be looked at and tested: the
first is mostly zeros.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


class WeightTied(nn.Module):
    """A deep network as one weight-tied, input-injected layer: f(z; x) = s(W_z z + W_x x + b).

    For a network h_i+1 = s_i(W_i h_i + b_i) with h_0 = x and L layers, the state
    z = [h_1; ...; h_L] holds all its hidden layers. W_z carries W_1 ... W_L-1 on its first block
    sub-diagonal, W_x = [W_0; 0; ...; 0], b = [b_0; ...; b_L-1], and block i of s is s_i. L
    applications are the network, from any start: each one carries every layer a block further,
    W_z is nilpotent, and the state is then the exact fixed point.

    The weights are dense copies; on their non-zero blocks they have the gradients of the network.

    Args:
        network: alternating `nn.Linear` and activations. What stands between two linear layers is
            the activation of the first and keeps the width; it may be nothing.

    Shapes:
        z: (batch, sum of the hidden widths), x: (batch, inputs); the network's output is the last
        block of z.

    Raises:
        ValueError: the network does not begin with a linear layer, or their widths do not chain.

    Source:
        Bai et al. 2019, Theorem 3 and eqs. 17 to 21; Bai 2022 (thesis), Theorem 1.
    """

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        layers = list(network)
        places = [i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
        if not places or places[0] != 0:
            raise ValueError("expected an nn.Sequential that begins with an nn.Linear")
        linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
        for first, second in pairwise(linears):
            if first.out_features != second.in_features:
                raise ValueError(
                    f"a linear layer gives {first.out_features} features and the next one takes "
                    f"{second.in_features}: activations between them must keep the width"
                )
        self.widths = [linear.out_features for linear in linears]
        self.activations = nn.ModuleList(
            nn.Sequential(*layers[start + 1 : end])
            for start, end in pairwise([*places, len(layers)])
        )
        like: Any = {"dtype": linears[0].weight.dtype, "device": linears[0].weight.device}
        total = sum(self.widths)
        self.recur = nn.Linear(total, total, bias=False, **like)
        self.inject = nn.Linear(linears[0].in_features, total, **like)
        with torch.no_grad():
            for parameter in (*self.recur.parameters(), *self.inject.parameters()):
                parameter.zero_()
            self.inject.weight[: self.widths[0]] = linears[0].weight
            for index, linear in enumerate(linears):
                if index:
                    self.block(self.recur.weight, index).copy_(linear.weight)
                if (bias := getattr(linear, "bias", None)) is not None:
                    self.split(self.inject.bias)[index].copy_(bias)

    @property
    def depth(self) -> int:
        """L, the number of layers of the network and of applications until the fixed point."""
        return len(self.widths)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        blocks = self.split(self.recur(z) + self.inject(x))
        return torch.cat([s(h) for s, h in zip(self.activations, blocks, strict=True)], dim=-1)

    def split(self, z: Tensor) -> tuple[Tensor, ...]:
        """The hidden layers h_1 ... h_L in a state, or the blocks of what is shaped like one."""
        return torch.split(z, self.widths, dim=-1)

    def block(self, weight: Tensor, index: int) -> Tensor:
        """The block of W_z, or of its gradient, where W_index of the network stands, index >= 1."""
        rows = torch.split(weight, self.widths, dim=0)[index]
        return torch.split(rows, self.widths, dim=1)[index - 1]


class Stacked(nn.Module):
    """A stack of equilibrium layers as one: the cells f_1 ... f_n on the state (w_1, ..., w_n).

    F((w_1, ..., w_n); x) = (f_1(w_1; x), f_2(w_2; w_1), ..., f_n(w_n; w_n-1)). Its fixed point is
    that of solving f_1 with x, then f_2 with the solution, and so on; its Jacobian is block
    triangular, so that its spectral radius is the largest of the cells'.

    Args:
        cells: callables cell(z, *inputs) -> z, whose states are tensors or trees; the first gets
            the inputs and every other one the state of its predecessor.

    Raises:
        ValueError: there are no cells.

    Source:
        Bai et al. 2019, Theorem 2 and eq. 16; Bai 2022 (thesis), Theorem 3, for two cells.
    """

    def __init__(self, *cells: Callable[..., Any]) -> None:
        super().__init__()
        if not cells:
            raise ValueError("expected at least one cell")
        for index, cell in enumerate(cells):
            setattr(self, f"cell{index}", cell)
        self.depth = len(cells)

    def forward(self, states: tuple[Any, ...], *inputs: Any) -> tuple[Any, ...]:
        feeds = [inputs, *((state,) for state in states)]
        return tuple(
            getattr(self, f"cell{index}")(state, *feeds[index])
            for index, state in enumerate(states)
        )
