"""Rows, layouts and histories: the vector space under the solvers."""

from itertools import pairwise

import pytest
import torch

from equilibria.solve.layout import Layout
from equilibria.solve.rows import FIRST_ROOM, Memory, length, room


@pytest.mark.parametrize("coupled", [False, True])
def test_layout_round_trip(coupled) -> None:
    leaves = [torch.randn(2, 3, 4, 5), torch.randn(2, 7), torch.randn(2)]
    layout = Layout.of(leaves, coupled)
    rows = layout.rows(leaves)
    assert [row.shape[0] for row in rows] == [1 if coupled else 2] * 3
    for leaf, back in zip(leaves, layout.leaves(rows), strict=True):
        assert torch.equal(leaf, back)


def test_length_is_over_all_leaves() -> None:
    rows = [torch.randn(3, 4), torch.randn(3, 6)]
    torch.testing.assert_close(length(rows), torch.cat(rows, 1).square().sum(1).sqrt())


@pytest.mark.parametrize("capacity", [1, 2, 8, 9, 21, 35, 100])
def test_room_doubles_up_to_the_capacity(capacity) -> None:
    sizes = [room(1, capacity)]
    while sizes[-1] < capacity:
        sizes.append(room(sizes[-1] + 1, capacity))
    assert sizes[0] <= FIRST_ROOM and sizes[-1] == capacity
    assert all(half == (size + 1) // 2 for half, size in pairwise(sizes))
    assert all(room(count, capacity) >= count for count in range(1, capacity + 1))


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("capacity", [None, 4])
def test_memory(capacity, tracked) -> None:
    memory, kept = Memory(capacity, tracked), {}
    for k in range(11):
        slot = k if capacity is None else k % capacity
        a, b = ([torch.randn(2, 4), torch.randn(2, 5)] for _ in range(2))
        if k % 3 == 0:
            stored = memory.store(slot, a)
        else:
            stored = memory.store(slot, a, b, 0.5 if k % 3 == 1 else -1.0)
        scale = (0.0, 0.5, -1.0)[k % 3]
        kept[slot] = torch.cat(a, 1) + scale * torch.cat(b, 1)
        torch.testing.assert_close(torch.cat(stored, 1), kept[slot])
    vectors = torch.stack([kept[slot] for slot in sorted(kept)], 1)
    for slot, vector in kept.items():
        assert torch.equal(torch.cat(memory.at(slot), 1), vector)

    products = vectors @ vectors.transpose(1, 2)
    torch.testing.assert_close(memory.dots([0, 3], 1, 4), products[:, [0, 3], 1:4])
    torch.testing.assert_close(memory.dots([2, 1, 0], 0, 4), products[:, [2, 1, 0], :4])
    torch.testing.assert_close(memory.dots([1], 2, 3), products[:, [1], 2:3])  # one column
    weights = torch.randn(2, 3)
    combined = torch.einsum("bk,bkd->bd", weights, vectors[:, 1:4])
    torch.testing.assert_close(torch.cat(memory.combine(weights, 1), 1), combined)
    base = [torch.randn(2, 4), torch.randn(2, 5)]
    torch.testing.assert_close(
        torch.cat(memory.combine(weights, 1, onto=base, scale=-1.0), 1),
        torch.cat(base, 1) - combined,
    )
    memory.select(torch.tensor([1]))
    torch.testing.assert_close(memory.dots([0, 3], 1, 4), products[1:, [0, 3], 1:4])
