"""The guard of the checkout and the home: what it refuses, and what it lets pass."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def plugin(request):
    """The module that sets up the guard."""
    return request.config.pluginmanager.getplugin(str(ROOT / "tests" / "conftest.py"))


@pytest.fixture
def take(plugin, _guarded_folder):
    """take() -> what was refused since it was last called; the rest is forgotten at the end."""
    yield lambda: plugin.take_offences(_guarded_folder)
    plugin.take_offences(_guarded_folder)


needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the checkout has no .git")


@pytest.mark.parametrize("act", [
    lambda: (ROOT / "runs-of-a-test").mkdir(),
    lambda: (ROOT / "README.md").touch(),
    lambda: (ROOT / "README.md").open("a").close(),
    lambda: (ROOT / "nothing").unlink(),
    lambda: os.rename(ROOT / "README.md", ROOT / "other"),
    lambda: shutil.rmtree(ROOT / "no-such-folder"),
    pytest.param(lambda: (ROOT / "runs" / "digits" / "run.json").read_text(), marks=needs_git),
])  # fmt: skip
def test_the_checkout_is_neither_written_nor_read_where_git_ignores_it(act, take):
    with pytest.raises(PermissionError, match="a test would"):
        act()
    assert take() and not take()


def test_a_child_is_guarded_too_and_an_error_that_it_catches_is_known(take):
    code = f"import contextlib\nwith contextlib.suppress(OSError): open({str(ROOT / 'new')!r}, 'a')"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert take() == f"a test would write {ROOT / 'new'}\n"


def test_of_the_folders_only_those_that_git_ignores_are_not_listed(plugin, tmp_path):
    """A branch that is left may leave an empty folder behind, and an editor a file."""
    for name in ("runs", "tests", "tests/left"):
        (tmp_path / name).mkdir()
    settings = {"home": None, "allowed": [], "readable": ["tests"], "unlisted": ["runs/"]}
    log = str(tmp_path.parent / "log")
    hook = plugin.guard.Guard(checkout=str(tmp_path), **settings, offences=log)
    hook("os.listdir", (tmp_path / "tests" / "left",))
    with pytest.raises(PermissionError, match="a test would read"):
        hook("os.listdir", (tmp_path / "runs",))
    with pytest.raises(PermissionError, match="a test would read"):
        hook("open", (tmp_path / "tests" / "left" / "file", "r", 0))


def test_what_is_tracked_may_be_read_and_the_working_directory_is_the_tests_own():
    assert (ROOT / "README.md").read_text()
    assert list(Path.cwd().iterdir()) == []
    Path("file").write_text("")
    assert Path.home().parent == Path.cwd().parent
