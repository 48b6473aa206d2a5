"""A run folder is read wherever it is, and so are data that have moved."""

import shutil

import pytest

from equilibria.train import recipe as recipes
from equilibria.train import run
from equilibria.train.folder import RunError
from equilibria.train.loop import train


@pytest.fixture
def project(language, tmp_path, quiet):
    """A folder with a text and a run on it."""
    place = tmp_path / "project"
    (place / "data").mkdir(parents=True)
    (tmp_path / "text.txt").rename(place / "data" / "text.txt")
    language["task"]["file"] = str(place / "data" / "text.txt")
    language["epochs"] = 1
    train(recipes.parse(language), place / "runs" / "text", console=quiet)
    return place


def test_a_project_that_moves_as_a_whole_is_read_and_resumed(project, tmp_path, quiet):
    moved = project.rename(tmp_path / "elsewhere")
    loaded = run.load(moved / "runs" / "text")
    assert loaded.data.config.file == str(moved / "data" / "text.txt")
    longer = loaded.recipe.extended(1)
    train(longer, moved / "runs" / "text", resume=True, console=quiet)
    assert len(run.load(moved / "runs" / "text").metrics) == 2


def test_data_that_moved_alone_are_named_by_their_folder(project, tmp_path):
    (tmp_path / "new").mkdir()
    (project / "data" / "text.txt").rename(tmp_path / "new" / "text.txt")
    with pytest.raises(RunError, match=r"no longer at .*text\.txt: put them back, or name"):
        run.load(project / "runs" / "text")
    assert run.load(project / "runs" / "text", data_dir=tmp_path / "new").data.checksum
    run.load(project / "runs" / "text", data=False)


def test_data_that_changed_are_refused_and_both_are_named(project):
    path = project / "data" / "text.txt"
    path.write_text(path.read_text()[: len(path.read_text()) * 2 // 3])
    with pytest.raises(RunError, match=r"other data .*text \(sha256:.*\) there, text \(sha256:"):
        run.load(project / "runs" / "text")
    shutil.rmtree(project)
