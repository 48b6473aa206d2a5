"""A small version of every registered model, with inputs for it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import small_sequences
from equilibria.run import models
from equilibria.solve import Anderson, Picard, Unrolled
from flow_tree import MINI


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def images() -> Tensor:
    return draw(5, 1, 8, 8)


def sequences() -> Tensor:
    return draw(5, 7, 4)


def points() -> Tensor:
    return draw(5, 2).tanh()


def tokens() -> Tensor:
    return small_sequences.tokens(3, 9)


def surprise(model: Any, output: Tensor) -> Tensor:
    return model.losses(output, tokens()).sum()


def graphs() -> tuple[Tensor, Tensor, None, Tensor]:
    """Three graphs of four nodes, in one."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, 4, (2, 20), generator=generator)
    edges = edges + 4 * torch.randint(0, 3, (20,), generator=generator)
    return draw(12, 5), edges, None, torch.arange(3).repeat_interleave(4)


def pair(batch: int = 2, height: int = 32, width: int = 40) -> tuple[Tensor, Tensor]:
    """First and second images: noise, and the same moved and changed a little."""
    generator = torch.Generator().manual_seed(1)
    first = torch.rand(batch, 3, height, width, generator=generator) * 255
    return first, first.roll((1, 2), (2, 3)) * 0.9 + 10


SOLVED = {"solver": Anderson(rtol=1e-5, max_evals=200)}
FEW = {"solver": Picard(max_evals=6), "adjoint": Unrolled()}
"""Some refinements of a flow, as an unrolled network makes them: none untrained settles."""


class Kind(NamedTuple):
    """What models have in common: their inputs, the shape of their answers, and more."""

    inputs: Callable[[], Any]
    output: tuple[int, ...]
    """Its first axes."""
    refuses: str = ""
    """Why none becomes a file."""
    layer: dict[str, Any] = SOLVED
    """Keywords of their equilibrium layer."""
    loss: Callable[[Any, Tensor], Tensor] = lambda _, output: output.square().sum()
    """Of the model and its answer."""
    exports: bool = True
    """Whether torch can trace one, if it does not refuse that itself."""


IMAGE = Kind(images, (5, 3))
MASKS = Kind(images, (5, 3, 8, 8))
ODE = Kind(images, (5, 3), "chooses its steps by the data")
TEXT = Kind(tokens, (3, 9), "is a language model", loss=surprise)
GRAPHS = Kind(graphs, (12, 3), exports=False)
SEQUENCES = Kind(sequences, (5, 3))
PLACES = Kind(lambda: draw(5, 4, 7), (5, 3, 7))
REASONER = PLACES._replace(layer={"solver": Picard(rtol=1e-5, max_evals=2000, patience=None)})
POINTS = Kind(points, (5, 3))
FLOW = Kind(pair, (2, 2, 32, 40), layer=FEW)

CLASSES = {"shape": (1, 8, 8), "classes": 3}
MULTISCALE = {**CLASSES, "channels": (4, 4), "head_channels": (2, 2), "expansion": 2}
MULTISCALE |= {"final": 4, "groups": 2, "norm": "none", "initial": 0.1}
NODES = {"shape": (5,), "classes": 3, "level": "node", "hidden": (8,), "dropout": 0.0}
PLACE = {"shape": (4, 7), "classes": 3, "width": 8, "heads": 2}
VALUES = {"inputs": 2, "outputs": 3, "width": 8}
FINE = {**MINI, "context_norm": "batch"}
COARSE = {key: value for key, value in FINE.items() if key not in ("hidden", "mask")}

ALL: dict[str, tuple[Kind, dict[str, Any]]] = {
    "augmented-neural-ode": (ODE, {**CLASSES, "filters": 4, "augment": 2}),
    "conv": (IMAGE, {**CLASSES, "channels": 8, "groups": 2, "stride": 2}),
    "deq-gma": (FLOW, FINE),
    "deq-raft": (FLOW, FINE),
    "deq-raft-small": (FLOW, COARSE),
    "dense": (IMAGE, {**CLASSES, "width": 8}),
    "eignn": (GRAPHS, NODES),
    "fixed-depth": (PLACES, {**PLACE, "cell": "attention", "depth": 3}),
    "gcn": (GRAPHS, NODES),
    "gma": (FLOW, {**FINE, "steps": 3}),
    "graph-mlp": (GRAPHS, NODES),
    "ignn": (GRAPHS, NODES),
    "ignn-finite": (GRAPHS, NODES),
    "imfn": (POINTS, VALUES),
    "isiren": (POINTS, VALUES),
    "mdeq": (IMAGE, MULTISCALE),
    "mdeq-segmentation": (MASKS, MULTISCALE),
    "mdeq-segmentation-unrolled": (MASKS, {**MULTISCALE, "layers": 3}),
    "mdeq-unrolled": (IMAGE, {**MULTISCALE, "layers": 3}),
    "mfn": (POINTS, VALUES),
    "mgnni": (GRAPHS, NODES),
    "monotone": (IMAGE, {**CLASSES, "channels": (4, 4), "squares": 2}),
    "monotone-dense": (IMAGE, {**CLASSES, "width": 8}),
    "neural-ode": (ODE, {**CLASSES, "filters": 4}),
    "raft": (FLOW, {**FINE, "steps": 3}),
    "raft-small": (FLOW, {**COARSE, "steps": 3}),
    "reasoner": (REASONER, PLACE),
    "recurrent": (SEQUENCES, {"shape": (4,), "classes": 3, "hidden": 6}),
    "resnet": (IMAGE, {**CLASSES, "widths": (4, 8), "blocks": (1, 1)}),
    "sequence-lstm": (PLACES, {"shape": (4, 7), "classes": 3, "width": 6}),
    "siren": (POINTS, VALUES),
    "siren-injected": (POINTS, VALUES),
    "unet": (MASKS, {**CLASSES, "widths": (4, 8)}),
    **{name: (TEXT, fields) for name, fields in small_sequences.SMALL.items()},
}
"""The kind of each model, and its fields."""

SMALL = {name: ALL[name] for name in models.available() if name in ALL}
"""Those of the applications that are there."""


def build(name: str, seed: int = 0) -> Any:
    """A small model in which no weight is zero, which would hide others from the gradient."""
    kind, fields = SMALL[name]
    torch.manual_seed(seed)
    layer = kind.layer if models.config_of(name)(**fields).implicit else {}
    model = models.create(name, **fields, **layer)
    with torch.no_grad():
        for weight in model.parameters():
            if not weight.any():
                weight.fill_(0.1)
    return model
