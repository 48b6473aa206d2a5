"""Learned initial guesses: small networks that predict a layer's equilibrium from its injection."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from equilibria.solve import Tree, flatten, unflatten

RANK = 100
"""The p of eq. 6.2."""


class Guess(nn.Module, abc.ABC):
    """Correction to one leaf of a layer's own initial state. The last layer is initialised to zero,
    so an untrained network adds nothing.

    Args:
        inputs: number of features of the injection.
        outputs: number of features of the leaf.
        rank: width of the bottleneck.
    """

    axes: ClassVar[str]
    """Axes of the state; the feature axis is called "features"."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.sizes = {"inputs": inputs, "outputs": outputs, "rank": rank}

    def check(self, u: Tensor, like: Tensor) -> None:
        """Raise ValueError if the shape of the injection or of the state does not match."""
        for what, tensor in (("inputs", u), ("outputs", like)):
            axes, size = self.axes.split(", "), self.sizes[what]
            if tensor.ndim != len(axes) or tensor.shape[axes.index("features")] != size:
                name = "an injection" if what == "inputs" else "a state"
                shape = self.axes.replace("features", str(size))
                raise ValueError(
                    f"the learned initial guess expects {name} ({shape}), but was given "
                    f"{tuple(tensor.shape)}: it was distilled from another cell"
                )

    @abc.abstractmethod
    def forward(self, u: Tensor, like: Tensor) -> Tensor:
        """Return the correction, of the same shape as `like`, given the injection `u`."""


class SequenceGuess(Guess):
    """ReLU(Conv1d(u)) W, with a causal convolution over 3 time steps, for states (batch, time, q).

    Source:
        Bai 2022 (thesis), eq. 6.2.
    """

    axes = "batch, time, features"

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs, rank)
        self.convolution = nn.Conv1d(inputs, rank, 3)
        self.low_rank = _zero(nn.Linear(rank, outputs))

    @override
    def forward(self, u: Tensor, like: Tensor) -> Tensor:
        h = self.convolution(F.pad(u.transpose(1, 2), (2, 0)))
        return self.low_rank(F.relu(h).transpose(1, 2))


class ImageGuess(Guess):
    """W ReLU(D * (V u)), with 1 x 1 convolutions V and W and a depthwise 5 x 5 convolution D, for
    states (batch, channels, height, width).

    The injection is first average-pooled to the resolution of the state. The thesis does not
    specify its initialiser for images.
    """

    axes = "batch, features, height, width"

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs, rank)
        self.narrow = nn.Conv2d(inputs, rank, 1)
        self.places = nn.Conv2d(rank, rank, 5, padding=2, groups=rank)
        self.widen = _zero(nn.Conv2d(rank, outputs, 1))

    @override
    def forward(self, u: Tensor, like: Tensor) -> Tensor:
        size = like.shape[2:]
        if u.shape[2:] != size:
            u = F.adaptive_avg_pool2d(u, (int(size[0]), int(size[1])))
        return self.widen(F.relu(self.places(self.narrow(u))))


class DenseGuess(Guess):
    """W ReLU(V u + b), for states (batch, entries)."""

    axes = "batch, features"

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs, rank)
        self.narrow = nn.Linear(inputs, rank)
        self.widen = _zero(nn.Linear(rank, outputs))

    @override
    def check(self, u: Tensor, like: Tensor) -> None:
        if u[0].numel() != self.sizes["inputs"]:  # whatever its axes
            raise ValueError(
                f"the learned initial guess expects {self.sizes['inputs']} inputs, but was given "
                f"{tuple(u.shape[1:])}: that of a dense layer works for one size only"
            )
        super().check(u.flatten(1), like)

    @override
    def forward(self, u: Tensor, like: Tensor) -> Tensor:
        return self.widen(F.relu(self.narrow(u.flatten(1))))


GUESSES = {"sequence": SequenceGuess, "image": ImageGuess, "dense": DenseGuess}
"""Kinds of initial guesses, by the names under which they are saved."""


class Initializer(nn.Module):
    """h(x): an initial guess for each leaf of a layer's state, from the first tensor of its inputs.

    Args:
        guesses: one for each leaf.
    """

    def __init__(self, guesses: Sequence[Guess]) -> None:
        super().__init__()
        self.guesses = nn.ModuleList(guesses)

    @property
    def parts(self) -> list[Guess]:
        """The guesses, in the order of the leaves."""
        return [guess for guess in self.guesses if isinstance(guess, Guess)]

    def forward(self, inputs: Tree, own: Tree) -> Tree:
        """Return the initial guess.

        Args:
            inputs: of the layer.
            own: the layer's own initial state.
        """
        u = injection(inputs)
        leaves, spec = flatten(own)
        if len(leaves) != len(self.guesses):
            raise ValueError(
                f"the learned initial guess has {len(self.guesses)} tensors, but the state has "
                f"{len(leaves)}: it was distilled from another cell"
            )
        for leaf, guess in zip(leaves, self.parts, strict=True):
            guess.check(u, leaf)
        pairs = zip(leaves, self.guesses, strict=True)
        return unflatten([leaf + guess(u, leaf).to(leaf.dtype) for leaf, guess in pairs], spec)


def injection(inputs: Tree) -> Tensor:
    """Return the first floating-point tensor of a layer's inputs.

    Raises:
        ValueError: there is none.
    """
    for leaf in flatten(inputs)[0]:
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim:
            return leaf
    raise ValueError(
        "a learned initial guess needs a floating-point input, but this layer was given none"
    )


def initializer_for(inputs: Tree, own: Tree, budget: int) -> Initializer:
    """Return an untrained initialiser for a layer, which returns the layer's own initial state.

    Args:
        inputs: example inputs of the layer.
        own: its own initial state for them: (batch, time, features), (batch, channels, height,
            width) or (batch, entries), or a tree of these.
        budget: maximum number of parameters; the bottleneck is as wide as this allows, between 2
            and 100, the width in the thesis.

    Raises:
        ValueError: a state of this shape is not supported, or the injection has different axes.
    """
    u = injection(inputs)
    makers = [_maker(u, leaf) for leaf in flatten(own)[0]]
    of_rank = sum(sum(p.numel() for p in make(2).parameters()) for make in makers) / 2
    rank = max(2, min(RANK, int(budget / of_rank)))
    return Initializer([make(rank) for make in makers])


def _maker(u: Tensor, leaf: Tensor) -> Callable[[int], Guess]:
    """Return a constructor of the guess for one leaf, which takes the width of the bottleneck."""
    if leaf.ndim == 3 and u.ndim == 3:
        return partial(SequenceGuess, u.shape[2], leaf.shape[2])
    if leaf.ndim == 4 and u.ndim == 4:
        return partial(ImageGuess, u.shape[1], leaf.shape[1])
    if leaf.ndim == 2:
        return partial(DenseGuess, u[0].numel(), leaf.shape[1])
    raise ValueError(
        f"there is no learned initial guess for a state {tuple(leaf.shape)} and an injection "
        f"{tuple(u.shape)}: expected both (batch, time, features), or both (batch, channels, "
        "height, width), or a state (batch, entries)"
    )


M = TypeVar("M", nn.Linear, nn.Conv2d)


def _zero(module: M) -> M:
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module
