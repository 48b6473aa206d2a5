"""Where shards are read from: paths, servers that break off, and what webdataset opens."""

import io
import sys
import types
from contextlib import contextmanager

import pytest

from equilibria.run.data.storage import DataError
from equilibria.zoo.vision.data.shards import index
from file_server import serving

BODY = bytes(range(256)) * 1_000


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(index, "WAIT", 0.0)
    with serving() as server:
        server.files["a.tar"] = BODY
        yield server


def test_a_path_is_read(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(BODY)
    assert index.read_address(str(path)) == index.read_address(path.as_uri()) == BODY
    with pytest.raises(DataError, match=r"b\.tar cannot be read: No such file"):
        index.read_address(str(tmp_path / "b.tar"))


def test_a_broken_transfer_goes_on_where_it_stopped(server):
    server.break_next, server.broken_at = 2, 1_000
    assert index.read_address(server.url("a.tar")) == BODY
    assert [span for _, span in server.requests] == [None, "bytes=1000-", "bytes=2000-"]


def test_a_server_that_cannot_go_on_is_asked_for_all_of_it(server):
    server.ranges, server.break_next, server.broken_at = False, 1, 1_000
    assert index.read_address(server.url("a.tar")) == BODY


def test_a_busy_server_is_asked_again_and_given_up_in_the_end(server):
    server.failures = 2
    assert index.read_address(server.url("a.tar")) == BODY
    server.requests.clear()
    server.failures = 100
    with pytest.raises(DataError, match=r"a\.tar could not be read in 4 attempts: HTTP 503"):
        index.read_address(server.url("a.tar"))
    assert len(server.requests) == index.ATTEMPTS


def test_a_transfer_that_always_breaks_is_given_up(server):
    server.break_next, server.broken_at = 100, 10
    with pytest.raises(DataError, match=r"4 attempts: 40 of 256,000 bytes arrived"):
        index.read_address(server.url("a.tar"))


def test_a_page_that_is_not_there_is_asked_for_once(server):
    with pytest.raises(DataError, match=r"none\.tar cannot be read: HTTP 404"):
        index.read_address(server.url("none.tar"))
    assert len(server.requests) == 1


def test_nobody_answers(server):
    url = server.url("a.tar")
    server.server_close()
    with pytest.raises(DataError, match="could not be read in 4 attempts: the connection broke"):
        index.read_address(url)


@contextmanager
def stream(content, wrong=None):
    yield io.BytesIO(content)
    if wrong is not None:  # as the pipe of a command that fails
        raise wrong


def test_other_schemes_are_left_to_webdataset(monkeypatch):
    streams = {
        "s3://bucket/a.tar": lambda: stream(BODY),
        "pipe:false": lambda: stream(b"", OSError("exit 1 (read)")),
    }

    def gopen(url):
        if url not in streams:
            raise ValueError("no gopen handler defined")
        return streams[url]()

    module = types.ModuleType("webdataset.gopen")
    module.gopen = gopen
    monkeypatch.setitem(sys.modules, "webdataset", types.ModuleType("webdataset"))
    monkeypatch.setitem(sys.modules, "webdataset.gopen", module)
    assert index.read_address("s3://bucket/a.tar") == BODY
    with pytest.raises(DataError, match=r"pipe:false cannot be read: exit 1"):
        index.read_address("pipe:false")
    with pytest.raises(DataError, match=r"gx://a cannot be opened: no gopen handler"):
        index.read_address("gx://a")


def test_webdataset_runs_a_command(tmp_path):
    pytest.importorskip("webdataset", reason="webdataset is not installed (extra stream)")
    (tmp_path / "a.tar").write_bytes(BODY)
    assert index.read_address(f"pipe:cat {tmp_path / 'a.tar'}") == BODY
    with pytest.raises(DataError, match="cannot be read"):
        index.read_address(f"pipe:cat {tmp_path / 'b.tar'}")


@pytest.mark.parametrize(
    ("url", "path"),
    [("a/b.tar", True), ("C:\\a.tar", True), ("https://a/b.tar", False), ("pipe:cat a", False)],
)
def test_paths_and_addresses_are_told_apart(url, path):
    assert index.is_path(url) == path
