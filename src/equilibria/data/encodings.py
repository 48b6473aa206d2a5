"""Encodings of texts: told by their byte order mark, or guessed."""

from __future__ import annotations

import codecs

_MARKS = (  # those of UTF-32 first: the mark of UTF-16 begins that of UTF-32
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)

_NAMED = 3

_MAINFRAMES = ["cp037", "cp273", "cp424", "cp500", "cp875", "cp1026", "cp1140"]
"""Encodings in which most bytes are letters, and hardly a text today."""


def marked(head: bytes) -> str | None:
    """The codec that a byte order mark names; None without one."""
    return next((name for mark, name in _MARKS if head.startswith(mark)), None)


def described(sample: bytes) -> str:
    """What encoding a text that is not UTF-8 seems to have: ``"it looks like cp1252 (2 % doubt)"``.

    The names are those that Python and iconv know, the likeliest first, and the doubt is
    charset-normalizer's share of characters that are out of place.
    """
    if name := marked(sample):
        return f"it is {name.upper()} by its byte order mark"
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return "its encoding is unknown (pip install charset-normalizer to have it guessed)"
    found = list(from_bytes(sample, cp_exclusion=_MAINFRAMES))[:_NAMED]
    if not found:
        return "its encoding could not be told"
    names = " or ".join(each.encoding.replace("_", "-") for each in found)
    return f"it looks like {names} ({found[0].chaos:.0%} doubt)".replace("%", " %")
