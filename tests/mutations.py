"""Files that are damaged in the ways that files are: bytes flipped, cut, repeated, put in."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

COUNT = int(os.environ.get("EQUILIBRIA_FUZZ", "40"))
"""Files of each kind; `EQUILIBRIA_FUZZ=10000 pytest test_mutated_files.py` tries more."""

FUZZ = settings(
    max_examples=COUNT,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

SECONDS = 10
"""Of the processor: a file that takes longer to read hangs the reader."""

SPARE = 200 << 20
"""Bytes that reading a file may take, besides twice its size."""

TELLING = (b"\0", b"\xff", b"\n", b",", b";", b"-", b"9", b"\xff\xff\xff\xff", b"nan", b"1e400")
"""What is put in: bytes that mean something to some format."""


@st.composite
def mutated(draw: st.DrawFn, *files: bytes) -> bytes:
    """One of some files, with one to four mutations."""
    content = bytearray(draw(st.sampled_from(files)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        length = draw(st.sampled_from((1, 2, 4, 8, 64, 512)))
        match draw(st.sampled_from(("flip", "set", "cut", "drop", "insert", "repeat", "move"))):
            case "flip" if content:
                content[place] ^= 1 << draw(st.integers(0, 7))
            case "set" if content:
                content[place] = draw(st.integers(0, 255))
            case "cut":
                del content[place:]
            case "drop":
                del content[place : place + length]
            case "insert":
                content[place:place] = draw(st.sampled_from(TELLING))
            case "repeat":
                content[place:place] = content[place : place + length]
            case _:
                part = content[place : place + length]
                del content[place : place + length]
                other = draw(st.integers(0, len(content)))
                content[other:other] = part
    return bytes(content)


@contextmanager
def bounded(size: int) -> Iterator[None]:
    """Fail where more of the processor or of memory is taken than a file of `size` may."""

    def late(*_: object) -> None:
        raise AssertionError(f"not done after {SECONDS} s of the processor")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    old = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown <= 2 * size + SPARE, f"{grown / 2**20:.0f} MiB for a file of {size} bytes"


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
