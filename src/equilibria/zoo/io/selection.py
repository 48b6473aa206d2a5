"""Which samples are learned from and which are set aside: the same ones on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from equilibria.run.data.storage import DataError

# Of every choice: a recipe's own seed is of the training, not of the data.
_SEED = 0

HELD_OUT = 0.25
"""Share of each class that is held out to test on, where the source does not say."""


def stratify(
    targets: Tensor, labels: Sequence[str], valid: int | None, samples: int | None
) -> tuple[Tensor, Tensor | None]:
    """Return the places of samples to learn from, and of those to be judged by in training.

    Those set aside have each class as often as all have it, as nearly as whole numbers can; they
    are chosen first, and do not depend on `samples`. Of the rest, `samples` are taken with as many
    of each class, the first of an order that is fixed: a larger number takes the same and more.

    Args:
        targets: classes of all samples, (count,); there is one of each class.
        labels: what the classes are called.
        valid: how many are set aside; None for none.
        samples: how many of the rest are learned from; None for all.

    Returns:
        Places in `targets`, ascending: to learn from, and set aside or None.

    Raises:
        ValueError: there are not so many; the message says how many there are.
    """
    groups = _shuffle(targets, len(labels))
    sizes = [len(group) for group in groups]
    aside: Tensor | None = None
    if valid is not None:
        most = len(targets) - len(groups)
        if valid > most:
            raise ValueError(
                f"valid is {valid}, but there are {len(targets)} training samples of {len(groups)} "
                f"classes: at most {max(0, most)} can be set aside"
            )
        counts = apportion(sizes, valid)
        aside = _take(groups, counts)
        groups = [group[count:] for group, count in zip(groups, counts, strict=True)]
    if samples is not None:
        groups = _balance(groups, labels, samples)
    return _take(groups, [len(group) for group in groups]), aside


def choose_groups(members: Tensor, share: float) -> Tensor:
    """Return which groups are set aside: whole ones, in an order that is fixed, at least one.

    Args:
        members: the group of each sample, (count,).
        share: of the number of groups, in (0, 1); rounded.

    Raises:
        ValueError: there is one group only, so that none can be set aside.
    """
    found = members.unique()
    if len(found) < 2:
        raise ValueError(
            "valid sets whole groups aside (volunteers, speakers, machines), and all training "
            "sequences are of one group: set task.valid to null, or name more groups"
        )
    count = min(max(1, round(share * len(found))), len(found) - 1)
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(_SEED))
    return found[order[:count]].sort().values


def assign_folds(targets: Tensor, labels: Sequence[str], count: int, seed: int) -> Tensor:
    """Return the fold of each sample, from 0: each class is dealt out evenly, in a random order.

    Folds differ in size by one at most, and so do the numbers of each class in them.

    Args:
        targets: classes of all samples, (count,).
        labels: what the classes are called.
        count: number of folds.
        seed: of the order.

    Raises:
        ValueError: a class has fewer samples than there are folds.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(targets), generator=generator)
    order = order[targets[order].argsort(stable=True)]
    sizes = targets.bincount(minlength=len(labels)).tolist()
    least = min(range(len(sizes)), key=sizes.__getitem__)
    if sizes[least] < count:
        raise ValueError(
            f"folds is {count}, and there are only {sizes[least]} of class {labels[least]}: take "
            "fewer folds, so that each has some of it"
        )
    found = torch.empty_like(targets)
    # Dealt on from class to class, so that the odd ones do not all go to the first folds.
    found[order] = torch.arange(len(targets)) % count
    return found


def hold_out_groups(
    targets: Tensor, groups: Tensor | None, labels: Sequence[str], name: object
) -> Tensor:
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
            (held[c] / total[c] - HELD_OUT) ** 2 - ((held[c] + k) / total[c] - HELD_OUT) ** 2
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


def apportion(sizes: list[int], count: int) -> list[int]:
    """Return how many of each class make up `count`, in proportion to the sizes of all classes.

    No class is left without one of its own; the largest remainders are rounded up.
    """
    total = sum(sizes)
    exact = [count * size / total for size in sizes]
    taken = [min(int(share), size - 1) for share, size in zip(exact, sizes, strict=True)]
    order = sorted(range(len(sizes)), key=lambda k: (taken[k] - exact[k], k))
    while (missing := count - sum(taken)) > 0:
        for k in [k for k in order if taken[k] < sizes[k] - 1][:missing]:
            taken[k] += 1
    return taken


def _balance(groups: list[Tensor], labels: Sequence[str], samples: int) -> list[Tensor]:
    each, rest = divmod(samples, len(groups))
    counts = [each + (place < rest) for place in range(len(groups))]
    if each == 0:
        raise ValueError(
            f"samples is {samples}, but there are {len(groups)} classes: take at least one of each"
        )
    for label, group, count in zip(labels, groups, counts, strict=True):
        if len(group) < count:
            smallest = min(len(group) for group in groups)
            raise ValueError(
                f"samples is {samples}, {count} of class {label}, but there are {len(group)} of it "
                f"to learn from: at most {smallest * len(groups)} samples of "
                f"{len(groups)} classes can be as many of each"
            )
    return [group[:count] for group, count in zip(groups, counts, strict=True)]


def _shuffle(targets: Tensor, classes: int) -> list[Tensor]:
    """The places of each class, in an order of its own."""
    generator = torch.Generator().manual_seed(_SEED)
    groups = [torch.nonzero(targets == label)[:, 0] for label in range(classes)]
    return [group[torch.randperm(len(group), generator=generator)] for group in groups]


def _take(groups: list[Tensor], counts: list[int]) -> Tensor:
    """The first of each group, in ascending order."""
    return torch.cat([g[:count] for g, count in zip(groups, counts, strict=True)]).sort().values
