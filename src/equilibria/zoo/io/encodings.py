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

_UNLIKELY = ["cp037", "cp273", "cp424", "cp500", "cp875", "cp1026", "cp1140", "cp775", "johab"]
"""Encodings of mainframes, in which most bytes are letters, and others that hardly a text has."""


def marked(head: bytes) -> str | None:
    """The codec that a byte order mark names; None without one."""
    return next((name for mark, name in _MARKS if head.startswith(mark)), None)


def described(sample: bytes) -> str:
    """What encoding a text that is not UTF-8 seems to have: ``"it looks like cp1252 (2 % ...)"``.

    The names are those that Python and iconv know, the likeliest first, by charset-normalizer, and
    the share of characters that are out of place is its measure of doubt.
    """
    if name := marked(sample):
        return f"it is {name.upper()} by its byte order mark"
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return "its encoding is unknown (pip install charset-normalizer to have it guessed)"
    found = list(from_bytes(sample, cp_exclusion=_UNLIKELY))[:_NAMED]
    if not found:
        return "its encoding could not be told"
    names = [name for each in found for name in (each.encoding, *each.could_be_from_charset)]
    western = names[0].startswith(("cp125", "latin", "iso8859"))
    if western and all("latin" in each.lower() for each in found[0].alphabets):
        try:
            sample.decode("cp1252")
            names.insert(0, "cp1252")  # by far the most frequent of those for Latin letters
        except UnicodeDecodeError:
            pass
    likely = [name.replace("_", "-") for name in dict.fromkeys(names)][:_NAMED]
    doubt = f"{found[0].chaos:.0%}".replace("%", " %")
    return f"it looks like {' or '.join(likely)} ({doubt} of its characters are out of place)"
