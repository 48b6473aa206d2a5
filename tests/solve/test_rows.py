"""Rows, layouts and histories: the vector space under the solvers."""

import pytest
import torch

from equilibria.solve.rows import History, Layout, norm


@pytest.mark.parametrize("coupled", [False, True])
def test_layout_round_trip(coupled) -> None:
    leaves = [torch.randn(2, 3, 4, 5), torch.randn(2, 7), torch.randn(2)]
    layout = Layout.of(leaves, coupled)
    rows = layout.rows(leaves)
    assert [row.shape[0] for row in rows] == [1 if coupled else 2] * 3
    for leaf, back in zip(leaves, layout.leaves(rows), strict=True):
        assert torch.equal(leaf, back)


def test_channels_last_rows_are_views_and_come_back_channels_last() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    layout = Layout.of([image])
    (row,) = layout.rows([image])
    assert row.data_ptr() == image.data_ptr()
    (back,) = layout.leaves([2 * row])
    assert back.is_contiguous(memory_format=torch.channels_last) and torch.equal(back, 2 * image)


def test_norm_is_the_rms_over_all_leaves() -> None:
    rows = [torch.randn(3, 4), torch.randn(3, 6)]
    wanted = torch.cat(rows, 1).square().mean(1).sqrt()
    torch.testing.assert_close(norm(rows), wanted)


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("capacity", [None, 3])
def test_history(capacity, tracked) -> None:
    history, kept = History(capacity, tracked), []
    for k in range(7):
        vector = [torch.randn(2, 4), torch.randn(2, 5)]
        slot = history.push(vector)
        assert slot == (k if capacity is None else k % capacity)
        flat = torch.cat(vector, 1)
        if slot < len(kept):
            kept[slot] = flat
        else:
            kept.append(flat)
        assert len(history) == len(kept)
    stored = torch.stack(kept, 1)
    probe = [torch.randn(2, 4), torch.randn(2, 5)]
    wanted = torch.einsum("bkd,bd->bk", stored, torch.cat(probe, 1))
    torch.testing.assert_close(history.dots(probe)[:, 0], wanted)
    weights = torch.randn(2, len(kept))
    torch.testing.assert_close(
        torch.cat(history.combine(weights), 1), torch.einsum("bk,bkd->bd", weights, stored)
    )
    history.select(torch.tensor([1]))
    torch.testing.assert_close(history.dots([row[1:] for row in probe])[:, 0], wanted[1:])
