"""Words over a finite group, and the running products of their letters; bits are the group of 2.

Position i of an answer depends on all letters before it. Information moves through the state of a
convolutional cell by a fixed number of positions an evaluation, so an answer takes a number of
evaluations that grows with the length: what a network of fixed depth does not have.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.dataset import Split
from equilibria.zoo.reasoning.data.drawing import generator_of, part_of

GROUPS = ("S3", "S5", "A5", "Z60")
"""Groups of words: permutations of 3 and of 5, the even ones of 5, and addition modulo 60."""


_FEW = 1000
"""Strings of which none are held out where there are fewer."""


def draw_parities(count: int, bits: int, *, seed: int | str, part: str | None = None) -> Split:
    """Draw strings of bits; the target at i is the parity of bits 1 to i.

    Args:
        count: strings.
        bits: length of each.
        seed: fixes them, on every machine.
        part: draw from the strings of "train", "valid" or "test" alone, see `drawing.part_of`; None
            for all strings. Where there are fewer than 1,000 strings, always all.

    Returns:
        Inputs `(count, 1, bits)` float32, -1 for a bit 0 and 1 for a bit 1; targets
        `(count, bits)` int64, 0 or 1.
    """
    drawn = _draw_letters(2, count, bits, f"bits {seed}", part)
    return Split((2.0 * drawn - 1.0)[:, None], drawn.cumsum(1) % 2)


def bound_parities(evals: int, bits: int) -> float:
    """Return the largest share of right places that k evaluations of a local cell can expect.

    An evaluation of the cell moves information by one place. After k of them, from a state that
    does not depend on the input, place i depends on bits i - k to i + k. From place k + 2 on, the
    first bit is not among them: the answer is right with probability 1/2, whatever the weights. So
    at most (k + 1) / n of n places are better than chance.

    Args:
        evals: k.
        bits: n.
    """
    known = min(1.0, (evals + 1) / bits)
    return known + (1 - known) / 2


def draw_words(
    group: str, count: int, length: int, *, seed: int | str, part: str | None = None
) -> Split:
    """Draw words over a group; the target at i is the product of letters 1 to i, in this order.

    Args:
        group: one of `GROUPS`.
        count: words.
        length: letters of each.
        seed: fixes them, on every machine.
        part: as in `draw_parities`.

    Returns:
        Inputs `(count, elements, length)` float32, one-hot; targets `(count, length)` int64, the
        number of an element.
    """
    table = multiplication(group)
    letters = _draw_letters(len(table), count, length, f"words {group} {seed}", part)
    products = [letters[:, 0]]
    for place in range(1, length):
        products.append(table[products[-1], letters[:, place]])
    one_hot = torch.nn.functional.one_hot(letters, len(table)).movedim(1, 2)
    return Split(one_hot.float(), torch.stack(products, 1))


def _draw_letters(order: int, count: int, length: int, name: str, part: str | None) -> Tensor:
    generator = generator_of(name)
    if part is None or order**length < _FEW:
        return torch.from_numpy(generator.integers(order, size=(count, length)))
    kept = np.empty((0, length), np.int64)
    while len(kept) < count:
        drawn = generator.integers(order, size=(2 * count, length))
        wanted = [part_of(word.tobytes()) == part for word in drawn.astype(np.uint8)]
        kept = np.concatenate((kept, drawn[wanted]))
    return torch.from_numpy(kept[:count])


@functools.cache
def multiplication(group: str) -> Tensor:
    """Return the multiplication table of a group: entry (a, b) is the number of a b."""
    if group.startswith("Z"):
        numbers = torch.arange(int(group[1:]))
        return (numbers[:, None] + numbers) % len(numbers)
    points = int(group[1:])
    elements = list(itertools.permutations(range(points)))
    if group.startswith("A"):
        elements = [each for each in elements if _is_even(each)]
    number = {each: place for place, each in enumerate(elements)}
    rows = [[number[tuple(b[at] for at in a)] for b in elements] for a in elements]
    return torch.tensor(rows)


def _is_even(permutation: tuple[int, ...]) -> bool:
    pairs = itertools.combinations(permutation, 2)
    return sum(first > second for first, second in pairs) % 2 == 0
