"""Random numbers keyed to samples, so that they do not depend on how a batch is split.

With `key_rows`, training states which batch it draws for, and which of its rows this process has.
What a module or a task then draws with `for_samples` depends on this key, the row's number in the
full batch, and the number of earlier draws: it is the same on any number of processes, with or
without micro-batches. Outside `key_rows`, all draws come from torch's global generator.

Two things are not covered. For graphs of different sizes there is one draw per batch, see
`for_samples`. And `torch.utils.checkpoint` replays torch's generators only: what it runs again in
backward would draw other numbers, so draw masks outside it. (A `DEQ` keeps its masks.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Generator, Tensor

__all__ = [
    "Fill",
    "for_batch",
    "for_samples",
    "fork",
    "keep_mask",
    "key_rows",
    "noise_like",
    "rows",
]


class Fill(Protocol):
    """Fills a tensor with random numbers in place, as `Tensor.normal_` does."""

    def __call__(self, out: Tensor, /, *, generator: Generator | None) -> object: ...


@dataclass
class _Key:
    """The key of the current thread's draws."""

    name: str
    rows: range
    count: int = 0
    """Number of draws so far."""

    def seed(self, row: int | str) -> int:
        text = f"{self.name}/{self.count}/{row}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


_active: ContextVar[_Key | None] = ContextVar("equilibria_draws", default=None)


@contextmanager
def key_rows(name: str, of: slice) -> Iterator[None]:
    """Key the draws inside a block, in this thread, to the rows of a batch.

    Args:
        name: identifies the batch and the purpose, for example by the seed, the step and "dropout";
            a second block with the same name draws the same numbers.
        of: the rows of the full batch that this process has.
    """
    token = _active.set(_Key(name, range(of.start, of.stop)))
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def fork() -> Iterator[None]:
    """Let the draws after a block be those that would have come without it.

    Two such blocks, one after the other, draw the same numbers. What `torch.random.fork_rng` is to
    torch's generators, this is to the key of the running thread; without a key it does nothing.
    """
    key = _active.get()
    count = 0 if key is None else key.count
    try:
        yield
    finally:
        if key is not None:
            key.count = count


def for_samples(out: Tensor, fill: Fill, *, axis: int = 0) -> Tensor:
    """Fill a tensor in place with separate random numbers for each sample, and return it.

    Args:
        out: its size along `axis` is the number of samples, or a multiple of it if each sample has
            several consecutive entries. Where samples differ in size, as graphs do, all numbers are
            keyed to the first row.
        fill: the distribution to draw from.
        axis: the batch axis.
    """
    key = _active.get()
    if key is None:
        fill(out, generator=None)
        return out
    generator, count = Generator(out.device), len(key.rows)
    if count and out.shape[axis] % count == 0:
        pieces = out.unflatten(axis, (count, -1)).movedim(axis, 0)
        for place, row in enumerate(key.rows):
            fill(pieces[place], generator=generator.manual_seed(key.seed(row)))
    else:
        fill(out, generator=generator.manual_seed(key.seed(key.rows.start)))
    key.count += 1
    return out


def for_batch(out: Tensor, fill: Fill) -> Tensor:
    """Fill a tensor in place with random numbers shared by all samples of a batch; return it."""
    key = _active.get()
    if key is None:
        fill(out, generator=None)
    else:
        fill(out, generator=Generator(out.device).manual_seed(key.seed("batch")))
        key.count += 1
    return out


def noise_like(x: Tensor) -> Tensor:
    """Draw Gaussian noise for each sample of a tensor (batch, ...), with the sample's RMS; 1 where
    that is zero or not finite."""
    entries = x.reshape(len(x), -1)
    largest = entries.abs().amax(1, keepdim=True)
    usable = torch.isfinite(largest) & (largest > 0)
    unit = torch.where(usable, largest, 1.0)  # squares of x itself may leave the range of numbers
    rms = unit * (entries / unit).square().mean(1, keepdim=True).sqrt()
    noise = for_samples(torch.empty_like(x), Tensor.normal_)
    return noise * torch.where(usable, rms, 1.0).reshape(-1, *[1] * (x.ndim - 1))


def rows(count: int, device: torch.device | None = None) -> Tensor:
    """Return the numbers of `count` samples in the full batch, (count,) int64; they start from 0
    outside `key_rows`, or if `count` is not the number of its rows."""
    key = _active.get()
    first = key.rows.start if key is not None and len(key.rows) == count else 0
    return torch.arange(first, first + count, device=device)


def keep_mask(drop: float) -> Fill:
    """Return a fill of ones with probability 1 - `drop`, zeros otherwise."""
    return partial(Tensor.bernoulli_, p=1 - drop)
