"""Models by name."""

import dataclasses
from typing import Any

from equilibria.models.base import Model, ModelConfig
from equilibria.models.conv import ConvConfig
from equilibria.models.dense import DenseConfig
from equilibria.models.flow.configs import (
    DEQGMAConfig,
    DEQRAFTConfig,
    DEQRAFTSmallConfig,
    GMAConfig,
    RAFTConfig,
    RAFTSmallConfig,
)
from equilibria.models.graph.configs import (
    EIGNNConfig,
    FiniteIGNNConfig,
    GCNConfig,
    GraphMLPConfig,
    IGNNConfig,
    MGNNIConfig,
)
from equilibria.models.recurrent.classifier import RecurrentConfig
from equilibria.models.representation.configs import (
    IMFNConfig,
    InjectedSIRENConfig,
    ISIRENConfig,
    MFNConfig,
    SIRENConfig,
)
from equilibria.models.sequence.architectures import (
    DEQTransformerConfig,
    DEQTrellisNetConfig,
    TransformerXLConfig,
    TrellisNetConfig,
)
from equilibria.models.sequence.recurrent import (
    CellLanguageConfig,
    GRUConfig,
    LSTMConfig,
)
from equilibria.models.vision.mdeq import MDEQConfig, MDEQUnrolledConfig
from equilibria.models.vision.monotone import MonotoneConvConfig, MonotoneDenseConfig
from equilibria.models.vision.ode import AugmentedNeuralODEConfig, NeuralODEConfig
from equilibria.models.vision.resnet import ResNetConfig
from equilibria.models.vision.segmentation import (
    MDEQSegmentationConfig,
    MDEQSegmentationUnrolledConfig,
)
from equilibria.models.vision.unet import UNetConfig
from equilibria.words import nearest

CONFIGS: dict[str, type[ModelConfig]] = {
    "augmented-neural-ode": AugmentedNeuralODEConfig,
    "conv": ConvConfig,
    "dense": DenseConfig,
    "deq-gma": DEQGMAConfig,
    "deq-raft": DEQRAFTConfig,
    "deq-raft-small": DEQRAFTSmallConfig,
    "deq-transformer": DEQTransformerConfig,
    "deq-trellisnet": DEQTrellisNetConfig,
    "eignn": EIGNNConfig,
    "gcn": GCNConfig,
    "gma": GMAConfig,
    "graph-mlp": GraphMLPConfig,
    "gru": GRUConfig,
    "ignn": IGNNConfig,
    "ignn-finite": FiniteIGNNConfig,
    "imfn": IMFNConfig,
    "isiren": ISIRENConfig,
    "lstm": LSTMConfig,
    "mdeq": MDEQConfig,
    "mdeq-segmentation": MDEQSegmentationConfig,
    "mdeq-segmentation-unrolled": MDEQSegmentationUnrolledConfig,
    "mdeq-unrolled": MDEQUnrolledConfig,
    "mfn": MFNConfig,
    "mgnni": MGNNIConfig,
    "monotone": MonotoneConvConfig,
    "monotone-dense": MonotoneDenseConfig,
    "neural-ode": NeuralODEConfig,
    "raft": RAFTConfig,
    "raft-small": RAFTSmallConfig,
    "recurrent": RecurrentConfig,
    "recurrent-lm": CellLanguageConfig,
    "resnet": ResNetConfig,
    "siren": SIRENConfig,
    "siren-injected": InjectedSIRENConfig,
    "transformer-xl": TransformerXLConfig,
    "trellisnet": TrellisNetConfig,
    "unet": UNetConfig,
}
"""The config of each model, by the model's name."""

LAYER = ("solver", "eval_solver", "adjoint", "drop_finished")
"""Keywords of `create` that go to the `DEQ` layer of a model that has one."""


def available() -> list[str]:
    """Return the names that `create` knows."""
    return sorted(CONFIGS)


def register(name: str, config: type[ModelConfig]) -> None:
    """Let `create` and recipes name a model.

    Args:
        name: of the model.
        config: a frozen dataclass that builds it.

    Raises:
        ValueError: the name is taken.
    """
    if CONFIGS.setdefault(name, config) is not config:
        raise ValueError(f"there is a model '{name}' already")


def create(name: str, **overrides: Any) -> Model:
    """Build the model `name`.

    Args:
        name: one of `available()`.
        **overrides: fields of the model's config, for example `width=128`, and keywords of its
            `DEQ` layer: `solver`, `eval_solver`, `adjoint`, `drop_finished`.

    Raises:
        ValueError: there is no such model, or a field has an impossible value.
        TypeError: the model has no such field; the message names the nearest.

    Example:
        >>> model = create("dense", width=64)
    """
    if name not in CONFIGS:
        raise ValueError(f"there is no model '{name}'" + nearest(name, available()))
    fields = [field.name for field in dataclasses.fields(CONFIGS[name])]
    for key in overrides:
        if key not in (*fields, *LAYER):
            raise TypeError(f"model '{name}' has no field '{key}'" + nearest(key, fields))
    layer = {key: overrides.pop(key) for key in LAYER if key in overrides}
    return CONFIGS[name](**overrides).build(**layer)
