"""The networks of coordinates that recipes name."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from torch import nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.models.base import ExplicitConfig, Model, ModelConfig
from equilibria.zoo.signal.model.network import (
    SIREN,
    ExplicitRepresentation,
    FilterKind,
    FourierFilter,
    GaborFilter,
    Injection,
    MultiplicativeCell,
    Phases,
    Representation,
    RepresentationCell,
    SineCell,
)


@dataclass(frozen=True, kw_only=True)
class RepresentationConfig(ModelConfig):
    """What all networks of coordinates have in common.

    Args:
        inputs: coordinates of a point: 1 of sound, 2 of an image, 3 of a video or a shape; null,
            in a recipe, for that of the data.
        outputs: values at a point; null likewise.
        width: entries of the state, D.
    """

    inputs: int | None = 2
    outputs: int | None = 1
    width: int = 256

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "inputs", "outputs", "width")

    def require(self, name: str) -> Any:
        """Return a field that a recipe may leave to the data.

        Raises:
            ValueError: it is null.
        """
        if (value := getattr(self, name)) is None:
            raise ValueError(f"{name} is null, and there are no data to take it from: give it")
        return value


@dataclass(frozen=True, kw_only=True)
class LayeredConfig(RepresentationConfig):
    """Networks whose layer takes the coordinates at each depth.

    Args:
        layers: of f, L.
        scale: of the frequencies at the start, w ~ U(-s, s) / sqrt(inputs) with s = `scale` /
            sqrt(`layers` + 1). It follows the sampling rate: about n for an image of n x n pixels;
            the released code takes n / 2, and half of what it takes for filters where the
            activation is a sine. Too small, and no training makes up for it. Null, in a recipe,
            for one that follows from the data.
        bound: largest norm of each square weight; null for none.
    """

    layers: int = 1
    scale: float | None = 256.0
    bound: float | None = 0.97

    cell_class: ClassVar[type[RepresentationCell]]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "layers", "scale", "bound")

    @property
    def frequencies(self) -> float:
        """Scale of the frequencies of each layer: `scale` / sqrt(`layers` + 1)."""
        return self.require("scale") / math.sqrt(self.layers + 1)

    @abc.abstractmethod
    def injection(self) -> Injection:
        """Return what computes the operands of the cell."""

    def cell(self) -> RepresentationCell:
        """Return f."""
        return self.cell_class(self.width, self.layers, self.bound)


@dataclass(frozen=True, kw_only=True)
class FilteredConfig(LayeredConfig):
    """Networks that multiply by filters.

    Args:
        filter: "fourier" or "gabor".
        alpha: of Gabor filters; the mean of gamma at the start is `alpha` / (`layers` + 1).
        first_alpha: the same for the filter that is added to the state.
    """

    filter: FilterKind = "fourier"
    alpha: float = 3.0
    first_alpha: float = 6.0

    cell_class = MultiplicativeCell

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.filter not in get_args(FilterKind):
            known = " or ".join(map(repr, get_args(FilterKind)))
            raise ValueError(
                f"filter must be {known}, got {self.filter!r}; sines in place of filters are the "
                "models 'isiren' and 'siren-injected'"
            )
        check_fields(self, "(0, inf)", "alpha", "first_alpha")

    @override
    def injection(self) -> Injection:
        inputs = self.require("inputs")

        def new(alpha: float) -> nn.Module:
            if self.filter == "fourier":
                return FourierFilter(inputs, self.width, self.frequencies)
            return GaborFilter(inputs, self.width, self.frequencies, alpha / (self.layers + 1))

        return Injection(new(self.first_alpha), [new(self.alpha) for _ in range(self.layers)])


@dataclass(frozen=True, kw_only=True)
class SineConfig(LayeredConfig):
    """Networks whose activation is a sine. Its fields are those of `LayeredConfig`."""

    cell_class = SineCell

    @override
    def injection(self) -> Injection:
        inputs = self.require("inputs")
        later = [Phases(inputs, self.width, self.frequencies) for _ in range(self.layers)]
        return Injection(FourierFilter(inputs, self.width, self.frequencies), later)


@dataclass(frozen=True, kw_only=True)
class ImplicitRepresentationConfig(LayeredConfig):
    """Networks whose layer is solved for its equilibrium.

    With a bound below 1 the layer is a contraction and has one fixed point. The source takes none
    for sound and video: then a fixed point need not exist, and status and residual say whether one
    was found.
    """

    @override
    def build(self, **layer: Any) -> Representation:
        return Representation(self, **layer)


@dataclass(frozen=True, kw_only=True)
class ExplicitRepresentationConfig(LayeredConfig, ExplicitConfig):
    """Networks that evaluate the layer once, at zero.

    Args:
        bound: the source has .97 here too, in its networks of images; without it they fit better.
    """

    bound: float | None = None

    @override
    def network(self) -> Model:
        return ExplicitRepresentation(self)


@dataclass(frozen=True, kw_only=True)
class IMFNConfig(FilteredConfig, ImplicitRepresentationConfig):
    """The architecture of an implicit multiplicative filter network (iMFN).

    From 2 coordinates to 1 value, one layer 256 wide has 67,585 parameters, one layer 512 wide
    266,241, four layers 256 wide 267,265; with Gabor filters 1,536, 3,072 and 3,840 more.

    Its fields are those of `RepresentationConfig`, `LayeredConfig` and `FilteredConfig`.

    papers: Bai 2022 (thesis), eq. 8.6.
    """

    @property
    @override
    def title(self) -> str:
        return f"{self.filter.capitalize()} iMFN"


@dataclass(frozen=True, kw_only=True)
class ISIRENConfig(SineConfig, ImplicitRepresentationConfig):
    """The architecture of an implicit network with sines (iSIREN).

    As many parameters as an iMFN with Fourier filters. Its fields are those of
    `RepresentationConfig` and `LayeredConfig`.

    papers: Bai 2022 (thesis), eq. 8.5.
    """

    @property
    @override
    def title(self) -> str:
        return "iSIREN"


@dataclass(frozen=True, kw_only=True)
class MFNConfig(ExplicitRepresentationConfig, FilteredConfig):
    """The architecture of a multiplicative filter network (MFN) of `layers` + 1 filters.

    Its fields are those of `IMFNConfig`, and so is its size.

    papers: Fathony et al. 2021; Bai 2022 (thesis), eq. 8.3.
    """

    @property
    @override
    def title(self) -> str:
        return f"{self.filter.capitalize()} MFN"


@dataclass(frozen=True, kw_only=True)
class InjectedSIRENConfig(ExplicitRepresentationConfig, SineConfig):
    """The architecture of a network with sines that takes the coordinates at each layer: the
    "SIREN (input inj.)" of the source.

    Its fields are those of `ISIRENConfig`, and so is its size.

    papers: Bai 2022 (thesis), eq. 8.5 and Table 8.1.
    """

    @property
    @override
    def title(self) -> str:
        return "SIREN with input injection"


@dataclass(frozen=True, kw_only=True)
class SIRENConfig(RepresentationConfig, ExplicitConfig):
    """The architecture of SIREN, of 198,401 parameters from 2 coordinates to 1 value.

    Args:
        hidden: square layers between the first sine and the readout.
        omega: what the arguments of all sines are multiplied by, the w0 of the source.
    """

    hidden: int = 3
    omega: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "hidden", "omega")

    @property
    @override
    def title(self) -> str:
        return "SIREN"

    @override
    def network(self) -> SIREN:
        return SIREN(self)
