"""Tables of text: what separates their columns, which decimal sign they use, what is missing."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from equilibria.run.data.storage import DataError, open_file, read_errors
from equilibria.zoo.io.arrays import check_size

# --- encodings ------------------------------------------------------------------------------------

# Encodings of texts: told by their byte order mark, or guessed.


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


def read_mark(head: bytes) -> str | None:
    """The codec that a byte order mark names; None without one."""
    return next((name for mark, name in _MARKS if head.startswith(mark)), None)


def describe_encoding(sample: bytes) -> str:
    """What encoding a text that is not UTF-8 seems to have: ``"it looks like cp1252 (2 % ...)"``.

    The names are those that Python and iconv know, the likeliest first, by charset-normalizer, and
    the share of characters that are out of place is its measure of doubt.
    """
    if name := read_mark(sample):
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


# --- delimited ------------------------------------------------------------------------------------


Separator = Literal["comma", "semicolon", "tab", "space", "bar"]

SEPARATORS: dict[Separator, str] = {
    "comma": ",",
    "semicolon": ";",
    "tab": "\t",
    "bar": "|",
    "space": " ",
}

MISSING = ("", "na", "n/a", "#n/a", "nan", "null", "none", "?")
"""What stands for a value that is missing, in small letters."""

NAN = float("nan")

_HEAD = 1 << 12
"""Characters at the beginning of a file that tell its format."""

_SAMPLE = 1 << 14
"""Bytes by which an encoding is guessed."""

_FILES = 16
"""Files that are looked at in any case; further ones only to decide between formats."""


@dataclass(frozen=True)
class Format:
    """How a table writes its numbers.

    Attributes:
        separator: Of columns; any number of spaces is one.
        decimal: ``"."`` or ``","``.
    """

    separator: Separator = "comma"
    decimal: str = "."

    def __str__(self) -> str:
        sign = "point" if self.decimal == "." else "comma"
        return f"columns separated by {self.separator}, decimal {sign}"

    def rows(self, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
        """The rows that are not blank, each with the number of its line."""
        if self.separator == "space":
            lines = (line.strip(" ") for line in lines)
        found = csv.reader(
            lines, delimiter=SEPARATORS[self.separator], skipinitialspace=True, strict=True
        )
        return ((found.line_num, row) for row in found if any(map(str.strip, row)) or len(row) > 1)

    def number(self, cell: str) -> float:
        """The number in a cell; NaN where it is missing.

        Raises:
            ValueError: If it is neither a number nor one of `MISSING`.
        """
        text = cell.strip()
        if text.lower() in MISSING:
            return NAN
        if self.decimal == ",":
            if "." in text:
                raise ValueError(f"a point in {cell!r}")
            text = text.replace(",", ".")
        if "_" in text:  # of Python, not of tables
            raise ValueError(f"an underscore in {cell!r}")
        return float(text)

    def numbers(self, row: Sequence[str]) -> list[float]:
        """The numbers of a row; see `number`."""
        return list(map(self.number, row))

    def names(self, row: Sequence[str]) -> tuple[str, ...] | None:
        """The names that a row of them gives to columns; None if it has a number or is empty."""
        if all(cell.strip().lower() in MISSING for cell in row):
            return None
        if any(_is_number(cell.replace(",", "."), float) for cell in row if cell.strip()):
            return None
        if any(re.search(r"\d", cell) and not re.search(r"[^\W\d_]", cell) for cell in row):
            return None  # numbers in another format
        # numpy.savetxt begins a header with the sign of a comment.
        return (row[0].lstrip("# ").strip(), *(cell.strip() for cell in row[1:]))


def _is_number(cell: str, read: Callable[[str], float]) -> bool:
    try:
        read(cell)
    except ValueError:
        return False
    return True


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a table in UTF-8, or in UTF-16 or UTF-32 with a byte order mark.

    Args:
        path: The file.

    Raises:
        DataError: If it cannot be read, is too large, or is no text in these encodings.
    """
    with read_errors(path), open_file(path) as file:
        check_size(path.stat().st_size, f"{path} has")
        sample = file.read(_SAMPLE)
        file.seek(0)
        name = read_mark(sample) or "utf-8"
        lines = io.TextIOWrapper(file, encoding=name, newline="")
        try:
            for first in islice(lines, 1):  # Excel may begin with the separator, as sep=;
                yield "\n" if re.fullmatch(r"sep=.\s*", first, re.I) else first
            yield from lines
        except UnicodeError:
            raise DataError(
                f"{path} is not a table in UTF-8: {describe_encoding(sample)}. Convert it, "
                f"e.g. with iconv -f ENCODING -t UTF-8 {path.name}"
            ) from None


def rows(path: Path, form: Format) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table that are not blank, each with the number of its line.

    Raises:
        DataError: As `read_lines`, and if a quotation mark is not closed.
    """
    line = 0
    try:
        for line, row in form.rows(read_lines(path)):
            yield line, row
    except csv.Error as error:
        raise DataError(
            f"{path} is not a table ({error}, after line {line}): remove or replace it"
        ) from None


def find_names(path: Path, *needed: str) -> Format:
    """The format of a table of names, whose first line has those that are needed."""
    first = next(read_lines(path), "")
    for name in SEPARATORS:
        rows = Format(name).rows([first])
        if {*needed} <= {cell.strip() for _, row in rows for cell in row}:
            return Format(name)
    return Format()


def find_format(paths: Sequence[Path], separator: Separator | None = None) -> Format:
    """The format in which all of some tables can be read.

    The beginning of each tells, and where it leaves two formats, all of it.

    Args:
        paths: Their files.
        separator: Of columns; None to find it.

    Returns:
        The format; where several are possible and give the same numbers, the most usual of them.
        Where none is, that which reads the most files, for the message to say what is wrong.

    Raises:
        DataError: If a file cannot be read, or two formats give different numbers: ``2,126`` is
            two columns, or one number.
    """
    names: list[Separator] = list(SEPARATORS) if separator is None else [separator]
    forms = [Format(name, decimal) for name in names for decimal in (".", ",")]
    strict = separator is None
    left, best = _fit_formats(forms, paths, strict, _HEAD)
    if not left and strict:  # a name of a column may have a comma in it
        left, best = _fit_formats(forms, paths, False, _HEAD)
        strict = False
    if len(left) > 1:
        left, best = _fit_formats([*left], paths, strict, None)
    kinds: dict[int, Format] = {}
    for form, read in left.items():
        kinds.setdefault(read, form)
    if len(kinds) > 1:
        one, other = list(kinds.values())[:2]
        line = next(iter(Format("bar").rows(read_lines(paths[0]))))[1][0]
        raise DataError(
            f"{paths[0]} can be read in two ways: {line!r} as {one}, or as {other}. Say which with "
            f"--task.separator {one.separator} or --task.separator {other.separator}, or give "
            "the columns names in the first line"
        )
    return next(iter(left), best)


def _fit_formats(
    forms: Sequence[Format], paths: Sequence[Path], strict: bool, size: int | None
) -> tuple[dict[Format, int], Format]:
    """The formats that fit all tables, each with a hash of what it read, and the likeliest.

    Args:
        forms: Formats to try.
        paths: The files.
        strict: Whether a format is refused if the names of its columns have other separators.
        size: Characters of each file that are looked at; None for all.
    """
    left = dict.fromkeys(forms, 0)
    fits: dict[Format, list[tuple[float, int]]] = {form: [] for form in forms}
    for count, path in enumerate(paths, 1):
        if count > _FILES and len(left) < 2:
            break
        lines = _head(path, size)
        read = {form: _parse(lines, form, strict) for form in (fits if count <= _FILES else left)}
        for form, (values, share) in read.items():
            fits[form].append((share, len(values[0]) if values else 0))
        left = {
            form: hash((before, repr(read[form][0])))
            for form, before in left.items()
            if read[form][1] == 1.0
        }
    whole = {form: sum(share == 1.0 for share, _ in each) for form, each in fits.items()}
    return left, max(forms, key=lambda form: (whole[form], fits[form]), default=Format())


def _head(path: Path, size: int | None) -> list[str]:
    """The first lines of a table, of some characters or a little more; all where it is None."""
    lines: list[str] = []
    count = 0
    for line in read_lines(path):
        lines.append(line)
        count += len(line)
        if size is not None and count > size:
            break
    return lines


def _parse(
    lines: Sequence[str], form: Format, strict: bool
) -> tuple[list[tuple[object, ...]], float]:
    """Names and numbers of some lines up to the first that does not fit, and what share fits."""
    found: list[tuple[object, ...]] = []
    row: list[str] = [""]
    try:
        for _, row in form.rows(lines):
            names = form.names(row) if not found else None
            if strict and any(sign in name for name in names or () for sign in ",;\t|"):
                break
            values = names or tuple(form.numbers(row))
            if found and len(values) != len(found[0]):
                break
            found.append(values)
        else:
            return found, 1.0
    except csv.Error:
        pass
    except ValueError:
        part = sum(_is_number(cell, form.number) for cell in row) / len(row)
        return found, (len(found) + part) / (len(lines) + 1)
    return found, len(found) / (len(lines) + 1)
