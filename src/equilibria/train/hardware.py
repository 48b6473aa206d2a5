"""What a device can compute at most, where its maker says so."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

__all__ = ["GPUS", "Peak", "peak_of"]


@dataclass(frozen=True)
class Peak:
    """Floating-point operations a second of dense matrix products.

    Attributes:
        half: with bfloat16 or float16 factors and float32 sums.
        single: in float32 proper, not in TF32, which torch leaves off unless it is asked.
    """

    half: float
    single: float

    def at(self, precision: str) -> float:
        """Return the peak for a recipe's precision, float32, bf16 or fp16."""
        return self.single if precision == "float32" else self.half


GPUS: dict[str, Peak] = {
    "B200": Peak(2250e12, 75e12),
    "H200": Peak(989e12, 67e12),
    "H100": Peak(989e12, 67e12),
    "H100-PCIe": Peak(756e12, 51e12),
    "A100": Peak(312e12, 19.5e12),
    "L40S": Peak(362e12, 91.6e12),
    "L4": Peak(121e12, 30.3e12),
    "A6000": Peak(154.8e12, 38.7e12),
    "RTX4090": Peak(165.2e12, 82.6e12),
    "RTX3090": Peak(71e12, 35.6e12),
}
"""By name; from NVIDIA's data sheets of each, and for the last two its white papers on Ada and
Ampere, without sparsity. H100 and H200 are the SXM modules, whose power limit is higher."""

NAMES: dict[str, str] = {
    r"B200": "B200",
    r"H200(?! NVL)": "H200",
    r"H100 PCIe": "H100-PCIe",
    r"H100(?!.*NVL)": "H100",
    r"A100": "A100",
    r"L40S": "L40S",
    r"L4\b": "L4",
    r"RTX A6000": "A6000",
    r"RTX 4090(?! D| Laptop)": "RTX4090",
    r"RTX 3090(?! Ti| Laptop)": "RTX3090",
}
"""What torch calls them, as the first pattern that is found in its name."""


def named(name: str) -> str | None:
    """Return the key in `GPUS` of a device by torch's name for it; None for another one."""
    found = (key for pattern, key in NAMES.items() if re.search(rf"\b{pattern}", name))
    return next(found, None)


def peak_of(device: torch.device, precision: str) -> float | None:
    """Return the peak of a device for a recipe's precision, in operations a second.

    None on a CPU, whose peak nobody states, and for a GPU that is not among `GPUS`.
    """
    if device.type != "cuda":
        return None
    key = named(torch.cuda.get_device_name(device))
    return None if key is None else GPUS[key].at(precision)
