"""A run folder has one writer at a time, and a start that fails leaves none behind."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from equilibria import files
from equilibria.run.folder import BEGUN, Folder, RunError
from equilibria.run.lock import NAME, Locked, lock
from equilibria.run.resume import save
from equilibria.run.step import Diverged

HOLDER = """
import os, sys, time
from pathlib import Path
from equilibria.run.lock import lock
with lock(Path(sys.argv[1])):
    if sys.argv[2] == "fork" and os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    print("held", flush=True)
    time.sleep(30)
"""


@pytest.fixture
def holder(tmp_path):
    """holder(fork) -> a process that holds the lock on tmp_path."""
    started = []

    def start(fork=""):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path), fork or "alone"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what it forked
        process.wait()


def test_the_second_is_refused_and_told_who_is_the_first(tmp_path, holder):
    process = holder()
    with (
        pytest.raises(Locked, match=rf"written by process {process.pid} on .*, since \d"),
        lock(tmp_path),
    ):
        pass


@pytest.mark.parametrize("fork", ["", "fork"])
def test_neither_a_dead_process_nor_its_forked_child_holds_it(tmp_path, holder, fork):
    process = holder(fork)
    process.kill()
    process.wait()
    with lock(tmp_path):
        pass


def test_threads_of_one_process_exclude_each_other(tmp_path):
    with lock(tmp_path):
        errors = []

        def second():
            try:
                with lock(tmp_path):
                    pass
            except Locked as error:
                errors.append(str(error))

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert "another thread" in errors[0]
    with lock(tmp_path):  # and the refused one has not released it
        pass


def test_a_folder_in_use_can_be_neither_started_in_nor_resumed(make, tmp_path, holder):
    holder()
    trainer, _ = make("other")
    refused = "wait until it has ended, or stop it"
    (tmp_path / "other" / "recipe.yaml").rename(tmp_path / "recipe.yaml")
    (tmp_path / "other").rmdir()
    for resume in (False, True):
        with pytest.raises(RunError, match=refused), Folder(tmp_path).write_alone(resume=resume):
            pass
    assert Folder(tmp_path).read_recipe() == trainer.recipe


def test_a_start_that_fails_leaves_no_folder_behind(make, tmp_path):
    trainer, _ = make("other")
    folder = Folder(tmp_path / "new" / "run")
    with pytest.raises(ValueError, match="no start"), folder.write_alone():
        folder.create(trainer.recipe)
        raise ValueError("no start")
    assert not (tmp_path / "new").exists()
    with pytest.raises(OSError, match="full"), folder.write_alone():
        folder.create(trainer.recipe)
        raise OSError("full")
    assert folder.recipe.exists()  # to be resumed once there is space
    with folder.write_alone(resume=True):
        pass
    with folder.write_alone():  # nothing had been saved, so it can be started in too
        assert [path.name for path in folder.path.iterdir()] == [NAME]


def test_a_run_that_has_saved_something_stays_whatever_happens(make, tmp_path):
    trainer, _ = make("other")
    folder = Folder(tmp_path / "run")
    with pytest.raises(Diverged), folder.write_alone():
        folder.create(trainer.recipe)
        save(trainer, folder)
        raise Diverged("nan")
    assert folder.recipe.exists() and folder.checkpoints.all()
    with pytest.raises(RunError, match="already holds a run"), folder.write_alone():
        pass


def test_what_dead_writers_left_is_cleared_and_what_living_ones_write_is_not(tmp_path, holder):
    living = holder()
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    mine, theirs, elsewhere, old = (
        f".model.{files.HOST}-{dead}.0a.tmp",
        f".model.{files.HOST}-{living.pid}.0a.tmp",
        ".model.ffffff-1.0a.tmp",
        ".model.ffffff-2.0a.tmp",
    )
    for name in (mine, theirs, elsewhere, old):
        (tmp_path / name).write_text("half")
    (tmp_path / f".00000003.{files.HOST}-{dead}.0b.tmp").mkdir()
    os.utime(tmp_path / old, (0, time.time() - 2 * files.DAY))
    files.clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {NAME, theirs, elsewhere}


@pytest.mark.parametrize("name", ["notes.txt", "recipe.yaml", "events"])
def test_files_of_the_user_are_neither_taken_for_a_run_nor_deleted(make, tmp_path, name):
    """A recipe that someone wrote by hand is no beginning of a run."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / name).write_text("mine")
    with (
        pytest.raises(RunError, match=r"name (an empty|another)"),
        Folder(tmp_path / "own").write_alone(),
    ):
        pass
    with pytest.raises(ValueError, match="no start"), Folder(tmp_path / "new").write_alone():
        (tmp_path / "new" / name).write_text("mine")
        raise ValueError("no start")
    assert (tmp_path / "own" / name).read_text() == "mine"
    assert (tmp_path / "new" / name).exists() is (name == "notes.txt")


def test_a_link_in_its_place_does_not_cut_another_file(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic link"), lock(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


# --- what a start leaves that was killed anywhere can be started in, or resumed -------------------


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
