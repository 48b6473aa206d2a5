"""Test images of a run with what its network makes of them, and where it settles late."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from equilibria.run import gallery, run
from equilibria.run.cli.main import main
from equilibria.run.gallery.kind import count_to_settle, measure_settling
from equilibria.run.models import Model, Prediction
from equilibria.run.pictures import image_png, make_colors, numbers_png, size_to_look_at
from equilibria.solve import Anderson, Picard, Status
from equilibria.zoo.vision.data.segmentation import MaskedImages
from equilibria.zoo.vision.data.segmentation.masks import Kept
from equilibria.zoo.vision.model.mdeq import MDEQConfig
from equilibria.zoo.vision.model.single_scale import DenseConfig
from equilibria.zoo.vision.task.segmentation import SegmentationTask

CONV = {
    "task": {"name": "image_classification", "data": "digits", "normalize": True},
    "model": {"name": "conv", "shape": [1, 8, 8], "channels": 8, "stride": 2},
    "solver": {"name": "Picard", "rtol": 0.01, "max_evals": 40},
    "optimizer": {"name": "AdamW", "lr": 0.01},
    "epochs": 1,
    "batch_size": 64,
    "probes": 4,
}


# --- where places settle --------------------------------------------------------------------------


def test_a_place_is_settled_from_where_it_stays_near():
    value = torch.ones(1, 2, 1, 4)  # of root mean square 1
    errors = torch.tensor(
        [
            [9.0, 9.0, 0.05, 9.0],  # before any evaluation
            [9.0, 0.05, 9.0, 9.0],
            [0.05, 9.0, 0.05, 9.0],
            [0.05, 0.05, 0.05, 9.0],
        ]
    )
    states = [value + row.view(1, 1, 1, 4) for row in errors]
    after = count_to_settle(states, value, range(4), 7, rtol=0.1)
    assert after.tolist() == [[[2, 3, 2, 7]]]
    scaled = count_to_settle([8 * z for z in states], 8 * value, range(4), 7, rtol=0.1)
    assert torch.equal(scaled, after)
    assert count_to_settle(states[1::2], value, [1, 3], 7, rtol=0.1).tolist() == [[[3, 1, 3, 7]]]


def test_samples_and_channels_do_not_mix():
    value = torch.tensor([1.0, 100.0]).view(2, 1, 1, 1).expand(2, 4, 1, 2)
    state = value.clone()
    state[:, 0, 0, 0] += 1.0  # half of it in the root mean square over four channels
    assert count_to_settle([state], value, [0], 3, rtol=0.4).tolist() == [[[3, 0]], [[0, 0]]]
    assert count_to_settle([state], value, [0], 3, rtol=0.6).tolist() == [[[0, 0]], [[0, 0]]]


def multiscale(**layer):
    """Without norms and with small kernels, so that plain iteration converges."""
    torch.manual_seed(0)
    config = MDEQConfig(
        shape=(3, 8, 8),
        classes=3,
        channels=(4, 8),
        head_channels=(2, 3),
        final=6,
        expansion=2,
        groups=2,
        norm="none",
        initial=0.1,
        weight_norm=False,
    )
    return config.build(**layer).eval()


def test_the_highest_resolution_of_a_multiscale_network_is_mapped():
    model = multiscale(solver=Picard(rtol=1e-2, max_evals=200))
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    found = measure_settling(model, image, 1e-2)
    assert found is not None and found.status is Status.CONVERGED
    assert found.after is not None
    assert tuple(found.after.shape) == model.config.sizes(8, 8)[0]
    assert 0 < int(found.after.max()) <= found.evals
    # From then on every place is near, and one evaluation before not all are.
    last = int(found.after.max())
    solution = model(image, states=range(found.evals)).solution
    value = solution.value[0]
    limit = 1e-2 * value.square().mean().sqrt()
    far = [(z[0] - value).square().mean(1).sqrt().max() > limit for z in solution.states]
    assert not any(far[last:]) and far[last - 1]


def test_without_z_star_or_places_there_is_no_map():
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    stopped = measure_settling(multiscale(solver=Anderson(rtol=1e-9, max_evals=3)), image, 1e-9)
    assert stopped is not None and stopped.after is None
    assert (stopped.status, stopped.evals) == (Status.MAX_EVALS, 3)
    flat = DenseConfig(shape=(3, 8, 8), classes=3, width=8).build().eval()
    assert measure_settling(flat, image, 1e-3) is None
    assert measure_settling(Sure(), image, 1e-3) is None


# --- pictures -------------------------------------------------------------------------------------


def test_small_images_are_enlarged_and_large_ones_reduced():
    assert size_to_look_at(8, 8) == (120, 120)
    assert size_to_look_at(28, 28) == (140, 140)
    assert size_to_look_at(120, 160) == (120, 160)
    assert size_to_look_at(360, 480) == (180, 240)
    assert size_to_look_at(10, 720) == (5, 360)
    assert size_to_look_at(2, 100) == (6, 300)


def test_a_page_of_pictures_stays_small():
    noise = torch.rand(3, 720, 960, generator=torch.Generator().manual_seed(0))
    assert len(image_png(noise, size_to_look_at(720, 960))) < 150_000


def test_pixels_stay_squares_and_numbers_stay_numbers():
    image = torch.tensor([[[0.0, 1.0], [2.0, -1.0]]])
    shown = np.asarray(Image.open(io.BytesIO(image_png(image, (4, 6)))))
    assert shown.shape == (4, 6)
    assert shown[0].tolist() == [0, 0, 0, 255, 255, 255] and shown[3, 0] == 255
    content = numbers_png(torch.tensor([[0, 2], [1, 255]]), make_colors(3), (4, 4))
    found = Image.open(io.BytesIO(content))
    assert np.asarray(found)[::2, ::2].tolist() == [[0, 2], [1, 3]]
    rgba = np.asarray(found.convert("RGBA"))
    assert rgba[0, 0].tolist() == [68, 1, 84, 255]
    assert rgba[0, 3].tolist() == [253, 231, 37, 255]
    assert rgba[3, 3, 3] == 0  # void


# --- a classifier ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("gallery")
    (place / "conv.yaml").write_text(json.dumps(CONV))
    assert main(["train", str(place / "conv.yaml"), "--out", str(place / "run")]) == 0
    return place / "run"


@pytest.mark.usefixtures("unsaved")
def test_the_report_shows_mistakes_and_maps_and_keeps_them(trained, monkeypatch, capsys):
    report = ["report", str(trained), "--no-doctor"]
    assert main([*report, "--no-gallery"]) == 0
    assert "--no-gallery skipped it" in (trained / "report.html").read_text()
    assert not (trained / "gallery").exists()
    capsys.readouterr()
    assert main(report) == 0
    assert "looks at test images first" in capsys.readouterr().out.replace("\n", " ")
    html = (trained / "report.html").read_text()
    assert html.count("<img ") == 12 and "Confusion matrix" in html
    content = json.loads((trained / "gallery" / "gallery.json").read_text())
    mistaken = [each["told"][0][0] != each["truth"] for each in content["pictures"]]
    assert mistaken == [True, True, True, False, False, False]
    assert content["seen"] <= content["count"] == 450 and content["wrong"] >= 3
    with Image.open(trained / "gallery" / "0-image.png") as image:
        assert image.size == (120, 120)
        assert len(set(np.asarray(image).flatten().tolist())) <= 17  # digits have 17 greys
    with Image.open(trained / "gallery" / "0-late.png") as late:
        numbers = np.asarray(late) + content["scale"]["low"]
    assert int(numbers.max()) <= content["scale"]["high"]
    monkeypatch.setattr(gallery, "hang", lambda _: pytest.fail("it was made before"))
    assert main(report) == 0
    assert (trained / "report.html").read_text() == html


def test_a_gallery_of_other_weights_or_a_damaged_one_is_made_again(trained):
    folder = run.Folder(trained)
    made = gallery.hang(run.load(trained))
    kept = gallery.read(folder)
    assert made is not None and kept is not None
    assert kept["pictures"] == made["pictures"]
    file = trained / "gallery" / "gallery.json"
    for change in ({"weights": "0"}, {"data": "sha256:0"}, {"version": 0}, {"pictures": None}):
        text = file.read_text()
        file.write_text(json.dumps({**json.loads(text), **change}))
        assert gallery.read(folder) is None
        file.write_text(text)
    info = folder.info.read_text()
    folder.info.unlink()
    assert gallery.read(folder) is None
    folder.info.write_text(info)
    (trained / "gallery" / "0-image.png").unlink()
    assert gallery.read(folder) is None


@pytest.mark.usefixtures("unsaved")
def test_without_its_data_a_run_is_reported_without_images(trained, monkeypatch):
    def load(*_, **__):
        raise run.RunError("the images are gone")

    monkeypatch.setattr(run, "load", load)
    monkeypatch.setattr(gallery, "read", lambda _: None)
    assert main(["report", str(trained), "--no-doctor"]) == 0
    assert "No test images are shown: the images are gone." in (trained / "report.html").read_text()


# --- segmentation ---------------------------------------------------------------------------------


class Sure(Model):
    """Tells class 1 where the first channel is bright, at half the resolution."""

    def forward(self, x, *, carry=None):
        bright = torch.nn.functional.avg_pool2d(x[:, :1], 2)
        return Prediction(torch.cat([0.5 - bright, bright - 0.5], 1), ())


def halves(count=9):
    images = torch.zeros(count, 3, 6, 8, dtype=torch.uint8)
    images[..., 4:] = 255
    masks = (images[:, 0] > 0).to(torch.uint8)
    masks[:, 0] = 255
    masks[:, 1, 0] = 1  # a mistake
    names = [f"scene {k}" for k in range(count)]
    kept = Kept(images, masks)
    sizes = [(6, 8)] * count
    return MaskedImages(names=names, sizes=sizes, channels=3, source=kept, places=range(count))


def scenes(model, folder, **images):
    task = object.__new__(SegmentationTask)
    task.images, task.statistics, task.numbers = images, None, None
    task.labels, task.colors, task.classes = ("left", "right"), ((0, 0, 128), (128, 0, 0)), 2
    task.checksum = "sha256:1"
    recipe: object = SimpleNamespace(eval_batch_size=4)
    return run.Run(folder, recipe, model, task, [])


def test_masks_are_drawn_in_the_colours_of_their_classes(tmp_path):
    content = gallery.hang(scenes(Sure(), tmp_path, test=halves()))
    assert content is not None
    assert [each["name"] for each in content["pictures"]] == [f"scene {k}" for k in (1, 3, 5, 7)]
    assert content["classes"] == [["left", "#000080"], ["right", "#800000"]]
    assert content["scale"] is None and content["rtol"] == 0.0
    first = content["pictures"][0]
    assert first["right"] == pytest.approx(39 / 40) and first["solve"] is None
    shown = {
        what: np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))
        for what, png in first["files"].items()
    }
    assert set(shown) == {"image", "truth", "told"}
    assert {each.shape for each in shown.values()} == {(120, 160, 4)}
    assert shown["truth"][0, 0, 3] == 0  # void is left empty
    assert shown["truth"][30, 0].tolist() == [128, 0, 0, 255]
    assert shown["told"][30, 0].tolist() == [0, 0, 128, 255]
    assert shown["told"][0, 159].tolist() == [128, 0, 0, 255]
    assert (tmp_path / "gallery" / "3-told.png").is_file()


def test_few_images_are_shown_once_each(tmp_path):
    content = gallery.hang(scenes(Sure(), tmp_path, test=halves(2)))
    assert content is not None
    assert [each["name"] for each in content["pictures"]] == ["scene 0", "scene 1"]


def test_a_network_that_tells_no_masks_has_no_gallery(tmp_path):
    class Presence(Model):
        def forward(self, x, *, carry=None):
            return Prediction({"presence": x.mean((2, 3))[:, :2]}, ())

    assert gallery.hang(scenes(Presence(), tmp_path, test=halves())) is None
    assert not (tmp_path / "gallery").exists()
