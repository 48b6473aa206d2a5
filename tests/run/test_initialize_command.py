"""`equilibria initialize`, as a user meets it."""

import contextlib
import io
import json
import re
import shlex

import pytest
import yaml

from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main

RECIPE = {
    "description": "a narrow layer on digits",
    "task": {"name": "image_classification", "data": "digits"},
    "model": {"name": "dense", "width": 32, "bound": None},
    "solver": {"name": "Anderson", "rtol": 1e-3, "max_evals": 20},
}
QUICKEST = ("--samples", "2", "--draws", "1", "--scales", ".5", "--ensembles", "orthogonal")
QUICK = ("--samples", "8", "--draws", "2", "--scales", ".3", ".6", "3")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with recipes in it, and what was found of the first."""
    path = tmp_path_factory.mktemp("initialise")
    (path / "narrow.yaml").write_text(yaml.safe_dump(RECIPE))
    recipe, printed = str(path / "narrow.yaml"), io.StringIO()
    words = ["initialise", recipe, "--out", str(path / "found"), *QUICK, "--seed", "4"]
    with contextlib.redirect_stdout(printed):
        assert main(words) == 0
    (path / "printed.txt").write_text(printed.getvalue())
    return path


@pytest.fixture
def found(place):
    return json.loads((place / "found" / "initialise.json").read_text())


def test_measured_and_predicted_stand_beside_each_other(found):
    sweep = found["sweep"]
    assert sweep["samples"] == 8 and sweep["entries"] == 32 and sweep["maps"] == 1
    assert sweep["theory"] == "tanh(W z + u)" and sweep["weights"] == ["deq.cell.linear.weight"]
    assert {start["ensemble"] for start in sweep["starts"]} == {"gaussian", "orthogonal", "goe"}
    # an orthogonal layer is near its limit of many units when it is narrow, too
    small = [s for s in sweep["starts"] if s["ensemble"] == "orthogonal" and s["scale"] <= 0.6]
    assert small
    for start in small:
        for trial in start["trials"]:
            assert trial["converged"] == 1
            assert trial["radius"] == pytest.approx(start["predicted"], rel=0.1)


def test_where_an_ensemble_stops_being_workable_is_looked_at_more_closely(found):
    scales = {}
    for start in found["sweep"]["starts"]:
        scales.setdefault(start["ensemble"], []).append(start["scale"])
    for name, row in scales.items():
        assert row == sorted(row) and len(row) == 5 and {0.3, 0.6, 3.0} < set(row), name


def test_the_recommendation_is_workable_and_says_how_to_train(found, place):
    advice = found["recommendation"]
    assert advice["workable"]
    assert advice["options"] in advice["command"]
    assert advice["command"].startswith(f"equilibria train {place / 'narrow.yaml'} --seed 4")
    chosen = [
        start
        for start in found["sweep"]["starts"]
        if (start["ensemble"], start["scale"]) == (advice["ensemble"], advice["scale"])
    ]
    assert all(0.3 <= trial["radius"] <= 0.9 for trial in chosen[0]["trials"])


def test_the_folder_holds_the_numbers_and_a_figure(place):
    svg = (place / "found" / "initialise.svg").read_text()
    assert "not run" not in svg and "<svg" in svg
    names = {path.name for path in (place / "found").iterdir()}
    assert names == {"initialise.json", "initialise.svg"}


def test_the_terminal_has_the_table_and_one_line(place, found):
    out = (place / "printed.txt").read_text()
    advice = found["recommendation"]
    starred = [line.split()[:3] for line in out.splitlines() if "*" in line]
    assert starred == [[advice["ensemble"], "*", f"{advice['scale']:g}"]]
    said = [line for line in out.splitlines() if line.startswith("Recommended: ")]
    assert len(said) == 1 and said[0].endswith(f": {advice['command']}")
    assert [line for line in out.splitlines() if line.startswith("Warning: ")] == [
        f"Warning: {sentence}" for sentence in advice["warnings"]
    ]
    assert "as it is" in out and "theory" in out and "max" in out


def test_the_same_again_to_the_last_byte(place):
    words = [place / "narrow.yaml", *QUICKEST]
    for name in ("one", "two"):
        assert main(["initialise", *map(str, words), "--out", str(place / name)]) == 0
    for name in ("initialise.json", "initialise.svg"):
        assert (place / "one" / name).read_bytes() == (place / "two" / name).read_bytes()


@pytest.mark.usefixtures("unsaved")
def test_a_radius_out_of_reach_and_all_else_there_is_to_say(place, tmp_path):
    """What trains otherwise than it was measured, and what is asked for in vain."""
    data = tmp_path / "data"
    data.mkdir()
    given = ["--model.bound", ".5", "--initialization.radius", "0.9", "--precision=bf16"]
    given += ["--pretrain.name", "ShallowStart", "--pretrain.steps", "3"]
    given += ["--seed", "2", "--data-dir", str(data), "--initialization.scale=null"]
    words = [str(place / "narrow.yaml"), "--out", str(place / "vain"), *QUICKEST, *given]
    assert main(["initialise", *words]) == 0
    content = json.loads((place / "vain" / "initialise.json").read_text())
    assert content["sweep"]["own"] is None
    text = " ".join(content["recommendation"]["warnings"])
    assert "cannot be reached: initialization.radius 0.9: " in text
    assert "trains in bf16" in text and "first 3 steps (pretrain)" in text
    command = shlex.split(content["recommendation"]["command"])
    assert command[-2:] == ["--data-dir", str(data)]
    asked = recipes.load(command[2], command[3:-2])  # of an option given twice the last counts
    assert (asked.seed, asked.initialization.radius) == (2, None)
    assert asked.initialization.scale == content["recommendation"]["scale"]


@pytest.mark.usefixtures("unsaved")
def test_a_recipe_with_a_radius_is_examined_as_it_would_be_trained(place):
    """Its radius is set on the whole first batch of training, not on what is solved for."""
    path = place / "radius.yaml"
    begins = {"initialization": {"ensemble": "goe", "radius": 0.6}, "batch_size": 32}
    path.write_text(yaml.safe_dump({**RECIPE, **begins}))
    words = [str(path), "--out", str(place / "radius"), *QUICKEST[2:], "--samples", "32"]
    assert main(["initialise", *words]) == 0
    content = json.loads((place / "radius" / "initialise.json").read_text())
    assert content["sweep"]["own"]["largest"] == pytest.approx(0.6, abs=0.025)
    command = content["recommendation"]["command"]
    assert command.endswith("--initialization.radius null")


@pytest.mark.usefixtures("unsaved")
def test_an_examination_is_not_overwritten_unless_asked(place, fails, prints):
    recipe, out = place / "narrow.yaml", place / "kept"
    words = ("initialise", recipe, "--out", out, *QUICKEST)
    prints(*words)
    before = (out / "initialise.json").read_text()
    assert "--fresh" in fails(*words, "--seed", 9)
    assert (out / "initialise.json").read_text() == before
    prints(*words, "--fresh", "--seed", 9)
    assert (out / "initialise.json").read_text() != before
    assert "is a file" in fails(*words[:3], recipe, *QUICKEST)


@pytest.mark.usefixtures("unsaved")
def test_ensembles_are_whole_in_a_terminal_of_80_columns(tmp_path, prints, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    names = ["gaussian", "orthogonal", "antisymmetric"]
    argv = ["digits", *QUICKEST[:-1], *names, "--out", tmp_path / "found"]
    out = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", prints("initialise", *argv))
    table = out[out.index("ensemble") : out.index("Recommended")]
    assert {line.split()[0] for line in table.splitlines() if line.strip()} >= set(names)
    assert "…" not in table and max(map(len, table.splitlines())) <= 80
