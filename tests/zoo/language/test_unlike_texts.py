"""Texts of unlike makes: read right, or refused by name; none is wrong in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from equilibria.run.data import DataError
from equilibria.zoo.language import data as text
from equilibria.zoo.language.task.language import LanguageModeling

# --- texts ---------------------------------------------------------------------------------------

PROSE = {
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. ": (
        *("cp1252", "latin-1", "cp1250", "mac_roman", "cp437", "cp850", "iso8859-15", "cp1254"),
    ),
    "Съешь же ещё этих мягких французских булок, да выпей чаю. ": (
        *("koi8-r", "cp1251", "iso8859-5", "cp866", "mac_cyrillic", "koi8-u"),
    ),
    "いろはにほへとちりぬるを、わかよたれそつねならむ。": ("shift_jis", "euc_jp", "cp932"),
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。": ("gb18030", "gbk", "gb2312"),
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。": ("big5", "big5hkscs"),
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. ": ("euc_kr", "cp949"),
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ": ("cp1253", "iso8859-7", "mac_greek"),
    "plain words without any accent ": ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"),
    "naïve words with a mark ": ("utf-16", "utf-32"),
}
TEXTS = [(prose, encoding) for prose, encodings in PROSE.items() for encoding in encodings]


def tokens(path: Path, **options: Any) -> list[str]:
    found = text.load(file=path, unit="characters", **options)
    names = found.vocabulary.tokens
    return [names[each] for split in found.splits.values() for each in split[:].tolist()]


@pytest.mark.parametrize(("prose", "encoding"), TEXTS, ids=[each for _, each in TEXTS])
def test_every_encoding(tmp_path, cache, prose, encoding):
    (tmp_path / "utf8.txt").write_bytes((prose * 40).encode())
    (tmp_path / "mark.txt").write_bytes((prose * 40).encode("utf-8-sig"))
    path = tmp_path / "a.txt"
    path.write_bytes((prose * 40).encode(encoding))
    expected = tokens(tmp_path / "utf8.txt")
    assert tokens(tmp_path / "mark.txt") == expected
    with pytest.raises(
        DataError, match=r"a\.txt (is not UTF-8|has many bytes that are 0).*encoding"
    ):
        tokens(path)
    assert tokens(path, encoding=encoding) == expected
    assert not list(cache.rglob("text.utf-8"))  # nothing is left of the conversion


def test_the_message_names_the_encoding_and_the_doubt(tmp_path, cache):
    path = tmp_path / "a.txt"
    path.write_bytes((next(each for each in PROSE if "Съ" in each) * 20).encode("koi8-r"))
    with pytest.raises(
        DataError, match=r"it looks like koi8-r.* \(\d+ % of its .*\).*task.encoding"
    ):
        tokens(path)
    with pytest.raises(DataError, match="is not in the encoding ascii"):
        tokens(path, encoding="ascii")
    for name in ("klingon", "base64", "a\0b"):
        with pytest.raises(ValueError, match=r"encoding is .*, which Python does not know"):
            tokens(path, encoding=name)
    with pytest.raises(ValueError, match="errors is 'replace', which is for utf-8, not for koi8"):
        tokens(path, encoding="koi8-r", errors="replace")
    assert tokens(path, encoding="UTF-8", errors="replace")
    path.write_bytes(("na\xefve words in a row, with an accent. " * 20).encode("cp1252"))
    with pytest.raises(DataError, match="it looks like cp1252 or"):
        tokens(path)
    with pytest.raises(TypeError, match=r"give a file as load\(file=.*a\.txt"):
        text.load(cast(Any, path))


# --- downloads without a checksum ----------------------------------------------------------------


def test_the_encoding_of_a_run_is_of_its_own_text(tmp_path, cache):
    prose = "un café crème, s'il vous plaît; " * 40
    (tmp_path / "a.txt").write_bytes(prose.encode("cp1252"))
    (tmp_path / "b.txt").write_bytes(prose.encode())
    config = LanguageModeling(encoding="cp1252").at(tmp_path / "a.txt")
    task = config.load()
    task.save(tmp_path)
    other = config.at(tmp_path / "b.txt").load_other(tmp_path)
    assert other.corpus.statistics["test"].unknown == 0
