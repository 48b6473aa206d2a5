"""Answers of servers that are not what was asked for."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from equilibria.run.data import DataError
from equilibria.zoo.io.download import fetch
from file_server import serving
from packed import tar, zipped

ANSWERS: dict[str, tuple[str, int, dict[str, str], bytes, str]] = {
    "a page": ("a.bin", 200, {}, b"<!DOCTYPE html><p>", "sent a page"),
    "a page with a mark": ("a.txt", 200, {}, b"\xef\xbb\xbf <HTML>", "sent a page"),
    "no content": ("a.bin", 204, {}, b"", "HTTP 204"),
    "an empty body": ("a.bin", 200, {}, b"", "empty file"),
    "packed": ("a.bin", 200, {"Content-Encoding": "gzip"}, gzip.compress(b"a"), "are packed"),
    "a length of letters": ("a.bin", 200, {"Content-Length": "abc"}, b"a", "Content-Length is"),
    "no length": ("a.bin", 200, {"Content-Length": ""}, b"a", "gave no length"),
    "a cut zip": ("a.zip", 200, {"Content-Length": ""}, zipped()[:-9], r"no \.zip file, or is cut"),
    "a cut gzip": ("a.gz", 200, {"Content-Length": ""}, gzip.compress(b"a")[:-3], r"\.gz file"),
    "a cut tar": ("a.tar", 200, {"Content-Length": ""}, tar()[:4608], r"\.tar file"),
    "a cut tar.xz": ("a.tar.xz", 200, {"Content-Length": ""}, lzma.compress(tar())[:-5], r"\.xz"),
    "another archive": ("a.zip", 200, {}, tar(), r"no \.zip file"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_wrong_answer_is_refused_and_the_next_address_asked(tmp_path, answer):
    name, status, head, body, message = ANSWERS[answer]
    with serving() as server:
        server.answers[f"odd/{name}"] = (status, head, body)
        with pytest.raises(DataError, match=message):
            fetch(server.url(f"odd/{name}"), tmp_path / name)
        assert not (tmp_path / name).exists()
        good = {".zip": zipped(), ".gz": gzip.compress(b"a"), ".tar": tar()}
        right = good.get(Path(name).suffix, lzma.compress(b"a"))
        server.files[f"good/{name}"] = right
        urls = [server.url(f"odd/{name}"), server.url(f"good/{name}")]
        assert fetch(urls, tmp_path / name).read_bytes() == right


def test_an_archive_tells_its_own_end(tmp_path):
    with serving() as server:
        server.answers["a.zip"] = (200, {"Content-Length": ""}, zipped())
        assert fetch(server.url("a.zip"), tmp_path / "a.zip").read_bytes() == zipped()
