"""SIREN, for comparison."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import nn
from typing_extensions import override

from equilibria.run.models.base import Model, Prediction
from equilibria.solve import without_autocast
from equilibria.zoo.signal.model.network import check_coordinates

if TYPE_CHECKING:
    from equilibria.zoo.signal.model.configs import SIRENConfig

__all__ = ["SIREN"]


class SIREN(Model):
    """h_0 = sin(omega (W_0 x + b_0)), h_i = sin(omega (W_i h_(i-1) + b_i)), Phi = W h + b.

    At the start W_0 ~ U(-1, 1) / inputs, all others U(-1, 1) sqrt(6 / width) / omega. h_0 is
    computed outside of autocast, for the reason given at `filters.Phases`.

    papers: Sitzmann et al. 2020, sec. 3.2 and the released code.
    """

    def __init__(self, config: SIRENConfig) -> None:
        super().__init__()
        self.config = config
        widths = (config.points, *(config.width for _ in range(config.hidden + 1)))
        sines = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.head = nn.Linear(config.width, config.values)
        limit = math.sqrt(6 / config.width) / config.omega
        for layer in (*sines, self.head):
            nn.init.uniform_(layer.weight, -limit, limit)
        nn.init.uniform_(sines[0].weight, -1 / config.points, 1 / config.points)
        self.sines = nn.ModuleList(sines)

    @override
    def forward(self, x: Any, *, carry: Any = None) -> Prediction:
        """Return the signal (batch, outputs) at coordinates (batch, inputs).

        Raises:
            TypeError, ValueError: they are no coordinates; see `check_coordinates`.
        """
        self.refuse_carry(carry)
        h = check_coordinates(self.config, x, self.head.weight)
        first, *others = self.sines
        with without_autocast(h.device.type):
            h = (self.config.omega * first(h)).sin()
        for layer in others:
            h = (self.config.omega * layer(h)).sin()
        return Prediction(self.head(h), ())
