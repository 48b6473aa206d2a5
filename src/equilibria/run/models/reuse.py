"""Training from the states of the step before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from equilibria.run.models.base import EquilibriumModel, Prediction
from equilibria.solve import Solution, Status


class Cache:
    """The state that each sample had reached when it was last seen.

    Samples are numbered from 0. Memory: `samples` times the entries of a state, see `bytes`; it
    belongs to what training takes. Where all samples are seen at once, in order and in the states'
    own dtype, nothing is copied.

    Args:
        samples: how many there are.
        dtype: in which states are kept; None for their own. In bfloat16 they take half, and are
            known to about 0.4 %, so that a residual below that does not carry over.

    Raises:
        ValueError: there are none.
        TypeError: dtype is no floating-point one.
    """

    def __init__(self, samples: int, *, dtype: torch.dtype | None = None) -> None:
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ValueError(f"samples must be a positive whole number; got {samples!r}")
        given: Any = dtype
        if given is not None and not (isinstance(given, torch.dtype) and given.is_floating_point):
            raise TypeError(f"dtype must be a floating-point dtype or None, got {given!r}")
        self.samples = samples
        self.dtype = dtype
        self._states: Tensor | None = None  # (samples, ...)
        self._known = torch.zeros(samples, dtype=torch.bool)
        self._complete = False  # are all known?
        self._own = False  # may the states be overwritten? Those of a caller may not

    @property
    def bytes(self) -> int:
        """Memory of the states and of what is known of them, in bytes."""
        states = 0 if self._states is None else self._states.numel() * self._states.element_size()
        return states + self._known.numel() * self._known.element_size()

    @property
    def empty(self) -> bool:
        """Has nothing been written yet, or all been forgotten?"""
        return self._states is None

    def known(self, index: Tensor | None = None) -> bool:
        """Is there a state of every sample, or of every one in `index` (batch,)?"""
        if self._complete or index is None:
            return self._complete
        return bool(
            self._known.index_select(0, self._check_index(index).to(self._known.device)).all()
        )

    def read(self, index: Tensor | None = None, *, dtype: torch.dtype | None = None) -> Tensor:
        """Return states (batch, ...), of samples that are not known zeros.

        Args:
            index: (batch,) int64, numbers of the samples; None for all, in order.
            dtype: of what is returned; None for that in which states are kept.

        Raises:
            KeyError: nothing has been written yet.
            TypeError, ValueError, IndexError: the index is none.
        """
        if self._states is None:
            raise KeyError("the cache is empty: write states first")
        states = self._states
        if index is not None:
            states = states.index_select(0, self._check_index(index).to(states.device))
        return states if dtype is None else states.to(dtype)

    def write(self, states: Tensor, index: Tensor | None = None) -> None:
        """Keep states, detached.

        Args:
            states: (batch, ...), finite.
            index: (batch,) int64, the samples they belong to, each once; None for all, in order.

        Raises:
            TypeError, ValueError, IndexError: states or index are none, or do not fit.
        """
        if not isinstance(states, Tensor):
            raise TypeError(
                f"a cache keeps states that are a tensor (batch, ...), got {type(states).__name__}"
            )
        states = states.detach()
        rows = self.samples if index is None else len(self._check_index(index))
        if states.ndim == 0 or states.shape[0] != rows:
            raise ValueError(
                f"states of the shape {tuple(states.shape)} do not fit {rows} samples: the first "
                "axis must be as long as the index, or as the cache where there is none"
            )
        before = self._states
        if before is not None and before.shape[1:] != states.shape[1:]:
            raise ValueError(
                f"the cache holds states of the shape {tuple(before.shape[1:])}, got "
                f"{tuple(states.shape[1:])}"
            )
        kept = states if self.dtype is None else states.to(self.dtype)
        if index is None:
            self._states, self._own = kept, kept is not states
            self._complete = True
            self._known.fill_(True)
            return
        if before is None:
            before = kept.new_zeros(self.samples, *kept.shape[1:])
        elif not self._own:
            before = before.clone()
        before.index_copy_(0, index.to(before.device), kept.to(before))
        self._states, self._own = before, True
        if not self._complete:  # else a GPU would be waited for in each step
            self._known.index_fill_(0, index.to(self._known.device), True)
            self._complete = bool(self._known.all())

    def forget(self, index: Tensor | None = None) -> None:
        """Drop what is known of samples, of all without an index.

        Raises:
            TypeError, ValueError, IndexError: the index is none.
        """
        if index is None:
            self._known.fill_(False)
            self._states, self._own = None, False
        else:
            place = self._check_index(index)
            if self._states is not None:
                states = self._states if self._own else self._states.clone()
                self._states, self._own = states.index_fill_(0, place.to(states.device), 0.0), True
            self._known.index_fill_(0, place.to(self._known.device), False)
        self._complete = False

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is kept: `known` (samples,), and `states` (samples, ...) where there are any.

        Tensors share their memory with the cache's.
        """
        found = {"known": self._known}
        return found if self._states is None else {**found, "states": self._states}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take what `state_dict` gave, of a cache of as many samples and of the same dtype.

        Raises:
            ValueError: it is of another cache.
        """
        known, states = state.get("known"), state.get("states")
        if known is None or known.dtype != torch.bool or known.shape != (self.samples,):
            got = None if known is None else (tuple(known.shape), known.dtype)
            raise ValueError(
                f"expected 'known' of a cache of {self.samples} samples, a bool each; got {got}"
            )
        if (states is None and bool(known.any())) or (
            states is not None and states.shape[:1] != (self.samples,)
        ):
            got = None if states is None else tuple(states.shape)
            raise ValueError(f"expected 'states' of {self.samples} samples; got {got}")
        if states is not None and self.dtype is not None and states.dtype != self.dtype:
            raise ValueError(f"the cache keeps {self.dtype}, and the states are {states.dtype}")
        self._known = known.to("cpu", copy=True)
        self._states = None if states is None else states.detach().clone()
        self._own = True
        self._complete = bool(known.all())

    def _check_index(self, index: Any) -> Tensor:
        if not isinstance(index, Tensor) or index.dtype != torch.int64:
            given = index.dtype if isinstance(index, Tensor) else type(index).__name__
            raise TypeError(f"index must be an int64 tensor of sample numbers, got {given}")
        if index.ndim != 1 or not len(index):
            raise ValueError(f"index must be (batch,), got the shape {tuple(index.shape)}")
        return index


def reuse(model: EquilibriumModel, x: Any, cache: Cache, index: Tensor | None = None) -> Prediction:
    """Take a training step's forward from the states that its samples had a step ago.

    Where all of them are known, one evaluation is the next iterate, the value of the loss and what
    the gradient goes through, as the layer's adjoint says: see `DEQ.advance`. Else the batch is
    solved as usual, from what is known. Either way the cache moves on. Samples for which f was not
    finite are forgotten, and solved anew next time.

    Args:
        model: an equilibrium model whose state is one tensor.
        x: its input.
        cache: of the samples' states.
        index: (batch,) int64, numbers of the samples in `x`, each once; None: all, in order.

    Returns:
        The `Prediction`. Its solution's `stats.evals` tells which it was: 1 for one evaluation.
        `stats.residual` and `status` are then those of the state that it began at.

    Source: Bai 2022 (thesis), sec. 8.2.2 and eq. 8.9, which means theta of step t + 1.

    Example:
        >>> cache = Cache(len(coordinates))
        >>> for _ in range(steps):
        ...     loss = (reuse(model, coordinates, cache).output - target).square().mean()
    """
    rows = cache.samples if index is None else len(index)
    if isinstance(x, Tensor) and len(x) != rows:
        of = f"the cache is of {rows} samples" if index is None else f"the index is of {rows}"
        raise ValueError(
            f"{of} and the batch has {len(x)}: give the number of each of its samples as index"
        )
    if cache.known(index):
        prediction = model.advance(x, cache.read(index, dtype=_dtype(model)))
    else:
        start = None if cache.empty else cache.read(index, dtype=_dtype(model))
        prediction = model(x, z0=start)
    _note(cache, prediction.solution, index)
    return prediction


def _note(cache: Cache, solution: Solution, index: Tensor | None) -> None:
    cache.write(solution.value, index)
    lost: Any = solution.status == int(Status.NONFINITE)
    if bool(lost.any()):
        places = lost.nonzero().flatten()
        cache.forget(places if index is None else index[places.to(index.device)])


def _dtype(model: EquilibriumModel) -> torch.dtype:
    """Of the state: that of the parameters, in float32 at least."""
    first = next(model.parameters()).dtype
    return torch.promote_types(first, torch.float32)
