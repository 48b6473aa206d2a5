"""Eval mode for as long as a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["in_eval_mode"]


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode for a block, and each of its parts back into its own mode.

    Args:
        module: the module; its parts may be in different modes.
    """
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for each, training in modes:
            each.training = training
