"""Signals that stop a run after it has been saved."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

STOPPED = 75
"""Exit status of a run that was stopped and saved: EX_TEMPFAIL of sysexits.h, "try again"."""

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""From Ctrl-C, schedulers and torchrun, a closed terminal, and Slurm before the time limit."""

IMPATIENT = 1.0
"""Seconds after which a second Ctrl-C ends the process without saving. An earlier one is the same
Ctrl-C, forwarded by a launcher."""

NOTICE = "\nSaving after this step; press Ctrl-C again to stop at once, without saving.\n"


class Stopped(BaseException):
    """A signal arrived outside `defer`; like KeyboardInterrupt, this is not an error."""


class Signals:
    """The signals of a run.

    Args:
        tell: whether to acknowledge Ctrl-C on standard error; true on one of several processes.

    Attributes:
        received: their numbers, in order.
    """

    def __init__(self, *, tell: bool = True) -> None:
        self.received: list[int] = []
        self.tell, self.waits, self.pressed = tell, False, 0.0

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Collect signals in `received`, which the block checks, instead of raising `Stopped`."""
        self.waits = True
        try:
            yield
        finally:
            self.waits = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.received.append(number)
        if not self.waits:
            raise Stopped(signal.Signals(number).name)
        if number != signal.SIGINT:
            return
        if self.received.count(number) > 1:
            if time.monotonic() > self.pressed + IMPATIENT:
                raise KeyboardInterrupt
            return
        self.pressed = time.monotonic()
        if self.tell:
            with suppress(OSError):  # standard error may be closed
                os.write(2, NOTICE.encode())  # print is not reentrant


@contextmanager
def catch(*, tell: bool = True) -> Iterator[Signals]:
    """Handle `SIGNALS` inside a block, instead of being terminated by them.

    A signal that the process ignores, such as SIGHUP under nohup, stays ignored. Outside the main
    thread nothing is caught, since Python delivers signals only to the main thread.

    Args:
        tell: see `Signals`.

    Raises:
        Stopped: a signal arrived and was not deferred.
        KeyboardInterrupt: Ctrl-C was pressed twice.
    """
    signals = Signals(tell=tell)
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, signals.receive)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
