"""What all tests share: none downloads, and those that read real data sets are marked `data`."""

import functools
import os
import socket

import pytest


@functools.cache
def inductor_problem() -> str | None:
    """Why torch.compile's own backend makes no code here; None if it does.

    It needs a C++ compiler; and it writes code for the processor that it finds, which does not fit
    torch's headers where ATEN_CPU_CAPABILITY asks for less.
    """
    if asked := os.environ.get("ATEN_CPU_CAPABILITY"):
        return f"ATEN_CPU_CAPABILITY is {asked}"
    import torch

    try:
        torch.compile(lambda x: torch.tanh(x) + x.sin())(torch.ones(64))
    except Exception as error:
        return str(error).strip().splitlines()[0]
    finally:
        torch.compiler.reset()
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "inductor" in item.name and (problem := inductor_problem()):
        pytest.skip(f"torch.compile makes no code here: {problem}")
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
