"""The weights of a learned solver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equilibria.learned.initializers import GUESSES, Initializer
from equilibria.learned.mixers import GramMixer, PooledMixer
from equilibria.learned.solver import NeuralSolver
from equilibria.solve import Solver, Tree, flatten, unflatten


class Learned(nn.Module):
    """The learned parts of a layer's `NeuralSolver`.

    Args:
        initialiser: predicts the initial guess; None for the layer's own.
        mixer: predicts the mixing weights; None for Anderson's own.
    """

    def __init__(
        self, initialiser: Initializer | None = None, mixer: GramMixer | PooledMixer | None = None
    ) -> None:
        super().__init__()
        self.initialiser = initialiser
        self.mixer = mixer

    @property
    def about(self) -> dict[str, Any]:
        """The architecture, in names and numbers, from which `Learned.of` rebuilds it."""
        found: dict[str, Any] = {"initialiser": None, "mixer": None}
        if self.initialiser is not None:
            kinds = {kind: name for name, kind in GUESSES.items()}
            found["initialiser"] = [
                {"kind": kinds[type(each)], **each.sizes} for each in self.initialiser.parts
            ]
        if self.mixer is not None:
            kind = "gram" if isinstance(self.mixer, GramMixer) else "pooled"
            found["mixer"] = {"kind": kind, **self.mixer.sizes}
        return found

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Learned:
        """Return new weights with the architecture that `about` describes.

        Raises:
            KeyError: a key is missing, or a kind is unknown.
            TypeError: a size has an unknown name.
        """
        initialiser, mixer = about["initialiser"], about["mixer"]
        if initialiser is not None:
            initialiser = Initializer([_make(GUESSES, each) for each in initialiser])
        if mixer is not None:
            mixer = _make({"gram": GramMixer, "pooled": PooledMixer}, mixer)
        return cls(initialiser, mixer)

    def start(self, inputs: tuple[Tree, ...], own: Tree) -> Tree:
        """Return the initial guess of a solve: the initialiser's, or the layer's own for samples
        where that is not finite.

        Args:
            inputs: of the layer.
            own: its own initial state.
        """
        if self.initialiser is None:
            return own
        guess, spec = flatten(self.initialiser(inputs, own))
        sound = [torch.isfinite(leaf.flatten(1)).all(1) for leaf in guess]
        finite = torch.stack(sound).all(0)
        leaves = [_where(finite, new, old) for new, old in zip(guess, flatten(own)[0], strict=True)]
        return unflatten(leaves, spec)

    def bind(self, solver: NeuralSolver, *, started: bool) -> Solver:
        """Return the solver with these weights.

        Args:
            solver: gives the settings.
            started: whether the solve begins at `start`.
        """
        guessed = started and self.initialiser is not None
        return solver.with_weights(self.mixer, guessed=guessed)


def _make(kinds: Mapping[str, Any], about: Mapping[str, Any]) -> Any:
    sizes = dict(about)
    return kinds[sizes.pop("kind")](**sizes)


def _where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(mask.view(-1, *(1,) * (a.ndim - 1)), a, b)
