"""What in a cell has no fixed point is named when the layer is built."""

import re
import warnings

import pytest
import torch
from torch import nn

from equilibria.nn import DEQ, VariationalDropout, spectral_norm, weight_norm


class Cell(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.block = nn.ModuleDict({"part": part})

    def forward(self, z, x):
        return self.block["part"](z) + x


@pytest.mark.parametrize(
    ("part", "advice"),
    [
        (nn.Dropout(0.2), "VariationalDropout(0.2)"),
        (nn.Dropout1d(0.2), "VariationalDropout(0.2, shared=(2,))"),
        (nn.Dropout2d(0.3), "VariationalDropout(0.3, shared=(2, 3))"),
        (nn.Dropout3d(), "VariationalDropout(0.5, shared=(2, 3, 4))"),
        (nn.AlphaDropout(0.1), "VariationalDropout(0.1)"),
        (nn.BatchNorm1d(4), "GroupNorm or LayerNorm"),
        (nn.BatchNorm2d(4), "GroupNorm or LayerNorm"),
        (nn.SyncBatchNorm(4), "GroupNorm or LayerNorm"),
        (nn.BatchNorm2d(4, track_running_stats=False).eval(), "GroupNorm or LayerNorm"),
        (nn.RReLU(), "LeakyReLU"),
        (nn.MultiheadAttention(4, 2, dropout=0.1), "dropout=0"),
        (nn.GRU(4, 4, num_layers=2, dropout=0.1), "dropout=0"),
    ],
)
def test_pointed_out_with_its_path_and_what_to_use(part, advice):
    with pytest.warns(UserWarning, match=re.escape("'block.part'")) as caught:
        DEQ(Cell(part))
    assert len(caught) == 1
    assert advice in str(caught[0].message)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("old", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
def test_old_hooks_are_pointed_out(old):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        part = old(nn.Linear(3, 3))
    with pytest.warns(UserWarning, match="hook"):
        DEQ(Cell(part))


@pytest.mark.parametrize(
    "part",
    [
        VariationalDropout(0.2),
        nn.Dropout(0.0),
        nn.Dropout(0.5).eval(),
        nn.BatchNorm2d(4).eval(),
        nn.InstanceNorm2d(4),
        nn.GroupNorm(2, 4),
        nn.MultiheadAttention(4, 2),
        weight_norm(nn.Linear(3, 3)),
        spectral_norm(nn.Linear(3, 3)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_is_fit_for_a_cell_is_not(part):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DEQ(Cell(part))
        DEQ(lambda z, x: z)


def test_a_method_is_looked_at_through_its_module():
    with pytest.warns(UserWarning, match="part"):
        DEQ(Cell(nn.Dropout()).forward)
