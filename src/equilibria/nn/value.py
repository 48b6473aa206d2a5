"""A layer that returns its value alone."""

from __future__ import annotations

from typing import Any

from torch import nn

from equilibria.solve import Solution

__all__ = ["Value"]


class Value(nn.Module):
    """z* alone, of a layer that returns a `Solution`: for `nn.Sequential` and other modules that
    hand on what they get.

    Status and stats do not come out of it. Give the layer `throw=True` if a solve that fails must
    raise, or read them in a forward hook: `value.layer.register_forward_hook(lambda layer, inputs,
    sol: log(sol.status))`.

    Args:
        layer: a `DEQ`, or another module that returns a `Solution`.

    Raises:
        TypeError: layer is no module; or, when it is called, it returns no `Solution`.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 32), Value(DEQ(cell)), nn.Linear(32, 10))
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        if not isinstance(layer, nn.Module):
            raise TypeError(f"layer: expected a module, such as eq.DEQ(cell), got {layer!r}")
        self.layer = layer

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return z*, a tensor or a tree of tensors like the state.

        Args:
            inputs: of the layer.
            options: of the call, such as `z0` and `warm` of a `DEQ`, and inputs by name.
        """
        solution = self.layer(*inputs, **options)
        if not isinstance(solution, Solution):
            raise TypeError(
                f"eq.nn.Value: {type(self.layer).__name__} returned a {type(solution).__name__}, "
                "not a Solution: it needs no Value around it"
            )
        return solution.value
