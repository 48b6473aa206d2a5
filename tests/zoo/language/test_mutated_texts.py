"""Damaged texts: read as a reference reads them, or refused with a DataError."""

from __future__ import annotations

import pytest
from hypothesis import given
from mutations import FUZZ, bounded, mutated, put

from equilibria.run.data import DataError
from equilibria.zoo.language.data import reading as text

PROSE = "Zwölf Boxkämpfer jagen\nViktor 天地玄黃 \U0001f600 quer\n" * 3


@FUZZ
@given(content=mutated(PROSE.encode(), PROSE.encode("utf-8-sig"), b"plain\n" * 9))
def test_texts(root, content):
    path = put(root / "a.txt", content)
    with bounded(len(content)):
        try:
            found = "".join(text.read_texts(text.Piece(path)))
        except DataError as error:
            assert str(path) in str(error)
            with pytest.raises(UnicodeDecodeError):
                content.decode()
            return
    assert found == content.decode("utf-8-sig")
