"""How long one training took against another, where both ran alike."""

from __future__ import annotations

from equilibria.experiments.case import Done

__all__ = ["conditions", "time_ratio"]

FACTS = ("threads", "machine")
"""What the seconds of a training depend on beside the work, as its record names it."""


def conditions(*trainings: Done) -> str:
    """Return threads and machine of the trainings in words, once where they are the same."""
    words = [f"{done.record['threads']} threads, {done.record['machine']}" for done in trainings]
    return " against ".join(dict.fromkeys(words))


def time_ratio(one: Done, other: Done) -> float | None:
    """Return the seconds of all steps of a training over another's.

    None where they ran on different machines or with other numbers of threads, or where one has
    diverged before its last step.
    """
    if one.value["diverged"] or other.value["diverged"]:
        return None
    if any(one.record[fact] != other.record[fact] for fact in FACTS):
        return None
    return one.value["seconds"] / other.value["seconds"]
