"""Learned starts: small networks from what is injected into a layer to its equilibrium."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from equilibria.solve.tree import Tree, flatten, unflatten

__all__ = ["Guess", "Initialiser", "initialiser_for"]

RANK = 100
"""The p of eq. 6.2."""


class Guess(nn.Module, abc.ABC):
    """What is added to one leaf of a layer's own start. The last map begins with zeros, so that
    untrained it adds nothing.

    Args:
        inputs: features of the injection.
        outputs: features of the leaf.
        rank: width of the bottleneck.
    """

    axes: ClassVar[str]
    """Of a state, with a name for the features."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.sizes = {"inputs": inputs, "outputs": outputs, "rank": rank}

    def check(self, u: Tensor, like: Tensor) -> None:
        """Raise ValueError if this was made for another injection, or another leaf of a state."""
        for what, tensor in (("inputs", u), ("outputs", like)):
            axes, size = self.axes.split(", "), self.sizes[what]
            if tensor.ndim != len(axes) or tensor.shape[axes.index("features")] != size:
                name = "an injection" if what == "inputs" else "a state"
                shape = self.axes.replace("features", str(size))
                raise ValueError(
                    f"the learned start is made for {name} ({shape}), and was given "
                    f"{tuple(tensor.shape)}: it was distilled from another cell"
                )

    @abc.abstractmethod
    def forward(self, u: Tensor, like: Tensor) -> Tensor:
        """Return the guess, of the shape of `like`, from the injection `u`."""


class SequenceGuess(Guess):
    """ReLU(Conv1d(u)) W with a causal convolution of 3 times, states (batch, time, q).

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
    """W ReLU(D * (V u)) with V and W of each place and D a convolution of each channel by itself,
    5 x 5, states (batch, channels, height, width).

    The injection is brought to the size of the state by average pooling first. The thesis leaves
    its initialiser of images open.
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
    """W ReLU(V u + b), states (batch, entries)."""

    axes = "batch, features"

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs, rank)
        self.narrow = nn.Linear(inputs, rank)
        self.widen = _zero(nn.Linear(rank, outputs))

    @override
    def check(self, u: Tensor, like: Tensor) -> None:
        if u[0].numel() != self.sizes["inputs"]:  # of any axes
            raise ValueError(
                f"the learned start is of {self.sizes['inputs']} inputs, and has been given "
                f"{tuple(u.shape[1:])}: a dense layer has one size"
            )
        super().check(u.flatten(1), like)

    @override
    def forward(self, u: Tensor, like: Tensor) -> Tensor:
        return self.widen(F.relu(self.narrow(u.flatten(1))))


GUESSES = {"sequence": SequenceGuess, "image": ImageGuess, "dense": DenseGuess}
"""The kinds of guesses, by the names under which they are saved."""


class Initialiser(nn.Module):
    """h(x): a start for each leaf of a layer's state, from the first tensor of its inputs.

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
        """Return the start.

        Args:
            inputs: of the layer.
            own: the layer's own start.
        """
        u = injection(inputs)
        leaves, spec = flatten(own)
        if len(leaves) != len(self.guesses):
            raise ValueError(
                f"the learned start is of {len(self.guesses)} tensors, and the state has "
                f"{len(leaves)}: it was distilled from another cell"
            )
        for leaf, guess in zip(leaves, self.parts, strict=True):
            guess.check(u, leaf)
        pairs = zip(leaves, self.guesses, strict=True)
        return unflatten([leaf + guess(u, leaf).to(leaf.dtype) for leaf, guess in pairs], spec)


def injection(inputs: Tree) -> Tensor:
    """The first floating-point tensor of a layer's inputs.

    Raises:
        ValueError: there is none.
    """
    for leaf in flatten(inputs)[0]:
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim:
            return leaf
    raise ValueError("a learned start is made from a layer's first tensor, and it has no input")


def initialiser_for(inputs: Tree, own: Tree, budget: int) -> Initialiser:
    """Return an untrained initialiser for a layer: it gives the layer's own start.

    Args:
        inputs: of the layer, an example.
        own: its own start for them: states (batch, time, features), (batch, channels, height,
            width) or (batch, entries), or trees of such.
        budget: parameters that it may have; the bottleneck is as wide as that allows, from 2 to
            the 100 of the thesis.

    Raises:
        ValueError: the state has other axes, or those of the injection are others than the state's.
    """
    u = injection(inputs)
    makers = [_maker(u, leaf) for leaf in flatten(own)[0]]
    of_rank = sum(sum(p.numel() for p in make(2).parameters()) for make in makers) / 2
    rank = max(2, min(RANK, int(budget / of_rank)))
    return Initialiser([make(rank) for make in makers])


def _maker(u: Tensor, leaf: Tensor) -> Callable[[int], Guess]:
    """Makes the guess of a leaf of the state, from the width of its bottleneck."""
    if leaf.ndim == 3 and u.ndim == 3:
        return partial(SequenceGuess, u.shape[2], leaf.shape[2])
    if leaf.ndim == 4 and u.ndim == 4:
        return partial(ImageGuess, u.shape[1], leaf.shape[1])
    if leaf.ndim == 2:
        return partial(DenseGuess, u[0].numel(), leaf.shape[1])
    raise ValueError(
        f"there is no learned start for a state {tuple(leaf.shape)} and an injection "
        f"{tuple(u.shape)}: both (batch, time, features), or both (batch, channels, height, "
        "width), or a state (batch, entries)"
    )


M = TypeVar("M", nn.Linear, nn.Conv2d)


def _zero(module: M) -> M:
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module
