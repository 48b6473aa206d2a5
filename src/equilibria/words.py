"""Words of error messages."""

import difflib
from collections.abc import Iterable


def nearest(word: str, words: Iterable[str]) -> str:
    """Return '; did you mean ...?' for the nearest of `words`, or else all of them.

    Often only the prefix of a dotted word is missing: `history` for `solver.history`.
    """
    known = sorted(words)
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if not match:
        match = [key for key in known if key.rpartition(".")[2] == word.rpartition(".")[2]][:1]
    return f"; did you mean '{match[0]}'?" if match else f"; choose from: {', '.join(known)}"
