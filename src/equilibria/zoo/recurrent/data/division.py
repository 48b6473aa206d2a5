"""Which sequences are held out to test on, where their source does not say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from equilibria.run.data.storage import DataError

SHARE = 0.25
"""Of each class."""

# Of the order in which groups are considered: the same sequences are always the same parts.
_SEED = 0


def hold_out(targets: Tensor, groups: Tensor | None, labels: Sequence[str], name: object) -> Tensor:
    """Choose whole groups so that of each class about a quarter is held out.

    Groups are considered in a fixed random order, and one is taken where that brings the shares
    of its classes nearer to a quarter and leaves some of each class to learn from.

    Args:
        targets: Class of each sequence, ``(count,)``, int64.
        groups: Group of each, ``(count,)``, which is on one side as a whole; None for each
            sequence by itself.
        labels: What the classes are called, for messages.
        name: Where the sequences are from, for messages.

    Returns:
        Whether each is held out, ``(count,)``, bool.

    Raises:
        DataError: If some class cannot be on both sides.
    """
    each = torch.arange(len(targets)) if groups is None else groups
    members: dict[int, Counter[int]] = {}
    for group, target in zip(each.tolist(), targets.tolist(), strict=True):
        members.setdefault(group, Counter())[target] += 1
    total = Counter(targets.tolist())
    held: Counter[int] = Counter()

    def gain(group: int) -> float:
        """How much nearer to the share the classes come, summed over their squared distances."""
        return sum(
            (held[c] / total[c] - SHARE) ** 2 - ((held[c] + k) / total[c] - SHARE) ** 2
            for c, k in members[group].items()
        )

    def leaves_some(group: int) -> bool:
        return all(held[c] + k < total[c] for c, k in members[group].items())

    known = sorted(members)
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(_SEED)).tolist()
    chosen: set[int] = set()
    for group in (known[place] for place in order):
        if leaves_some(group) and gain(group) >= 0:
            chosen.add(group)
            held.update(members[group])
    for label in sorted(total):
        if not held[label]:
            able = [g for g in known if label in members[g] and leaves_some(g)]
            if not able:
                what = "sequence" if groups is None else "group"
                raise DataError(
                    f"{name}: no {what} of class {labels[label]} can be held out for testing, so "
                    f"that others are left to learn from: add another {what}, or name the test part"
                )
            best = max(able, key=gain)
            chosen.add(best)
            held.update(members[best])
    return torch.isin(each, torch.tensor(sorted(chosen)))
