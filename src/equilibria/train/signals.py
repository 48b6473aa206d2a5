"""Ending a run in good order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(RuntimeError):
    """Training was stopped and can be resumed; the message says how."""


@contextmanager
def stop_signal(catch: bool) -> Iterator[list[int]]:
    """Collect the first interrupt or termination instead of dying of it; a second one kills.

    Several processes are not stopped in the same step, so there the launcher's signals kill, and
    a resume starts from the last checkpoint.
    """
    received: list[int] = []
    if not catch or threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, receive) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
