"""Signals that stop a run after it has been saved."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPPED = 75
"""Exit status of a run that was stopped and saved: EX_TEMPFAIL of sysexits.h, "try again"."""

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""Ctrl-C; schedulers and torchrun; a closed terminal; Slurm's warning before the time limit."""

IMPATIENT = 1.0
"""Seconds after which a second Ctrl-C ends the process without saving. An earlier one is the same
Ctrl-C, passed on by a launcher."""

NOTICE = "\nSaving after this step; press Ctrl-C again to stop at once, without saving.\n"


@contextmanager
def caught(*, tell: bool = True) -> Iterator[list[int]]:
    """Collect the signals of `SIGNALS` for a block, instead of dying of them.

    One that the process ignores, such as SIGHUP under nohup, is still ignored. Outside the main
    thread, nothing is caught: Python delivers signals there only.

    Args:
        tell: write on standard error that the signal was received; for one of several processes.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed twice.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    first = 0.0

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if received and number == signal.SIGINT and time.monotonic() > first + IMPATIENT:
            raise KeyboardInterrupt
        if not received:
            first = time.monotonic()
            if tell and number == signal.SIGINT:
                os.write(2, NOTICE.encode())  # print may be interrupted in the middle of itself
        received.append(number)

    before: dict[int, Any] = {}
    for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            before[number] = signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
