"""Training on images that are streamed from shards: batches, the task, and the command line."""

import itertools
import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file

from pictures import content
from several import several

pytest.importorskip("PIL")
from PIL import Image
from tar_shards import folder, labeled, picture, write

from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main
from equilibria.run.data.storage import DataError
from equilibria.run.evaluation import accelerator
from equilibria.run.folder import Folder
from equilibria.run.resume import restore, save
from equilibria.run.tasks import Part
from equilibria.run.trainer import Trainer
from equilibria.zoo.vision.data.shards import read_index, write_index
from equilibria.zoo.vision.data.shards.dataset import load
from equilibria.zoo.vision.model.single_scale import DenseConfig
from equilibria.zoo.vision.task.classification import ImageClassification
from equilibria.zoo.vision.task.own_images import OwnImages
from equilibria.zoo.vision.task.seen import ImageFormat
from equilibria.zoo.vision.task.streaming import usual

RECIPE = {
    "task": {"name": "image_classification", "size": 8, "crop": 0.3, "normalize": True},
    "model": {"name": "dense", "shape": [3, 8, 8], "classes": 2, "width": 8},
    "solver": {"name": "Anderson", "rtol": 1e-5, "max_evals": 40},
    "epochs": 2,
    "batch_size": 8,
    "probes": 2,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Shards with their indexes, 40 images to learn from and 17 to evaluate on."""
    root = folder(tmp_path_factory.mktemp("made") / "shards", (7, 12, 5, 16), (9, 8), side=12)
    assert main(["shards", str(root), "--quiet"]) == 0
    return root


@pytest.fixture
def shards(made, tmp_path):
    return shutil.copytree(made, tmp_path / "shards")


def task(root, **options):
    return ImageClassification(data=str(root), **{"size": 8, **options}).load()


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [None, 1, 4])
def test_batches_are_the_same_on_any_number_of_processes(made, lanes):
    config = {"crop": 0.3, "normalize": True, "lanes": lanes}
    whole = task(made, **config).feed(8, 0)
    for step, count in itertools.product((0, whole.steps - 1, whole.steps + 2), (2, 4)):
        feed = task(made, **config).feed(8, 0)
        parts = [feed.batch(step, Part(k, count)) for k in range(count)]
        for name in ("inputs", "targets"):
            together = torch.cat([getattr(part, name) for part in parts])
            assert torch.equal(together, getattr(whole.batch(step), name))


def test_each_image_is_seen_once_in_a_pass(made):
    one = task(made)
    feed = one.feed(8, 0)
    shown = torch.cat([feed.batch(step).inputs for step in range(feed.steps)])
    images, targets = one.samples["train"][0:40]
    order = [int((images - each).flatten(1).abs().amax(1).argmin()) for each in shown]
    assert sorted(order) == list(range(40)) and order != sorted(order)
    assert torch.equal(images[order], shown)
    told = torch.cat([feed.batch(step).targets for step in range(feed.steps)])
    assert torch.equal(told, targets[order])


def test_a_part_of_each_image_is_shown_another_one_each_time(made):
    one = task(made, crop=0.3)
    feed = one.feed(40, 0)
    first, again = (feed.batch(step).inputs.sort(0).values for step in (0, 1))
    assert not torch.allclose(first, again)
    assert torch.equal(one.feed(40, 0).batch(0).inputs, feed.batch(0).inputs)


def test_lanes_that_nobody_chose_divide_the_batch():
    assert [usual(*each) for each in ((128, 100), (128, 3), (9, 100), (7, 5), (1, 1))] == [
        *(8, 2, 3, 1, 1)
    ]


# --- the task ------------------------------------------------------------------------------------


def test_a_split_is_evaluated_in_its_order_by_any_number_of_processes(made):
    one = task(made, normalize=True)
    images, targets = one.samples["test"][0:17]
    for count in (1, 2, 3):
        parts = [list(one.batches("test", 5, Part(k, count))) for k in range(count)]
        batches = [batch for part in parts for batch in part]
        assert torch.equal(torch.cat([batch.inputs for batch in batches]), images)
        assert torch.equal(torch.cat([batch.targets for batch in batches]), targets)
    assert one.sample("test", 3).samples == 3 and one.some("test", 5).tolist() == [0, 1, 2, 3, 4]


def test_shards_are_normalised_by_what_the_index_says(made):
    one, moments = task(made, normalize=True), load(made, size=8).moments
    assert one.statistics.mean == moments.mean and one.statistics.deviation == moments.deviation
    plain = task(made).samples["test"][0:4][0]
    expected = (plain - torch.tensor(moments.mean)[:, None, None]) / torch.tensor(
        moments.deviation
    )[:, None, None]
    torch.testing.assert_close(one.samples["test"][0:4][0], expected)


def test_grey_shards_of_one_colour_cannot_be_normalised(tmp_path):
    black = [
        (f"{n}", {"png": content(Image.new("RGB", (8, 8)), "png"), "cls": b"0"}) for n in range(3)
    ]
    path = str(write(tmp_path / "train.tar", black))
    assert main(["shards", str(tmp_path), "--train", path, "--test", path]) == 0
    with pytest.raises(ValueError, match="channel 0 is 0 everywhere"):
        task(tmp_path, normalize=True)


def test_other_shards_are_seen_by_the_classes_of_a_run(made, tmp_path):
    one = task(made, normalize=True)
    named = [(f"{n}", {"png": picture(n), "cls": b"1" if n % 2 else b"0"}) for n in range(4)]
    path = str(write(tmp_path / "other.tar", named))
    words = ["shards", str(tmp_path), "--test", path, "--classes", str(tmp_path / "names")]
    (tmp_path / "names").write_text("1\n0\n")
    assert main(words) == 0
    one.save(tmp_path)
    seen = ImageFormat.read(tmp_path / "images.json")
    assert seen.labels == ("0", "1") and seen.statistics == one.statistics
    other = ImageClassification(data=str(tmp_path), size=8, normalize=True, lanes=4)
    found = other.load_other(tmp_path)
    assert found.splits == ("test",) and found.statistics == one.statistics
    # Numbers count the lines of the file: 0 is the class 1 of the run.
    assert found.samples["test"][0:4][1].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"samples": 10}, r"samples is 10, and shards are streamed .*task\.samples to null"),
        ({"valid": 10}, "valid is 10, and shards are streamed"),
        ({"lanes": 0}, "lanes must be at least 1"),
    ],
)
def test_what_cannot_be_asked_of_shards(made, options, said):
    with pytest.raises(ValueError, match=said):
        task(made, **options)


def test_lanes_are_for_shards():
    with pytest.raises(ValueError, match="lanes is 2, and the images of 'digits' are not in"):
        ImageClassification(data="digits", lanes=2).load()


def test_one_index_is_not_the_folder(made):
    with pytest.raises(DataError, match=r"train\.json is one index of shards: name the folder"):
        ImageClassification(data=str(made / "train.json"), size=8).load()


def test_images_too_small_for_a_model_are_named(made):
    class Config(DenseConfig):
        min_size = 16

    with pytest.raises(ValueError, match=r"train-000\.tar \(12 x 12 pixels\): too small"):
        task(made, size=None).complete(Config(shape=(3, 12, 12), classes=2, width=4))


def test_settings_follow_from_shards_as_from_a_folder(made):
    one = OwnImages(data=str(made)).load()
    assert (one.own.size, one.own.channels, one.own.shift) == (32, 3, 3)
    assert one.mirroring.held_out == 20 and one.own.flip == one.mirroring.harmless
    assert one.reference("test")["accuracy"] > 0.9


# --- the command line ----------------------------------------------------------------------------


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(RECIPE))
    return tmp_path / "small.yaml"


def interrupted(monkeypatch):
    """Train into the folder run, until Ctrl-C after seven steps."""
    step = Trainer.train_step

    def stopping(self, *given):
        step(self, *given)
        if self.step == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", stopping)
        assert main(["train", "small.yaml", "--data", "shards", "--out", "run"]) == 130


@pytest.mark.usefixtures("unsaved")
def test_a_recipe_trains_from_shards_is_resumed_and_evaluated(
    recipe, shards, tmp_path, monkeypatch, capsys
):
    assert main(["train", "small.yaml", "--data", "shards", "--out", "whole"]) == 0
    interrupted(monkeypatch)
    assert main(["train", "run", "--resume"]) == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["source"] == "shards" and info["data"].startswith("sha256:")
    capsys.readouterr()
    assert main(["evaluate", "run"]) == 0
    assert "17 test samples of shards" in " ".join(capsys.readouterr().out.split())
    assert main(["evaluate", "run", "--split", "train"]) == 0
    assert json.loads((tmp_path / "run" / "evaluation-train.json").read_text())["samples"] == 40
    assert main(["report", "run"]) == 0
    assert (tmp_path / "run" / "report.html").exists()
    # The run folder alone is enough to predict.
    shards.rename(tmp_path / "elsewhere")
    (tmp_path / "light.png").write_bytes(picture(1))
    assert main(["predict", "run", "light.png", "--out", "told"]) == 0
    assert (tmp_path / "told" / "predictions.csv").read_text().count("light.png,ok") == 1


def test_a_run_is_not_resumed_on_other_shards(recipe, shards, monkeypatch, capsys):
    interrupted(monkeypatch)
    write(shards / "train-001.tar", labeled(range(100, 112), side=12))
    assert main(["shards", "shards"]) == 0
    capsys.readouterr()
    assert main(["train", "run", "--resume"]) == 1
    assert "run was trained on other data than those found" in capsys.readouterr().err


def test_a_shard_that_is_damaged_or_another_ends_training_with_its_name(recipe, shards, capsys):
    path = shards / "train-003.tar"
    path.write_bytes(path.read_bytes()[:3_000])
    assert main(["train", "small.yaml", "--data", "shards", "--out", "run"]) == 1
    assert "train-003.tar" in capsys.readouterr().err
    write(path, labeled(range(3), side=12))
    assert main(["train", "small.yaml", "--data", "shards", "--out", "other"]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert "train-003.tar has 3 samples and its index says 16: rebuild the index" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["empty"], "there are no archives (*.tar) in empty"),
        (["odd"], "the name of odd/a.tar does not tell whether"),
        (["odd", "--train", "odd/b-*.tar"], "no file matches odd/b-*.tar"),
        (["odd", "--train", "odd/a.tar", "odd/?.tar"], "odd/a.tar is named twice"),
        (["odd", "--train", "odd/a-{3..1}.tar"], "the range {3..1} is empty"),
        (["odd", "--train", "odd/a-{08..09}.tar"], "odd/a-08.tar cannot be read"),
        (["odd", "--train", "odd/a.tar", "--classes", "twice"], "twice names the class x twice"),
        (["odd", "--train", "odd/a.tar", "--classes", "gap"], "a name of a class in each line"),
        (["mine", "--train", "odd/a.tar"], "mine/train.json is another file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_indexed_is_named(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "mine"):
        (tmp_path / name).mkdir()
    write(tmp_path / "odd" / "a.tar", labeled(range(3)))
    (tmp_path / "mine" / "train.json").write_text("{}")
    (tmp_path / "twice").write_text("x\nx\n")
    (tmp_path / "gap").write_text("x\n\ny\n")
    assert main(["shards", *words]) == 1
    assert not list(tmp_path.glob("*/test.json")) and not list(tmp_path.glob("odd/*.json"))
    assert said in " ".join(capsys.readouterr().err.split())


def test_an_index_without_images_is_refused_with_the_command(recipe, shards, capsys):
    write_index(shards / "train.json", read_index(shards / "train.json"))
    assert main(["train", "small.yaml", "--data", "shards", "--out", "run"]) == 1
    assert "equilibria shards" in " ".join(capsys.readouterr().err.split())


# --- several processes ---------------------------------------------------------------------------


def trained(rank, place, count, parallel, before=None):
    """Save after four steps, or go on with what others have saved; evaluate after four more."""
    tree = {**RECIPE, "task": {**RECIPE["task"], "data": str(place / "shards")}}
    recipe = recipes.parse(tree, (f"--parallel={parallel}",))
    trainer = Trainer(recipe, recipe.task.load(), accelerator(recipe.precision, "cpu"))
    run = Folder(place / (before or f"{parallel}-{count}"))
    if before is None:
        if rank == 0:
            run.create(trainer.recipe)
            (run.path / "run.json").write_text(json.dumps({"data": trainer.task.checksum}))
        trainer.accelerator.wait_for_everyone()
        for _ in range(4):
            trainer.train_step()
        save(trainer, run)
    else:
        restore(trainer, run)
    for _ in range(4):
        trainer.train_step()
    figures = trainer.evaluate("test")
    if rank == 0:
        (place / f"{before or ''}-{parallel}-{count}.json").write_text(json.dumps(figures))


@pytest.mark.slow
def test_two_processes_train_from_shards_as_one_does(shards, tmp_path):
    trained(0, tmp_path, 1, "ddp")
    for parallel, before in (("ddp", None), ("fsdp", None), ("fsdp", "ddp-1")):
        several(trained, 2, tmp_path, 2, parallel, before)
    trained(0, tmp_path, 1, "ddp", "fsdp-2")
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*-*dp-*.json"))]
    assert len(found) == 5 and {each["samples"] for each in found} == {17}
    for each in found:
        assert each["loss"] == pytest.approx(found[0]["loss"], rel=1e-5)
