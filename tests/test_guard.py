"""The guard of the checkout and the home: what it refuses, and what it lets pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def offences(request):
    """What the guard refused in this test, forgotten at its end."""
    guard = request.config.pluginmanager.getplugin(str(ROOT / "tests" / "conftest.py")).guard
    yield guard.offences
    guard.offences.clear()


@pytest.mark.parametrize("act", [
    lambda: (ROOT / "runs-of-a-test").mkdir(),
    lambda: (ROOT / "README.md").touch(),
    lambda: (ROOT / "README.md").open("a").close(),
    lambda: (ROOT / "nothing").unlink(),
    lambda: os.rename(ROOT / "README.md", ROOT / "other"),
    lambda: (ROOT / "runs" / "digits" / "run.json").read_text(),
    lambda: list((ROOT / "runs").iterdir()),
])  # fmt: skip
def test_the_checkout_is_neither_written_nor_read_where_git_ignores_it(act, offences):
    with pytest.raises(PermissionError, match="a test would"):
        act()
    assert offences


def test_a_child_is_guarded_too():
    code = f"open({str(ROOT / 'README.md')!r}, 'a')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "PermissionError: a test would write" in run.stderr


def test_what_is_tracked_may_be_read_and_the_working_directory_is_the_tests_own():
    assert (ROOT / "README.md").read_text()
    assert list(Path.cwd().iterdir()) == []
    Path("file").write_text("")
    assert Path.home().parent == Path.cwd().parent
