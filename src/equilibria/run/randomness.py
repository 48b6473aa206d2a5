"""The global random generators of a process."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch

CUDA = torch.cuda.is_available()


def seed_all(seed: int) -> None:
    """Seed all global random generators."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Return the state of all global random generators of this process, in plain numbers."""
    _, keys, position, has_gauss, gauss = numpy.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state().tolist(),
        "cuda": torch.cuda.get_rng_state().tolist() if CUDA else [],  # of this process's device
        "numpy": [numpy.asarray(keys).tolist(), position, has_gauss, gauss],
        "python": [version, list(internal), gauss_next],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore all global random generators of this process to a state from `random_state`."""
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    if state["cuda"] and CUDA:
        torch.cuda.set_rng_state(torch.tensor(state["cuda"], dtype=torch.uint8))
    keys, position, has_gauss, gauss = state["numpy"]
    numpy.random.set_state(("MT19937", keys, position, has_gauss, gauss))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))


def seeded(seed: int) -> dict[str, Any]:
    """Return the state of all global random generators just after `seed_all`; change nothing."""
    before = random_state()
    seed_all(seed)
    found = random_state()
    set_random_state(before)
    return found
