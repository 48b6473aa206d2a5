"""A task and a model of a kind that the package does not have, by what it offers to others.

Two images go in, under names; a field of two channels comes out, at an equilibrium; the loss is a
mean over pixels, and one metric the square root of a sum. Nothing of it is known to train, report
or the command line.
"""

import json
from dataclasses import dataclass

import pytest
import torch
import yaml
from torch import nn

from equilibria import nn as layers
from equilibria.run import gallery, memory, models, tasks
from equilibria.run.cli.main import main
from equilibria.run.gallery import GalleryKind
from equilibria.run.gallery.kind import Hanging, PictureRecord, Settling, Stored
from equilibria.run.models import EquilibriumModel, ModelConfig
from equilibria.run.pictures import image_png
from equilibria.run.registry import find
from equilibria.run.run import Folder
from equilibria.solve import Status

SIZE = 6


class Pairs:
    """Images, the same images one pixel further to the right or down, and where they went."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.first = torch.rand(count, 1, SIZE, SIZE, generator=generator)
        down = torch.rand(count, generator=generator) < 0.5
        moved = [image.roll(1, 1 if d else 2) for image, d in zip(self.first, down, strict=True)]
        self.second = torch.stack(moved)
        field = torch.stack([~down, down], 1).float()[:, :, None, None]
        self.field = field.expand(count, 2, SIZE, SIZE).contiguous()
        self.valid = torch.rand(count, SIZE, SIZE, generator=generator) < 0.7

    def __len__(self):
        return len(self.first)

    def __getitem__(self, index):
        inputs = {"first": self.first[index], "second": self.second[index]}
        return inputs, (self.field[index], self.valid[index])


class MotionTask(tasks.SampleTask):
    unit = "pixels"
    source = "moved noise"
    metrics = (
        tasks.Metric(
            name="rmse",
            figure=lambda sums: (sums["squares"] / sums["units"]).sqrt().item(),
            label="root mean square error",
            spec=".3f",
            unit=" px",
        ),
        tasks.Metric(
            name="downward",
            figure=lambda sums: (
                sums["confusion"].diagonal().sum().item() / sums["confusion"].sum().item()
            ),
            higher_is_better=True,
            scale=100.0,
            spec=".1f",
            unit=" %",
        ),
    )

    def __init__(self):
        super().__init__({"train": Pairs(48, 0), "test": Pairs(16, 1)}, "toy")

    def complete(self, config):
        return config

    def units(self, targets):
        return int(targets[1].sum())

    def loss(self, model, output, targets):
        field, valid = targets
        return (output - field).square().sum(1)[valid].sum()

    def sums(self, model, output, targets):
        field, valid = targets
        asked, found = ((x[:, 1] > x[:, 0])[valid].long() for x in (field, output))
        return {
            "squares": (output - field).square().sum(1)[valid].sum(),
            "confusion": torch.bincount(2 * asked + found, minlength=4).reshape(2, 2),
        }


@dataclass(frozen=True, kw_only=True)
class Motion(tasks.TaskConfig):
    """Where did everything go?"""

    def load(self, data_dir=None):
        return MotionTask()


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.conv.weight.data.mul_(0.3)

    def forward(self, z, u):
        return torch.tanh(self.conv(z) + u)


class MotionModel(EquilibriumModel):
    def __init__(self, width, **layer):
        super().__init__()
        self.stem = nn.Conv2d(2, width, 3, padding=1)
        self.head = nn.Conv2d(width, 2, 3, padding=1)
        self.deq = layers.DEQ(Cell(width), **layer)

    def inject(self, x):
        return (self.stem(torch.cat([x["first"], x["second"]], 1)),)

    def readout(self, z):
        return self.head(z)


@dataclass(frozen=True, kw_only=True)
class MotionConfig(ModelConfig):
    """A field from two images.

    Args:
        width: channels of the state.
    """

    width: int = 8

    def build(self, **layer):
        return MotionModel(self.width, **layer)


RECIPE = {
    "task": {"name": "motion"},
    "model": {"name": "motion-deq", "width": 6},
    "solver": {"name": "Anderson", "rtol": 1e-3, "max_evals": 40},
    "optimizer": {"name": "Adam", "lr": 0.02},
    "epochs": 2,
    "batch_size": 8,
    "accumulate": 2,
    "eval_batch_size": 7,
    "probes": 4,
}


@pytest.fixture
def motion():
    """The task and the model, registered for the time of a test."""
    tasks.register("motion", Motion)
    models.register("motion-deq", MotionConfig)
    yield
    del find("tasks")["motion"], find("models")["motion-deq"]


def test_it_is_trained_evaluated_examined_and_reported(motion, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(memory, "DEPTHS", (2, 4))
    (tmp_path / "motion.yaml").write_text(yaml.safe_dump(RECIPE))
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "motion.yaml"), "--out", str(run)]) == 0
    first, last = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert last["train"]["loss"] < first["train"]["loss"]
    assert last["pixels"] == int(Pairs(48, 0).valid.sum())
    shown = capsys.readouterr().out
    assert f"test root mean square error {last['test']['rmse']:.3f} px" in " ".join(shown.split())
    trained = json.loads((run / "evaluation.json").read_text())
    assert trained["rmse"] == pytest.approx(trained["loss"] ** 0.5)
    assert 0.0 <= trained["downward"] <= 1.0
    assert trained["at"]["12"]["rmse"] == pytest.approx(trained["rmse"], rel=0.05)
    assert main(["evaluate", str(run)]) == 0
    assert json.loads((run / "evaluation.json").read_text()) == trained
    assert f"{trained['rmse']:.3f} px" in capsys.readouterr().out
    assert main(["doctor", str(run), "--samples", "6", "--starts", "1"]) == 0
    examined = json.loads((run / "doctor.json").read_text())["depth"]
    assert examined["metric"]["name"] == "rmse" and examined["figure"] > 0
    assert main(["memory", str(run)]) == 0
    assert main(["report", str(run)]) == 0
    html = (run / "report.html").read_text()
    for text in ("Test root mean square error", "Downward", "pixels per second", "Effect of depth"):
        assert text in html
    assert "ccuracy" not in html and "erplexity" not in html


class Drawn(PictureRecord):
    name: str
    further: int


class Drawings(Stored):
    pictures: list[Drawn]


def draw(task, model, most):
    hanging = Hanging()
    inputs, *_ = task.sample("test", min(2, most))
    for place, (first, field) in enumerate(zip(inputs["first"], model(inputs).output, strict=True)):
        hanging.add(
            {"name": f"noise {place}", "further": place + 1},
            Settling(after=torch.full((SIZE, SIZE), place), evals=7, status=Status.CONVERGED),
            (SIZE, SIZE),
            image=image_png(first, (SIZE, SIZE)),
            field=image_png(field[:1], (SIZE, SIZE)),
        )
    return hanging, {"count": 16, "seen": 2}


GALLERY = GalleryKind(
    hang=draw,
    shape=Drawings,
    describe=lambda content: f"{content['seen']} of {content['count']} pieces of noise.",
    note=lambda picture: [f"{2 * picture['further']} px further"],
    is_wrong=lambda picture: picture["further"] == 2,
    explain_map=lambda content: "Where the noise settles.",
    heads={"field": "where to", "image": "where from", "late": "how late"},
    columns=3,
)


class ShownTask(MotionTask):
    gallery = "motion"


@dataclass(frozen=True, kw_only=True)
class Shown(Motion):
    """Where did everything go, as a report shows it?"""

    def load(self, data_dir=None):
        return ShownTask()

    def has_gallery(self, run):
        return True

    def read_classes(self, run):
        return {"labels": ["right", "down"], "colours": []}


@pytest.fixture
def shown(motion):
    tasks.register("shown", Shown)
    find("galleries")["motion"] = GALLERY
    yield
    del find("tasks")["shown"], find("galleries")["motion"]


def test_a_report_shows_a_gallery_of_its_own(shown, tmp_path):
    recipe = {**RECIPE, "task": {"name": "shown"}, "epochs": 1}
    (tmp_path / "shown.yaml").write_text(yaml.safe_dump(recipe))
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "shown.yaml"), "--out", str(run), "--quiet"]) == 0
    report = ["report", str(run), "--no-doctor", "--quiet"]
    assert main(report) == 0
    html = (run / "report.html").read_text()
    assert html.count("<img ") == 6 and "--columns: 3" in html
    for text in (
        "<p>2 of 16 pieces of noise.</p>",
        "<p>Where the noise settles.</p>",
        "<b>noise 0</b><br>2 px further<br>7 evaluations<",
        '<b>noise 1</b><br><span class="badge unhealthy">4 px further</span>',
        '<li><span class="key blocks" style="--key: #440154"></span>0</li>',
    ):
        assert text in html
    assert html.index("where to") < html.index("where from") < html.index("how late")
    path = run / "gallery" / "gallery.json"
    made = path.read_text()
    assert json.loads(made)["kind"] == "motion"
    # What was kept is shown again; of another shape, or of a kind that is gone, it is made again.
    path.write_text(made.replace("noise 1", "noise 9"))
    assert main(report) == 0 and "noise 9" in (run / "report.html").read_text()
    for old, new in (('"further": 2', '"further": "far"'), ('"motion"', '"gone"')):
        path.write_text(made.replace(old, new))
        assert gallery.read(Folder(run)) is None
        assert main(report) == 0 and path.read_text() == made
    assert (run / "report.html").read_text() == html


def test_a_name_is_registered_once(motion):
    tasks.register("motion", Motion)  # the same again is no mistake
    with pytest.raises(ValueError, match="there is a task 'motion' already"):
        tasks.register("motion", Shown)
    with pytest.raises(ValueError, match="there is a model 'dense' already"):
        models.register("dense", MotionConfig)


@pytest.mark.parametrize("spec", [".3f", ",.0f", "+.2e", ".1%", ""])
def test_a_metric_says_how_it_is_written(spec):
    metric = tasks.Metric(name="rmse", spec=spec)
    assert tasks.Metric.of(metric.describe()).format(1.5) == format(1.5, spec)


@pytest.mark.parametrize("spec", ["9999999d", "{0}", ".3f\n"])
def test_a_format_that_is_none_is_refused_where_it_is_given(spec):
    with pytest.raises(ValueError, match=r"the spec of rmse must be such as \.3f"):
        tasks.Metric(name="rmse", spec=spec)
