"""Small networks for optical flow, and pairs of images, that several test files use."""

import torch

MINI = {
    "encoder": "small",
    "stages": (8, 8, 12),
    "features": 8,
    "levels": 2,
    "radius": 2,
    "mask": 8,
    "hidden": 8,
}
"""Two levels: images of 32 x 32 and more."""

TINY = {k: v for k, v in MINI.items() if k not in ("hidden", "mask")}
STEPS = {"steps": 3}
SMALL = {
    "raft": {**MINI, **STEPS},
    "gma": {**MINI, **STEPS},
    "raft-small": {**TINY, **STEPS},
    "deq-raft": MINI,
    "deq-gma": MINI,
    "deq-raft-small": TINY,
}
"""Fields of each network."""


def pair(batch=2, height=32, width=40, seed=1):
    """First and second images: noise, and the same moved and changed a little."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(batch, 3, height, width, generator=generator) * 255
    second = first.roll((1, 2), (2, 3)) * 0.9 + 10
    return first, second
