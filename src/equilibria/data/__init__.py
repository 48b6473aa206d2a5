"""Data sets by name: found on disk, or downloaded with a checksum, and read."""

from equilibria.data import (
    copy_memory,
    flow,
    graphs,
    images,
    segmentation,
    sequences,
    signals,
    text,
)
from equilibria.data.dataset import Dataset, Samples, Split
from equilibria.data.errors import DataError
from equilibria.data.fetch import fetch
from equilibria.data.registry import available, load, register

__all__ = [
    "DataError",
    "Dataset",
    "Samples",
    "Split",
    "available",
    "copy_memory",
    "fetch",
    "flow",
    "graphs",
    "images",
    "load",
    "register",
    "segmentation",
    "sequences",
    "signals",
    "text",
]
