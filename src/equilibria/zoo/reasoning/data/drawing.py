"""Seeds of what is drawn, and which instances of the training size are kept for evaluation."""

from __future__ import annotations

import hashlib

import numpy as np


def generator_of(name: str) -> np.random.Generator:
    """Return a generator that is seeded by a hash of 128 bits, so that no two names share draws."""
    return np.random.default_rng(_hash(name.encode()))


def part_of(instance: bytes) -> str:
    """Return the split that an instance belongs to, whichever seed has drawn it.

    A hash of the instance decides: a tenth is "valid", a tenth is "test", and the rest is "train".
    """
    return {0: "valid", 1: "test"}.get(_hash(instance) % 10, "train")


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=16).digest())
