"""Recipe keys for checkpointing."""

from dataclasses import dataclass

from equilibria.checks import check_fields

__all__ = ["Checkpointing"]


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When and how checkpoints are written.

    Args:
        every: steps between checkpoints; null for one at the end of each epoch only.
        keep: number of checkpoints to keep: if the newest is damaged, a run resumes from the
            previous one.
        async_: write while training continues, from a copy in CPU memory. The key is `async`. The
            weights and the checkpoint of an epoch then appear a little later.
    """

    every: int | None = None
    keep: int = 2
    async_: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "every", "keep")
