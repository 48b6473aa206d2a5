"""The layers whose weights can be normalised or dropped out."""

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

__all__ = ["weighted_layers"]


def weighted_layers(module: nn.Module, sharing: str) -> list[tuple[str, nn.Linear | _ConvNd]]:
    """Path and module of each linear and convolutional layer in a module, the module included.

    Args:
        module: what is to be searched.
        sharing: what would become of two layers that share a weight, for the message.

    Raises:
        ValueError: there is none; or a weight that is not parametrised is shared by two layers or
            not yet initialised.
    """
    layers = [(path, m) for path, m in module.named_modules() if isinstance(m, nn.Linear | _ConvNd)]
    if not layers:
        raise ValueError(f"{type(module).__name__} contains no linear or convolutional layer")
    owners: dict[Tensor, str] = {}
    for path, layer in layers:
        if parametrize.is_parametrized(layer, "weight"):
            continue
        if isinstance(layer.weight, nn.UninitializedParameter):
            raise ValueError(f"'{path}' is lazy: run the module once before")
        if layer.weight in owners:
            raise ValueError(
                f"'{owners[layer.weight]}' and '{path}' share one weight, and {sharing}: share the "
                "layer instead"
            )
        owners[layer.weight] = path
    return layers
