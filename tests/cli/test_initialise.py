"""`equilibria initialise`, as a user meets it."""

import json
import math

import pytest
import yaml

from equilibria.cli.main import main

RECIPE = {
    "description": "a narrow layer on digits",
    "task": {"name": "image_classification", "data": "digits"},
    "model": {"name": "dense", "width": 32, "bound": None},
    "solver": {"name": "Anderson", "rtol": 1e-3, "max_evals": 20},
}
QUICK = ("--samples", "8", "--draws", "2", "--scales", ".3", ".6", "3")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with recipes in it, and what was found of the first."""
    path = tmp_path_factory.mktemp("initialise")
    (path / "narrow.yaml").write_text(yaml.safe_dump(RECIPE))
    (path / "explicit.yaml").write_text(
        yaml.safe_dump({"task": RECIPE["task"], "model": {"name": "resnet"}})
    )
    recipe = str(path / "narrow.yaml")
    assert main(["initialise", recipe, "--out", str(path / "found"), *QUICK, "--seed", "4"]) == 0
    return path


@pytest.fixture
def found(place):
    return json.loads((place / "found" / "initialise.json").read_text())


def fails(capsys, *argv):
    """Run a command that must fail and return its one line of explanation."""
    capsys.readouterr()
    assert main(["initialise", *map(str, argv)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("equilibria initialise: error: ") and len(error.splitlines()) == 1
    return error


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
            assert trial["radius"] == pytest.approx(start["forecast"]["radius"], rel=0.1)
            assert trial["response"] == pytest.approx(start["forecast"]["response"], rel=0.3)
    assert sweep["critical"]["orthogonal"] > 1 > sweep["critical"]["goe"]


def test_where_an_ensemble_stops_being_workable_is_looked_at_more_closely(found):
    scales = {}
    for start in found["sweep"]["starts"]:
        scales.setdefault(start["ensemble"], []).append(start["scale"])
    for name, row in scales.items():
        assert row == sorted(row) and len(row) == 5 and {0.3, 0.6, 3.0} < set(row), name


def test_the_recommendation_is_workable_and_says_how_to_train(found, place):
    advice = found["recommendation"]
    assert advice["workable"]
    assert advice["reasons"][0] == (
        f"Start from {advice['ensemble']} weights at scale {advice['scale']:g}."
    )
    assert advice["options"] in advice["command"]
    assert advice["command"].startswith(f"equilibria train {place / 'narrow.yaml'} --seed 4")
    chosen = [
        start
        for start in found["sweep"]["starts"]
        if (start["ensemble"], start["scale"]) == (advice["ensemble"], advice["scale"])
    ]
    assert all(0.3 <= trial["radius"] <= 0.9 for trial in chosen[0]["trials"])


def test_figure_and_page_need_nothing_else(place):
    svg = (place / "found" / "initialise.svg").read_text()
    page = (place / "found" / "initialise.html").read_text()
    assert "not run" not in svg and svg[svg.index("<svg") :] in page
    assert "src=" not in page and "<link" not in page and "<script" not in page
    for word in ("gaussian", "orthogonal", "goe", "equilibria train", RECIPE["description"]):
        assert word in page
    assert {path.name for path in (place / "found").iterdir()} == {
        *("initialise.json", "initialise.svg", "initialise.html"),
    }


def test_the_terminal_has_the_table_and_the_words(place, capsys, found):
    recipe = place / "narrow.yaml"
    words = ["initialise", recipe, "--out", place / "again", *QUICK, "--seed", "4"]
    assert main([*map(str, words)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for sentence in found["recommendation"]["reasons"] + found["recommendation"]["remarks"]:
        assert sentence in out
    assert f"To train: {found['recommendation']['command']}" in out
    assert "theory" in out
    for name in ("initialise.json", "initialise.svg"):  # the same again, to the last byte
        assert (place / "again" / name).read_bytes() == (place / "found" / name).read_bytes()


def test_an_examination_is_not_overwritten_unless_asked(place, capsys):
    recipe, out = place / "narrow.yaml", place / "kept"
    quick = ("--samples", "2", "--draws", "1", "--scales", ".5", "--ensembles", "orthogonal")
    assert main(["initialise", str(recipe), "--out", str(out), *quick]) == 0
    before = (out / "initialise.json").read_text()
    assert "--fresh" in fails(capsys, recipe, "--out", out, *quick, "--seed", 9)
    assert (out / "initialise.json").read_text() == before
    words = [recipe, "--out", out, *quick, "--fresh", "--seed", "9"]
    assert main(["initialise", *map(str, words)]) == 0
    assert (out / "initialise.json").read_text() != before
    (out / "mine.txt").write_text("mine")
    assert "holds other things" in fails(capsys, recipe, "--out", out, *quick, "--fresh")


def test_two_scales_are_the_ends_of_a_row(place):
    words = [place / "narrow.yaml", "--out", place / "row", "--samples", "2", "--draws", "1"]
    words += ["--ensembles", "antisymmetric", "--scales", ".1", "1.6"]
    assert main(["initialise", *map(str, words)]) == 0
    content = json.loads((place / "row" / "initialise.json").read_text())
    scales = [start["scale"] for start in content["sweep"]["starts"]]
    row = [0.1 * 2 ** (i / 2) for i in range(9)]
    assert all(any(math.isclose(s, t, rel_tol=0.01) for t in scales) for s in row)
    assert content["sweep"]["critical"]["antisymmetric"] is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "recipe"),
        (["nowhere"], "no recipe 'nowhere'"),
        (["RECIPE", "--ensembles", "gausian"], "did you mean 'gaussian'?"),
        (["RECIPE", "--scales", "0"], "--scales are positive and finite; got 0"),
        (["RECIPE", "--scales", "1", "-2"], "--scales are positive and finite; got -2"),
        (["RECIPE", "--scales", "inf"], "inf"),
        (["RECIPE", "--scales", "large"], "scales"),
        (["RECIPE", "--draws", "0"], "--draws must be 1 or more; got 0"),
        (["RECIPE", "--samples", "0"], "--samples must be 1 or more; got 0"),
        (["RECIPE", "--samples", "100000"], "samples is 100000"),
        (["RECIPE", "--solver.histroy", "3"], "did you mean 'solver.history'?"),
        (["RECIPE", "--initialisation.layers", '["*nothing*"]'], "no recurrent weight matches"),
        (["RECIPE", "--model.name", "monotone-dense"], "no recurrent weight"),
        (["EXPLICIT"], "explicit network"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_one_message_and_leave_nothing(words, message, place, tmp_path, capsys):
    names = {"RECIPE": str(place / "narrow.yaml"), "EXPLICIT": str(place / "explicit.yaml")}
    out = tmp_path / "out"
    assert message in fails(capsys, *(names.get(word, word) for word in words), "--out", out)
    assert list(tmp_path.iterdir()) == []
