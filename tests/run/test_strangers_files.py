"""Files of a run folder that are not what they should be: refused by name, waited for never."""

import json
import os
import shutil
import warnings
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import FUZZ, bounded, mutated

from equilibria.metric import ACCURACY
from equilibria.run import gallery, run
from equilibria.run.checkpoint import MANIFEST, CheckpointError
from equilibria.run.cli import report
from equilibria.run.cli.main import main
from equilibria.run.cli.output import Output
from equilibria.run.config import ConfigError
from equilibria.run.data import DataError
from equilibria.run.depth import DepthReport, StartFigures
from equilibria.run.memory import MemoryPoint
from equilibria.run.records import Adjoints, Depths, EvaluationRecord
from equilibria.run.weights import read_weights
from equilibria.stability import Compared, Examination
from equilibria.zoo.vision.task.seen import ImageFormat

ROW = Compared(
    name="Implicit",
    adjoint="eq.Implicit()",
    line="{name: Implicit}",
    exact=True,
    cosine=1.0,
    sample_cosine=1.0,
    norm_ratio=1.0,
    cost=10.0,
    step_ms=1.0,
    backward_ms=1.0,
    bytes=1,
)
DEPTH = {
    "split": "test",
    "samples": 2,
    "metric": "accuracy",
    "figure": 1.0,
    "at": {1: 0.5, 2: 0.5, 4: 1.0},
    "evals": [3, 4],
    "converged": 1.0,
    "starts": {"noise": StartFigures(figure=1.0, evals=4.0, converged=1.0, same=1.0)},
    "right_after": [1, 4],
    "right_evals": [3, 4],
    "difficulty": [1.0, 2.0],
}
READ = {
    "run.json": lambda folder: run.Folder(folder).read_info(),
    "images.json": lambda folder: ImageFormat.read(folder / "images.json"),
    "doctor.json": lambda folder: report._read(folder / "doctor.json", Examination),
    "memory.json": lambda folder: report._read(folder / "memory.json", list[MemoryPoint]),
    "gradients.json": lambda folder: report._read(folder / "gradients.json", Adjoints),
    "depth.json": lambda folder: report._read(folder / "depth.json", Depths),
    "evaluation.json": lambda folder: report._read(folder / "evaluation.json", EvaluationRecord),
}
FILES = (*READ, "metrics.jsonl")


@pytest.fixture(scope="module")
def measured(digits_run, tmp_path_factory):
    """A run with all files that a page shows; only to be read."""
    folder = shutil.copytree(digits_run, tmp_path_factory.mktemp("strange") / "digits")
    assert main(["doctor", str(folder), "--samples", "10", "--starts", "1"]) == 0
    point = asdict(MemoryPoint("deq", 2, bytes=1, history_bytes=1))
    (folder / "memory.json").write_text(json.dumps([point]))
    row = {"rows": [asdict(ROW)], "floor": 0.99, "sentence": "Take it"}
    (folder / "gradients.json").write_text(json.dumps(row))
    split = DepthReport(**DEPTH).json(ACCURACY)
    content = {"metric": ACCURACY.describe(), "splits": [split]}
    (folder / "depth.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def folder(measured, tmp_path):
    return shutil.copytree(measured, tmp_path / "digits")


def collect(folder):
    """Read all that a page shows."""
    return report._collect(folder, None, False, Output(quiet=True))


def places(tree, above=()):
    """Where the values of a tree are, of each list in its first member."""
    yield above
    if isinstance(tree, list):
        tree = dict(enumerate(tree[:1]))
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield from places(value, (*above, key))


def changed(tree, place, value):
    if not place:
        return value
    key, *rest = place
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[key] = changed(tree[key], rest, value)
    return copy


@pytest.mark.parametrize("name", READ)
def test_a_value_of_another_kind_is_refused_at_each_key(folder, name):
    path, refused = folder / name, set()
    tree = json.loads(path.read_text())
    for place in places(tree):
        for value in ("x", 5, None, [], {}, True):
            path.write_text(json.dumps(changed(tree, place, value)))
            try:
                READ[name](folder)
            except (run.RunError, DataError) as error:
                refused.add(place)
                assert f"{name} is damaged" in str(error)
    # Others are of no reader, such as the versions in run.json.
    assert len(refused) > len([*places(tree)]) / 2


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("run.json", ("metrics", 0, "name"), 5, r"metrics\[0\].name must be a text; got 5"),
        ("doctor.json", ("forward", "rtol"), "x", "forward.rtol must be a number; got 'x'"),
        ("evaluation.json", ("at",), {"a": {}}, "at must be an object whose keys are whole"),
        ("images.json", ("labels",), 3, "labels must be a list; got 3"),
    ],
)
def test_the_file_and_the_key_are_named(folder, name, place, value, message):
    path = folder / name
    path.write_text(json.dumps(changed(json.loads(path.read_text()), place, value)))
    with pytest.raises((run.RunError, DataError), match=rf"{name} is damaged.*{message}"):
        collect(folder)


def endless(path):
    path.symlink_to("/dev/zero")


def huge(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("make", [os.mkfifo, endless, huge])
@pytest.mark.parametrize("name", FILES)
def test_what_never_ends_is_refused(folder, make, name):
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises((run.RunError, DataError), match=name):
        collect(folder)


def test_a_gallery_shows_no_file_from_elsewhere(folder, tmp_path):
    (tmp_path / "secret").write_text("mine")
    loaded = run.load(folder)
    gallery.hang(loaded)
    path = folder / "gallery" / "gallery.json"
    content = json.loads(path.read_text())
    content["pictures"][0]["files"]["image"] = "../../secret"
    path.write_text(json.dumps(content))
    assert gallery.read(run.Folder(folder)) is None  # it is made again


def newest(folder):
    return run.Folder(folder).checkpoints.all()[0]


MUTATED = READ | {
    "metrics.jsonl": lambda folder: run.Folder(folder).read_metrics(),
    "recipe.yaml": lambda folder: run.Folder(folder).read_recipe(),
    "model.safetensors": lambda folder: read_weights(folder / "model.safetensors"),
    MANIFEST: lambda folder: run.Folder(folder).checkpoints.read(newest(folder)),
}
REFUSED = (run.RunError, DataError, ConfigError, CheckpointError)


@pytest.fixture(scope="module")
def spoilt(measured, tmp_path_factory):
    """A copy of a run, and what its files hold when they are whole."""
    folder = shutil.copytree(measured, tmp_path_factory.mktemp("mutated") / "digits")
    paths = {name: folder / name for name in MUTATED} | {MANIFEST: newest(folder) / MANIFEST}
    return folder, {name: (path, path.read_bytes()) for name, path in paths.items()}


@pytest.mark.parametrize("name", MUTATED)
@FUZZ
@given(draw=st.data())
def test_a_mutated_file_is_read_or_refused(spoilt, name, draw):
    folder, files = spoilt
    path, whole = files[name]
    path.write_bytes(content := draw.draw(mutated(whole)))
    try:
        with bounded(len(content)), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            MUTATED[name](folder)
    except REFUSED as error:
        assert name in str(error) or path.parent.name in str(error)
    finally:
        path.write_bytes(whole)
