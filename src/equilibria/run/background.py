"""A checkpoint that is written in the background, while training continues."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Protocol

__all__ = ["PATIENCE", "Abandoned", "Background", "Write"]

PATIENCE = 120.0
"""Seconds that a run that failed waits for its last checkpoint, if that needs other processes."""


class Abandoned(RuntimeError):
    """The run ended before its checkpoint was written, and was no longer waiting for it."""


class Write(Protocol):
    """A write in progress, as a `concurrent.futures.Future` is one."""

    def result(self, timeout: float | None = None) -> object:
        """Wait for the end of the write, and raise the error that ended it, if any."""
        ...

    def done(self) -> bool:
        """Return whether the write has ended."""
        ...


class Background:
    """The latest checkpoint that is written in the background; at most one is in progress.

    Attributes:
        write: the one in progress; None if there is none.
    """

    def __init__(self) -> None:
        self.write: Write | None = None
        self._abandoned, self._placing = False, threading.Lock()

    def submit(self, work: Callable[[], object]) -> None:
        """Run `work`, the write, in a thread of its own, which ends with it."""
        thread = ThreadPoolExecutor(1)
        self.write = thread.submit(work)
        thread.shutdown(wait=False)

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Put files in place in a block, unless the run has ended.

        Raises:
            Abandoned: it has.
        """
        with self._placing:
            if self._abandoned:
                raise Abandoned("the run has ended before its checkpoint was written")
            yield

    def settle(self) -> None:
        """Wait until nothing is being written; raise the error that ended the write, if any."""
        try:
            if self.write is not None:
                self.write.result()
        finally:
            if self.write is None or self.write.done():  # else a signal came, and `close` waits
                self.write = None

    def close(self, patience: float = math.inf) -> None:
        """Wait for the write at the end of a run that failed, whatever becomes of it.

        No file may be written once the run folder is unlocked, so signals do not end the wait.

        Args:
            patience: seconds to wait. After that, `placing` refuses what was being written.
        """
        write, self.write = self.write, None
        if write is None:
            return
        until = time.monotonic() + patience
        while (left := until - time.monotonic()) > 0.0:
            with suppress(BaseException):  # it is the run's own error that counts
                write.result(None if left == math.inf else left)
            if write.done():
                return
        with self._placing:
            self._abandoned = True
