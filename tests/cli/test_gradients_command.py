"""`equilibria gradients`: the table, the files, and what it refuses."""

import contextlib
import io
import json

import pytest

from equilibria.cli.main import main
from equilibria.stability import comparison
from equilibria.train import recipe as recipes

pytestmark = pytest.mark.usefixtures("drawn_once")

ONE = ["--epochs", "1", "--task.samples", "200", "--model.width", "16", "--quiet"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients") / "run"
    assert main(["train", "digits", "--out", str(folder), *ONE]) == 0
    return folder


@pytest.fixture(scope="module")
def shown(trained):
    """What the command prints, with fewer adjoints, for time; its files are in `trained`."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(comparison, "SETTINGS", ((1, 1.0), (3, 1.0)))
        assert main(["gradients", str(trained), "--samples", "16", "--repeats", "1"]) == 0
    return printed.getvalue()


def test_it_shows_a_table_and_writes_figures_and_a_line_for_the_recipe(trained, shown):
    assert "NeumannPhantom(3, 1)" in shown and "JacobianFree" in shown
    stored = json.loads((trained / "gradients.json").read_text())
    assert stored["samples"] == 16
    assert stored["reference"] <= 1e-6
    assert len(stored["rows"]) == 5
    assert f"In the recipe: {stored['recipe_line']}\nAs options: --adjoint.name " in shown
    assert (trained / "gradients.svg").read_text().lstrip().startswith("<?xml")


def test_the_recommended_line_is_one_that_a_recipe_takes(trained, shown):
    yaml = pytest.importorskip("yaml")
    line = json.loads((trained / "gradients.json").read_text())["recipe_line"]
    adjoint = yaml.safe_load(line)["adjoint"]
    words = [f"--adjoint.{name}={value}" for name, value in adjoint.items()]
    assert type(recipes.load("digits", words).adjoint).__name__ == adjoint["name"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--floor", "2"], "--floor must be a cosine"),
        (["--samples", "0"], "--samples must be 1 or more"),
        (["--repeats", "0"], "--repeats must be 1 or more"),
        (["--split", "nowhere"], "there is no split 'nowhere'"),
    ],
)
def test_mistakes(trained, capsys, words, said):
    assert main(["gradients", str(trained), *words]) != 0
    assert said in capsys.readouterr().err


def test_the_page_of_the_run_shows_them_until_it_is_trained_on(trained, shown):
    words = ["report", str(trained), "--no-doctor", "--no-gallery", "--quiet"]
    assert main(words) == 0
    page = (trained / "report.html").read_text()
    stored = json.loads((trained / "gradients.json").read_text())
    assert "<h2>Gradients</h2>" in page and stored["sentence"] in page
    assert "<td>NeumannPhantom(3, 1)</td>" in page.replace('<th scope="row">', "<td>").replace(
        "</th>", "</td>"
    )
    (trained / "gradients.json").write_text(json.dumps({**stored, "weights": "of others"}))
    assert main(words) == 0
    assert "<h2>Gradients</h2>" not in (trained / "report.html").read_text()


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_damaged_file_is_named(trained, capsys, content):
    (trained / "gradients.json").write_text(content)
    assert main(["report", str(trained), "--no-doctor", "--no-gallery"]) == 1
    assert "gradients.json is damaged" in capsys.readouterr().err
    (trained / "gradients.json").unlink()


def test_a_folder_without_a_run(tmp_path, capsys):
    assert main(["gradients", str(tmp_path / "nothing")]) != 0
    assert "there is no run folder" in capsys.readouterr().err
