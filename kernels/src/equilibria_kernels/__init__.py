"""Operators of equilibria for the CPU, in `torch.ops.equilibria`. They need torch 2.10."""

from pathlib import Path

import torch

__version__ = "0.1.0"

for _library in Path(__file__).parent.glob("_operators*.so"):
    torch.ops.load_library(_library)
