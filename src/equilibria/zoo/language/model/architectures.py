"""The four architectures around the two cells: at equilibrium, and stacked."""

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.models.base import ExplicitConfig
from equilibria.zoo.language.model.base import SequenceModel
from equilibria.zoo.language.model.cell import CellConfig
from equilibria.zoo.language.model.equilibrium import EquilibriumSequence
from equilibria.zoo.language.model.stack import TiedStack, UntiedStack
from equilibria.zoo.language.model.transformer import TransformerConfig
from equilibria.zoo.language.model.trellis import TrellisConfig

__all__ = [
    "DEQTransformerConfig",
    "DEQTrellisNetConfig",
    "TransformerXLConfig",
    "TrellisNetConfig",
]


@dataclass(frozen=True, kw_only=True)
class EquilibriumConfig(CellConfig):
    """What the configs of equilibrium sequence models add to those of their cells.

    Args:
        subsequence: times that are solved together, one piece of a segment after the other; None
            for a whole segment.
    """

    subsequence: int | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "subsequence")

    @override
    def build(self, **layer: Any) -> EquilibriumSequence:
        return EquilibriumSequence(self, self.subsequence, **layer)


@dataclass(frozen=True, kw_only=True)
class StackConfig(CellConfig, ExplicitConfig):
    """What the configs of explicit networks add to those of their cells.

    Args:
        layers: applications of a cell.
        tied: all layers are one cell, as at equilibrium; else each has weights of its own.
        checkpoint: keep the state alone of each layer and evaluate the layer again in backward.
    """

    layers: int = 12
    tied: bool = True
    checkpoint: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "layers")

    @override
    def network(self) -> SequenceModel:
        kind = TiedStack if self.tied else UntiedStack
        return kind(self, self.layers, self.checkpoint)


@dataclass(frozen=True, kw_only=True)
class DEQTransformerConfig(EquilibriumConfig, TransformerConfig):
    """The architecture of a Transformer at its equilibrium.

    Its fields are those of `TransformerConfig`, and `subsequence`: times that are solved together,
    one piece of a segment after the other; None for a whole segment.
    """


@dataclass(frozen=True, kw_only=True)
class DEQTrellisNetConfig(EquilibriumConfig, TrellisConfig):
    """The architecture of a trellis network at its equilibrium.

    Its fields are those of `TrellisConfig`, and `subsequence`: times that are solved together, one
    piece of a segment after the other; None for a whole segment.
    """


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(StackConfig, TransformerConfig):
    """The architecture of a Transformer of so many layers.

    Its fields are those of `TransformerConfig`, and `layers`, `tied` and `checkpoint`. Tied, it is
    the equilibrium model's cell applied again and again; untied, Transformer-XL.
    """

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        injected = self.direct or self.injection_kernel > 1 or self.injection_scale is not None
        if injected and not self.tied:
            raise ValueError(
                "direct, injection_kernel and injection_scale are of an injection, and untied "
                "layers have none: leave them out, or set tied"
            )


@dataclass(frozen=True, kw_only=True)
class TrellisNetConfig(StackConfig, TrellisConfig):
    """The architecture of a trellis network of so many layers.

    Its fields are those of `TrellisConfig`, and `layers`, `tied` and `checkpoint`. Tied, it is the
    trellis network of the paper; untied, a temporal convolutional network of the same cells, the
    first of which has zeros alone to convolve.
    """
