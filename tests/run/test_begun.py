"""What a start leaves that was killed anywhere can be started in, or resumed."""

import os
import shutil

import pytest

from equilibria.run.folder import BEGUN, Folder
from equilibria.run.lock import NAME


@pytest.fixture
def begun(make):
    """A run that ended before it had saved anything."""
    _, folder = make("begun")
    (folder.path / NAME).touch()
    for name in set(BEGUN) - {"recipe.yaml", "checkpoints", "events", "metrics.jsonl"}:
        (folder.path / name).write_text("{}")
    folder.metrics.touch()
    (folder.path / "events").mkdir()
    (folder.path / "checkpoints").mkdir()
    return folder


@pytest.mark.parametrize("count", range(len(BEGUN)))
def test_a_folder_that_was_half_cleared(begun, count, monkeypatch):
    class Killed(BaseException):
        pass

    left = [count]

    def dying(delete):
        def one(path, *given, **options):
            if not left[0]:
                raise Killed
            left[0] -= 1
            return delete(path, *given, **options)

        return one

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", dying(shutil.rmtree))
        patched.setattr(type(begun.path), "unlink", dying(type(begun.path).unlink))
        with pytest.raises(Killed):
            begun._clear()
    folder = Folder(begun.path)
    folder.check_free()
    assert folder.recipe.exists()
    folder.check_begun()
    assert os.listdir(begun.path)
