"""Words and numbers of messages."""

import math
import re
from collections.abc import Iterable, Sequence, Sized

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""What a terminal obeys instead of showing it, and bytes of names that are not UTF-8."""


def printable(text: str, *, lines: bool = False) -> str:
    """Return a text for a terminal, with escapes in place of control characters.

    Names and texts from other people's files may hold such characters.

    Args:
        text: what is to be printed.
        lines: whether it may have several lines; a newline is escaped otherwise.
    """
    text = _CONTROL.sub(_escape, text)
    return text if lines else text.replace("\n", "\\n")


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    if 0xDC80 <= number <= 0xDCFF:  # a byte that is not UTF-8, as Python keeps it in a name
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


_OUT_OF_MEMORY = (
    *("DefaultCPUAllocator: ", "Storage size calculation overflowed", "numel: integer mult"),
)
"""What torch says, in a RuntimeError, if the CPU has no memory for a tensor."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory of the CPU or of a GPU is exhausted."""
    names = {cls.__name__ for cls in type(error).__mro__}
    spent = names & {"MemoryError", "OutOfMemoryError"}
    return bool(spent) or any(words in str(error) for words in _OUT_OF_MEMORY)


def nearest(word: str, words: Iterable[str]) -> str:
    """Return '; did you mean ...?' for the nearest of `words`, or else all of them.

    Often only the prefix of a dotted word is missing: `history` for `solver.history`.
    """
    import difflib  # here, since few runs need it and it imports a lot

    known = sorted(words)
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if not match:
        match = [key for key in known if key.rpartition(".")[2] == word.rpartition(".")[2]][:1]
    return f"; did you mean '{match[0]}'?" if match else f"; choose from: {', '.join(known)}"


def plural(count: int, noun: str) -> str:
    """Return how many: '1 sample', '2,000 samples'."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def list_some(names: Sequence[str], most: int) -> str:
    """Return the first of some names, `most` at most, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def others(names: Sized) -> str:
    """Return ' (and 2 more)', to follow the first of three names; nothing for a single one."""
    return f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""


def percent(share: float) -> str:
    """Return three digits of a share in per cent: 0 % and 100 % only for nothing and for all."""
    if not math.isfinite(share):
        return "–"
    if 0 < share < 1e-5:
        return "< 0.001 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{100 * share:.3g} %" if share < 9.995 else f"{100 * share:,.0f} %"
