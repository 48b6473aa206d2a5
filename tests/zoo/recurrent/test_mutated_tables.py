"""Damaged tables: read as a reference reads them, or refused with a DataError."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
from hypothesis import given
from mutations import FUZZ, bounded, mutated, put

from equilibria.run.data import DataError
from equilibria.zoo.io import delimited
from equilibria.zoo.recurrent.data import tables

TABLES = (
    b"left,right\n1.5,-2.25\n3.0,4.5\n0.125,1000.0\n",
    b"left;right\r\n1,5;-2,25\r\n3,0;4,5\r\n",
    b"1.5\t2\n3\t4.5\n",
    b"\xef\xbb\xbf1.5 2\n3 4.5\n",
    '"1,5","2,5"\n"3,0","4,5"\n'.encode("utf-16"),
)


@FUZZ
@given(content=mutated(*TABLES))
def test_tables(root, content):
    path = put(root / "a.csv", content)
    with bounded(len(content)):
        try:
            form = delimited.find_format([path])
            found, names = tables.read(path, tables.Reading(form))
        except DataError as error:
            assert str(path) in str(error)
            return
    kind = next((k for k in ("utf-16", "utf-8-sig") if content[:2] == b"\xff\xfe" or "8" in k), "")
    separator = delimited.SEPARATORS[form.separator]
    lines = list(io.StringIO(content.decode(kind), newline=""))
    if separator == " ":
        rows = [each for line in lines if (each := re.split(" +", line.strip(" \r\n"))) != [""]]
    else:
        rows = [row for row in csv.reader(lines, delimiter=separator, skipinitialspace=True) if row]
    rows = [row for row in rows if any(map(str.strip, row))][bool(names) :]
    if form.decimal == ",":
        rows = [[cell.replace(",", ".") for cell in row] for row in rows]
    assert np.array_equal(found, np.array(rows, np.float64))
