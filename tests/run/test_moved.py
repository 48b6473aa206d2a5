"""A run folder is read wherever it is, and so are data that have moved."""

import copy
from typing import Any

import pytest
import yaml

import texts
from equilibria.run import recipe as recipes
from equilibria.run import run
from equilibria.run.cli.main import main
from equilibria.run.folder import RunError
from equilibria.run.loop import train


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
    longer = loaded.recipe.extend_by(1)
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


def test_a_file_beside_the_run_is_found_from_anywhere(tmp_path, monkeypatch):
    """A relative path in a recipe is one in the folder where the training began."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "project").mkdir()
    tree: dict[str, Any] = copy.deepcopy(texts.LANGUAGE) | {"epochs": 1}
    tree["task"]["file"] = "text.txt"
    texts.write(tmp_path / "project" / "text.txt")
    (tmp_path / "project" / "own.yaml").write_text(yaml.safe_dump(tree))
    monkeypatch.chdir(tmp_path / "project")
    assert main(["train", "own.yaml", "--out", "runs/text"]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "project/runs/text", "--budgets", "--no-baselines"]) == 0
    (tmp_path / "project").rename(tmp_path / "moved")
    assert main(["train", "moved/runs/text", "--extend", "1"]) == 0
