"""Tests of the frame: runs on small recipes, and commands as a user types them."""

import re

import pytest

from equilibria.run.cli.main import main


@pytest.fixture(autouse=True, scope="module")
def _swift(unflushed):
    """No power is lost, so nothing is flushed to disk."""


@pytest.fixture
def prints(capsys):
    """prints(*words) -> what a command that ends well, or with `status`, says on standard output.

    Its lines are joined with `flat`, since a path may fill one.
    """

    def run(*words, status=0, flat=False):
        capsys.readouterr()
        assert main([*map(str, words)]) == status
        shown = capsys.readouterr().out
        return " ".join(shown.split()) if flat else shown

    return run


@pytest.fixture
def fails(capsys):
    """fails(*words) -> the single line in which a command explains why it has failed."""

    def run(*words):
        capsys.readouterr()
        assert main([*map(str, words)]) == 1
        line = capsys.readouterr().err
        assert re.fullmatch(r"equilibria( [\w-]+)?: error: .*\n", line), line
        assert "a bug in equilibria" not in line
        return line

    return run
