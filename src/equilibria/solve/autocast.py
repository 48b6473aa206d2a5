"""f runs in the autocast regions that it was first called in; solvers run outside of any."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class AutocastRegion:
    """The autocast setting of one device type, as f met it."""

    device: str
    dtype: torch.dtype
    enabled: bool

    @property
    def floor(self) -> float:
        """The relative residual that f's rounding leaves: half of its machine epsilon; 0 where f
        computes in the state's dtype."""
        reduced = self.enabled and self.dtype.itemsize < 4
        return 0.5 * torch.finfo(self.dtype).eps if reduced else 0.0

    @classmethod
    def current(cls, device: str) -> AutocastRegion:
        if device == "meta":  # which autocast does not know: its tensors have no numbers
            device = "cpu"
        return cls(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))


def disabled(device: str) -> AbstractContextManager[Any]:
    """Nothing in the block is cast, as where half precision would leave too few digits.

    Args:
        device: type of the tensors' device; autocast itself refuses meta.
    """
    return _NOTHING if device == "meta" else torch.autocast(device, enabled=False)


def entered(region: AutocastRegion) -> AbstractContextManager[Any]:
    """Evaluates f in its region, wherever that is: inside backward, say.

    Without autocast's cache of cast weights: it keeps a cast made under no_grad, and a weight read
    from it later would have no gradient.
    """
    if not (region.enabled or torch.is_autocast_enabled(region.device)):
        return _NOTHING
    return torch.autocast(region.device, region.dtype, region.enabled, cache_enabled=False)


_NOTHING = nullcontext()


@contextmanager
def outside(devices: Sequence[str]) -> Generator[None]:
    """A solver's own arithmetic stays in the state's dtype."""
    active = [device for device in devices if torch.is_autocast_enabled(device)]
    if not active:
        yield
        return
    with torch.autocast(active[0], enabled=False), outside(active[1:]):
        yield
