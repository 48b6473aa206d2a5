"""Checks of numbers that the configs of several rooms share."""

__all__ = ["check_positive", "check_share"]


def check_positive(**values: float | None) -> None:
    """Raise ValueError if a value is not positive and finite; None stands for a default."""
    for name, value in values.items():
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{name} must be positive; got {value}")


def check_share(name: str, value: float) -> None:
    """Raise ValueError for what is not the share of something that dropout drops."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} is the share that is dropped and must be in [0, 1), got {value}")
