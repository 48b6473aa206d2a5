"""Rendered films come twice: a clean pass, and a final one with blur, fog and shadows."""

from __future__ import annotations

from typing import Literal

__all__ = ["Pass", "chosen"]

Pass = Literal["clean", "final"]


def chosen(render: str | None) -> tuple[Pass, ...]:
    """The passes that a name stands for: both for None.

    Raises:
        ValueError: If it is none.
    """
    passes: tuple[Pass, ...] = ("clean", "final")
    if render is not None and render not in passes:
        raise ValueError(f"render is {render!r}: expected clean, final, or null for both")
    return tuple(each for each in passes if render in (None, each))
