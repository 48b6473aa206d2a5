"""One cell applied again and again, as an ordinary network does it."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from equilibria.nn.frozen import Frozen
from equilibria.solve import Shared

__all__ = ["frozen_layer"]


def frozen_layer(
    cell: nn.Module, operands: tuple[Any, ...], checkpointed: bool
) -> Callable[[Any], Any]:
    """Return z -> f(z) with one set of weights and dropout masks, in backward too.

    Args:
        cell: cell(z, *operands) -> z.
        operands: what does not change from one application to the next.
        checkpointed: keep the state alone and evaluate the cell again in backward.
    """
    plain = [x.value if isinstance(x, Shared) else x for x in operands]
    frozen = Frozen(cell)

    def layer(z: Any) -> Any:
        return frozen.run(None, z, *plain)

    if not checkpointed:
        return layer
    # No random number is drawn again: the masks are those that `frozen` holds.
    return lambda z: checkpoint(layer, z, use_reentrant=False, preserve_rng_state=False)
