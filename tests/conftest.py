"""What all tests share: none downloads, and those that read real data sets are marked `data`."""

import os
import socket

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("data") and not os.environ.get("EQUILIBRIA_DATA"):
        pytest.skip("EQUILIBRIA_DATA names no folder with data, and tests download nothing")


@pytest.fixture(autouse=True, scope="session")
def _no_network():
    """A test that would reach another machine fails, on a machine with a network too."""
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def check(host):
        if host not in (None, "", "localhost", "127.0.0.1", "::1", socket.gethostname()):
            raise OSError(f"a test asked for {host}: tests use no network")

    def local_connect(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            check(address[0])
        return connect(self, address)

    def local_resolve(host, *args, **options):
        check(host.decode() if isinstance(host, bytes) else host)
        return resolve(host, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", local_connect)
        patch.setattr(socket, "getaddrinfo", local_resolve)
        yield
