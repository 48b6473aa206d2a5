"""`equilibria evaluate` on data that have changed, have moved, or are others; and on NaN."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

from applications import needs, present
from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main
from equilibria.run.run import load

IMAGES = {
    "description": "two epochs on small images",
    "task": {"name": "image_classification", "size": 8, "channels": 1, "normalize": True},
    "model": {"name": "dense", "width": 8, "classes": 3},
    "solver": {"name": "Anderson", "rtol": 1e-2, "max_evals": 20},
    "epochs": 2,
    "batch_size": 12,
    "probes": 4,
}
TEXT = {
    "description": "four steps on a small text",
    "task": {"name": "language_modeling", "unit": "words", "length": 8},
    "model": {"name": "deq-transformer", "width": 8, "heads": 2, "inner": 8, "memory": 4},
    "solver": {"name": "Anderson", "period": 3, "rtol": 1e-2, "max_evals": 8},
    "epochs": 1,
    "epoch_steps": 2,
    "batch_size": 2,
    "eval_batch_size": 4,
    "probes": 2,
}
RUNS = {"images": (IMAGES, "photos")}
RUNS |= {"text": (TEXT, "book.txt")} if present("language") else {}
LINES = ("the cat sat on the mat .\n", "a dog saw one cat and sat .\n", "on and on it went .\n")


def draw(folder, classes, *, count=12, size=10):
    """Write grey images of some brightness, in noise, for each class."""
    generator = np.random.default_rng(0)
    for label, level in classes.items():
        (folder / label).mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(level, level + 40, (size, size)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number:02}.png")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run on images, a run on a text, and their data."""
    place = tmp_path_factory.mktemp("trained")
    draw(place / "photos", {"bright": 200, "dark": 10, "medium": 100})
    (place / "book.txt").write_text("".join(LINES * 40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        for name, (tree, data) in RUNS.items():
            (place / f"{name}.yaml").write_text(yaml.safe_dump(tree))
            words = [str(place / f"{name}.yaml"), "--out", str(place / name)]
            assert main(["train", *words, "--data", str(place / data)]) == 0
    return place


@pytest.fixture
def place(trained, tmp_path, monkeypatch):
    """A copy of it, whose runs name the data of the copy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(trained, tmp_path / "copy", ignore=shutil.ignore_patterns("cache"))
    for name in RUNS:
        recipe = tmp_path / "copy" / name / "recipe.yaml"
        recipe.write_text(recipe.read_text().replace(str(trained), str(tmp_path / "copy")))
    return tmp_path / "copy"


def written(run, name):
    """What was written about the only other data of that name."""
    (path,) = run.glob(f"evaluation-other-{name}-*.json")
    return json.loads(path.read_text())


# --- changed, and moved --------------------------------------------------------------------------


def change_image(place):
    (place / "photos" / "dark" / "03.png").unlink()


def rename_class(place):
    (place / "photos" / "dark").rename(place / "photos" / "night")


def truncate(place):
    (place / "book.txt").write_text("".join(LINES * 38))


@pytest.mark.parametrize(
    ("run", "change"),
    [
        ("images", change_image),
        ("images", rename_class),
        pytest.param("text", truncate, marks=needs("language")),
    ],
    ids=["an image is gone", "a class is renamed", "a text is cut"],
)
def test_changed_data_are_an_error_that_names_both(place, run, change, fails):
    before = (place / run / "evaluation.json").read_text()
    known = json.loads((place / run / "run.json").read_text())
    change(place)
    message = fails("evaluate", place / run)
    assert "was trained on other data than those found" in message
    assert known["source"] in message and known["data"] in message
    assert "--data-dir" in message and "--data" in message
    assert (place / run / "evaluation.json").read_text() == before


@needs("language")
def test_changed_data_that_are_asked_for_are_said_to_be(place, capsys):
    before = (place / "text" / "evaluation.json").read_text()
    truncate(place)
    words = ["evaluate", str(place / "text"), "--budgets", "--data", str(place / "book.txt")]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "on other data" in " ".join(shown.out.split())
    assert "is what the run was trained on, and has changed" in shown.err
    assert written(place / "text", "book")["other"]["source"] == "book"
    assert (place / "text" / "evaluation.json").read_text() == before


@pytest.mark.parametrize(
    ("run", "name"),
    [("images", "photos"), pytest.param("text", "book.txt", marks=needs("language"))],
)
def test_data_that_have_only_moved_are_the_runs_own(place, run, name, fails):
    before = json.loads((place / run / "evaluation.json").read_text())
    (place / "elsewhere").mkdir()
    moved = shutil.move(place / name, place / "elsewhere" / name)
    assert "no longer at" in fails("evaluate", place / run)
    assert main(["evaluate", str(place / run), "--data", str(moved)]) == 0
    after = json.loads((place / run / "evaluation.json").read_text())
    assert "other" not in after and after["loss"] == before["loss"]
    assert not list((place / run).glob("evaluation-other-*"))


@needs("language", "synthetic")
def test_a_task_that_makes_its_own_data_takes_no_others(tmp_path, fails):
    run = tmp_path / "copying"
    run.mkdir()
    (run / "recipe.yaml").write_text(recipes.to_yaml(recipes.load("copy-memory")))
    message = fails("evaluate", str(run), "--data", "mnist")
    assert "CopyMemory generates its own data" in message


# --- other images --------------------------------------------------------------------------------


def test_all_of_another_folder_is_the_test_set(place):
    draw(place / "more", {"bright": 200, "dark": 10, "medium": 100}, count=7, size=13)
    assert main(["evaluate", str(place / "images"), "--data", str(place / "more")]) == 0
    assert written(place / "images", "more")["samples"] == 21
    assert not (place / "images" / "evaluation-more.json").exists()


def test_a_folder_with_parts_keeps_them(place):
    for part, count in (("train", 5), ("test", 3)):
        draw(place / "parts" / part, {"bright": 200, "dark": 10}, count=count)
    words = ["evaluate", str(place / "images"), "--data", str(place / "parts")]
    assert main(words) == 0
    assert written(place / "images", "parts")["samples"] == 6
    assert main([*words, "--split", "train"]) == 0
    assert len(list((place / "images").glob("evaluation-other-parts-*-train.json"))) == 1


def test_other_images_are_normalised_and_numbered_as_the_runs_were(place, capsys):
    draw(place / "few", {"medium": 100, "dark": 10}, count=4, size=8)
    assert main(["evaluate", str(place / "images"), "--data", str(place / "few")]) == 0
    assert "2 of the run's 3 classes, not bright" in " ".join(capsys.readouterr().err.split())
    own = load(place / "images").data
    found = load(place / "images", other=str(place / "few"))
    task = found.data
    assert found.other == "few" and task.statistics == own.statistics
    assert (task.labels, task.splits) == (("bright", "dark", "medium"), ("test",))
    inputs, targets = task.samples["test"][:8]
    assert sorted(targets.tolist()) == [1] * 4 + [2] * 4
    assert inputs[targets == 1].max() < inputs[targets == 2].min()


def test_images_that_need_no_resizing_are_left_as_they_are(place):
    draw(place / "same", {"dark": 10}, count=1, size=8)
    with pytest.warns(UserWarning, match="has 1 of the run's 3 classes"):
        own = load(place / "images", other=str(place / "same")).data
    pixels = torch.from_numpy(np.array(Image.open(place / "same" / "dark" / "00.png")))
    expected = own.statistics.apply(pixels[None, None] / 255)
    assert torch.equal(own.samples["test"][:1][0], expected)


def test_a_class_that_the_run_does_not_have_is_named(place, fails):
    draw(place / "other", {"bright": 200, "dusk": 50, "medium": 100})
    words = ("evaluate", str(place / "images"), "--data", str(place / "other"))
    message = fails(*words)
    assert "classes that the run does not have: dusk." in message and "lacks dark" in message
    (place / "images" / "images.json").unlink()
    assert "images.json is missing" in fails(*words)
    (place / "images" / "images.json").write_text('{"labels": [')
    assert "images.json is damaged" in fails(*words)


def test_images_of_another_shape_are_an_error(place, fails):
    path = place / "images" / "images.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "shape": [1, 8, 9]}))
    recipe = place / "images" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("size: 8", "size: null"))
    draw(place / "wide", {"bright": 200, "dark": 10, "medium": 100}, count=4)
    message = fails("evaluate", place / "images", "--data", place / "wide")
    assert "have shape (1, 10, 10)" in message and "the run's have (1, 8, 9)" in message


# --- other texts ---------------------------------------------------------------------------------


@needs("language")
def test_another_text_is_read_whole_with_the_runs_vocabulary(place, prints, fails):
    """A word that the other text has once, at its end, is known if the run knows it."""
    (place / "other.txt").write_text("the zebra sat on a mat .\nit saw one dog .\n")
    words = ["evaluate", place / "text", "--data", place / "other.txt"]
    shown = prints(*words, "--budgets", 4)
    result = written(place / "text", "other")
    assert result["split"] == "test" and result["tokens"] == 14 - 1
    assert result["unknown"] == pytest.approx(1 / 14)
    assert "baseline" not in result
    assert "tokens that are <unk>" in shown and "7.14 %" in shown
    assert "at 1 test segment:" in shown
    fewer = shown.split("fewer evaluations")[1]  # in 80 columns
    assert "at most" in fewer and "evaluations" in fewer and "perplexity" in fewer
    task = load(place / "text", other=str(place / "other.txt")).data
    tokens = task.corpus.splits["test"][:].tolist()
    vocabulary = load(place / "text").data.corpus.vocabulary
    assert vocabulary.decode(tokens) == "the <unk> sat on a mat .\nit saw one dog .\n"
    assert "must be one of test" in fails(*words, "--split", "valid")


@needs("language")
def test_a_text_of_one_word_is_too_short(place, fails):
    (place / "other.txt").write_text("the")
    message = fails("evaluate", place / "text", "--data", place / "other.txt")
    assert "too short: 1 token by words, and 2 are needed" in message
    message = fails("evaluate", place / "text", "--data", place / "none.txt")
    assert "none.txt does not exist" in message


@needs("language")
def test_other_data_of_one_name_have_files_of_their_own(place):
    for folder in ("one", "two"):
        (place / folder).mkdir()
        (place / folder / "test.txt").write_text(f"the cat saw {folder} dog .\n")
        data = str(place / folder / "test.txt")
        assert main(["evaluate", str(place / "text"), "--budgets", "--data", data]) == 0
    assert len(list((place / "text").glob("evaluation-other-test-*.json"))) == 2


# --- what is not as it should be -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("images", "head.bias"),
        ("images", "deq.cell.linear.parametrizations.weight.original"),
        pytest.param("text", "lexicon.biases.0", marks=needs("language")),
    ],
)
def test_weights_that_are_not_finite_end_with_3(place, run, name, prints):
    """Where those of the cell are not, solves end at their start, and the loss is finite."""
    path = place / run / "model.safetensors"
    weights = load_file(path)
    weights[name] = torch.full_like(weights[name], torch.nan)
    save_file(weights, path)
    shown = prints("evaluate", place / run, status=3, flat=True)
    assert f"1 of {len(weights)} tensors of weights is not finite ({name})" in shown
    text = (place / run / "evaluation.json").read_text()
    assert "NaN" in text and ": NaN" not in text
    if "cell" not in name:
        assert json.loads(text)["loss"] == "NaN"


def test_the_step_that_was_evaluated_is_written(place):
    assert main(["evaluate", str(place / "images"), "--device", "cpu"]) == 0
    last = json.loads((place / "images" / "metrics.jsonl").read_text().splitlines()[-1])
    assert json.loads((place / "images" / "evaluation.json").read_text())["step"] == last["step"]


def test_a_line_of_the_metrics_that_is_damaged_is_left_out(place, capsys):
    path = place / "images" / "metrics.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first[:20] + "\n", *rest]))
    assert main(["evaluate", str(place / "images")]) == 0
    assert "line 1 of" in capsys.readouterr().err
