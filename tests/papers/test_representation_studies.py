"""Networks of coordinates: sizes, costs and trainings, on tiny signals."""

import itertools
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from rich.console import Console
from scipy.io import wavfile

from equilibria.run import recipe as recipes
from equilibria.run.models.reuse import Cache
from equilibria.run.studies import pages, runner
from equilibria.run.studies.measures import timing
from equilibria.run.studies.results import Data
from equilibria.run.studies.training import Store
from equilibria.zoo.signal.model import configs
from papers.representation import (
    common,
    cost,
    film,
    generalisation,
    gradients,
    image,
    reuse,
    shape,
    sizes,
    sound,
)

SHORT = ["--epochs", "2", "--epoch_steps", "2", "--probes", "4"]


def cells(view: Any, data: Any) -> list[dict[str, Any]]:
    grid = view.render(data)
    return [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]


@pytest.fixture
def run(monkeypatch, tmp_path, unsaved):
    """Runs a study on tiny signals and networks: run(study, keep) -> its rows."""
    values = np.random.default_rng(0).integers(0, 255, (16, 16), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "image.png")
    wave = np.sin(np.arange(60) / 5) * 20_000
    wavfile.write(tmp_path / "sound.wav", 1_000, wave.astype(np.int16))
    frames = tmp_path / "film"
    frames.mkdir()
    for number in range(3):
        Image.fromarray(np.roll(values, number, 1)).save(frames / f"{number}.png")
    own = ["--task.signal", "null", "--task.data"]
    tiny = {
        "image": [*own, str(tmp_path / "image.png"), "--task.size", "16"],
        "sound": [*own, str(tmp_path / "sound.wav"), "--task.rate", "1000"],
        "film": [*own, str(frames), "--task.size", "12", "--task.frames", "3"],
        "shape": ["--task.test", "50", "--batch_size", "40"],
    }
    tiny["sound"] += ["--task.seconds", "null"]
    load = recipes.load

    def loaded(name, words=()):
        width = ["--model.width", "8"] if "--model.width" in words else []
        more = ["--batch_size", "64"] if name == "film" else []
        return load(name, [*words, *width, *tiny[name], *more, *SHORT])

    monkeypatch.setattr(common.recipes, "load", loaded)
    monkeypatch.setattr(timing, "ROUNDS", 1)
    store = Store(tmp_path / "runs", Console(quiet=True))

    def execute(study, keep=lambda point: True):
        path = tmp_path / "rows.csv"
        done = runner.execute(study, path=path, store=store, console=store.console, only=keep)
        assert not done.failed, done.missing
        found = runner.collect(study, path)
        pages.picture(pages.render(study, found), tmp_path / "figure.svg")
        return found

    yield execute
    generalisation._recipe.cache_clear()


@pytest.mark.parametrize("filters", common.FILTERS)
def test_an_explicit_network_has_the_parts_of_the_implicit_one_and_no_solver(filters):
    implicit, explicit = (
        common.recipe("image", filters, f"{kind} 2L-16D", "--task.size", "32")
        for kind in ("implicit", "explicit")
    )
    assert implicit.reuse and implicit.solver is not None
    assert not explicit.reuse and explicit.solver is explicit.adjoint is None
    for each in (implicit, explicit):
        assert isinstance(each.model, configs.LayeredConfig)
        assert (each.model.layers, each.model.width) == (2, 16)
        assert getattr(each.model, "filter", "sines") == filters.lower()
    assert implicit.model.bound == 0.97 and explicit.model.bound is None


def test_sizes_are_those_of_the_thesis():
    expected = {"1L-256D": 67_585, "1L-512D": 266_241, "4L-256D": 267_265}
    more = {"1L-256D": 1_536, "1L-512D": 3_072, "4L-256D": 3_840}
    seen = set()
    for point in sizes.STUDY.points("cpu"):
        filters, network = (str(point.factors[name]) for name in ("filters", "network"))
        name = network.removeprefix("implicit ")
        count = expected[name] + (more[name] if filters == "Gabor" else 0)
        context: Any = SimpleNamespace(factors=point.factors)
        assert sizes.size(context) == {"parameters": count, "explicit": count}
        seen.add((filters, name))
    assert seen == set(itertools.product(common.FILTERS, expected))


def test_the_table_of_sizes_has_a_column_for_each_kind_of_filters(run):
    rows = cells(sizes.STUDY.views[0], run(sizes.STUDY))
    assert [row["network"] for row in rows] == list(sizes.NETWORKS)
    for row in rows:  # all are 8 wide here
        assert row["Fourier"] == row["Fourier, explicit"] == row["sines"] < row["Gabor"]


def test_networks_are_trained_on_an_image_with_a_bound_and_without(run):
    first = {"pixels": 64, "seed": 0, "filters": "Fourier"}
    names = "implicit 1L-256D", "explicit 4L-64D"

    def kept(point):
        return first.items() <= dict(point.factors).items() and point.factors["network"] in names

    data = run(image.STUDY, kept)
    rows = [row for row in cells(image.STUDY.views[0], data) if row["PSNR, dB"]]
    kinds = [(row["network"][:8], row["bound on the norms"]) for row in rows]
    both = [("explicit", "none"), ("explicit", ".97")]
    assert kinds == [("implicit", ".97"), *both]
    assert len([r for r in cells(image.STUDY.views[2], data) if r["PSNR, dB"]]) == 3
    clipped = {
        (n, b): p
        for n, b, p in zip(*(data.points[c] for c in ("network", "bound", "psnr")), strict=True)
    }
    assert clipped["explicit 4L-64D", "none"] != clipped["explicit 4L-64D", ".97"]


def test_the_released_scale_is_half(run):
    points = [p for p in image.STUDY.points("cpu") if p.factors["scale"] == image.RELEASED]
    assert {p.factors["pixels"] for p in points} == {64}
    for filters, scale, value in (
        ("Fourier", image.WHOLE, 128), ("sines", image.WHOLE, 64), ("Fourier", image.RELEASED, 64)
    ):  # fmt: skip
        factors = {"pixels": 128, "filters": filters, "network": "explicit 1L-8D"}
        point = image.point({**factors, "bound": "none", "seed": 0, "scale": scale}, "cpu")
        assert point.runs["run"].recipe.model.scale == value


def test_steps_are_timed_and_their_memory_counted(run, monkeypatch):
    names = itertools.count()  # all are 8 wide
    monkeypatch.setattr(cost, "_name", lambda each: str(next(names)))
    data = run(cost.STUDY)
    rows = cells(cost.STUDY.views[0], data)
    assert len(rows) == 12
    for place, row in enumerate(rows):
        assert row["step, ms"] > 0
        kept = 4 * 8 * 256 + 256 if place % 4 < 2 else 0  # float32 states, and which are known
        assert row["kept states, MiB"] * cost.MIB == kept
        assert row["memory, MiB"] * cost.MIB > kept


def test_the_states_of_before_are_held_while_memory_is_counted(monkeypatch):
    """Where memory is counted by what is allocated in all, what steps free would be deducted."""
    cache = Cache(3)
    cache.write(torch.ones(3, 2))

    def step():
        cache.write(cache.read() + 1)

    def peak(twice, device):
        before = weakref.ref(cache.read())
        twice()
        return before() is not None

    monkeypatch.setattr(cost.memory, "peak_bytes", peak)
    trainer: Any = SimpleNamespace(
        train_step=step, reuse=SimpleNamespace(cache=cache), accelerator=SimpleNamespace(device="")
    )
    assert cost.bytes_of_steps(trainer)
    assert cache.read().eq(3).all()


def test_kept_states_are_counted_from_and_zero_too(run, monkeypatch):
    monkeypatch.setattr(reuse, "EARLY", 2)
    data = run(reuse.STUDY)
    found = data.series("kept")
    assert found["step"].tolist() == 3 * [2, 4]
    assert (found["zero"] >= 2).all() and (found["kept"] <= found["zero"]).all()
    row = cells(reuse.STUDY.views[0], data)[0]
    late = found[(found["filters"] == "Fourier") & (found["step"] == 4)]
    assert row["from zero: median"] == late["zero"].iloc[0]


def test_evaluations_are_counted_until_all_points_together_are_there():
    """f = z / 2 + x: evaluation n from 0 gives (2 - 2^(1 - n)) x, a step of 2^(1 - n) x."""

    class Half(torch.nn.Module):
        def forward(self, z, x):
            return z / 2 + x

    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.deq = type("Layer", (), {"cell": Half()})()

    probe, x = common.Warmth(), torch.ones(3, 2)
    count = probe._together(Tiny(), torch.zeros(3, 2), (x,))
    assert count == 7  # 2^-6 <= .01 (2 - 2^-6) for the first time
    assert probe._together(Tiny(), 2 * x, (x,)) == 1
    assert common.Warmth(most=5)._together(Tiny(), torch.zeros(3, 2), (x,)) == 5


def test_gradients_close_a_share_of_the_gap(run, monkeypatch):
    data = run(gradients.STUDY, lambda point: point.factors["seed"] == 0)
    rows = {row["gradient"]: row for row in cells(gradients.STUDY.views[0], data)}
    assert rows["T = 0"]["of the gap closed, %"] == 0
    assert rows[gradients.EXACT]["of the gap closed, %"] == pytest.approx(100)
    recipe = gradients.point("T = 1", 0, "cpu").runs["run"].recipe
    assert (recipe.adjoint.steps, recipe.adjoint.damping) == (2, 1.0)


def test_the_gap_is_that_of_the_seeds_that_have_both_ends():
    psnr = {"T = 0": (10, 20, 30), "T = 1": (13, 24, 31), gradients.EXACT: (14, 26)}
    factors = [
        {"gradient": name, "seed": seed} for name, each in psnr.items() for seed in range(len(each))
    ]
    figures = [value for each in psnr.values() for value in each]
    rows = [
        {**each, "psnr": value, "seconds": 60.0}
        for each, value in zip(factors, figures, strict=True)
    ]
    found = {row[0]: row for row in gradients._rows(Data.of(pd.DataFrame(rows), factors))}
    # (3 + 4) of 4 + 6
    assert [found[name][4] for name in psnr] == [0, pytest.approx(70), 100]
    assert found["T = 0"][1:3] == [3, 20]


def test_networks_are_compared_image_by_image(run, monkeypatch):
    generalisation._recipe.cache_clear()  # the real ones may be kept
    for name, kept in (("FILTERS", ("Fourier",)), ("NAMES", ("cat",)), ("TEXTS", ("text-1",))):
        monkeypatch.setattr(generalisation, name, kept)
    data = run(generalisation.STUDY)
    rows = cells(generalisation.STUDY.views[0], data)
    assert len(rows) == (5 + 2) * 2 and all(row["PSNR, dB"] for row in rows)
    assert data.points["points"].eq(64).all()  # a quarter of 16 x 16
    differences = cells(generalisation.STUDY.views[1], data)
    assert [row["scale"] for row in differences] == 2 * ["n/4", "n/2", generalisation.BETTER]
    published = cells(generalisation.STUDY.views[2], data)
    assert list(published[1].values())[:4] == ["Fourier-iMFN", 24.88, 25.19, 24.52]


def test_each_network_is_compared_at_its_better_scale():
    first, second = "implicit 1L-128D", "explicit 4L-64D"
    psnr = {(first, "n/4"): (20, 22), (first, "n/2"): (21, 23)}
    psnr |= {(second, "n/4"): (20.5, 22), (second, "n/2"): (18, 19)}
    factors, figures = [], []
    for (network, scale), both in psnr.items():
        for name, value in zip(("a", "b"), both, strict=True):
            factors.append({"scale": scale, "filters": "Fourier", "network": network})
            factors[-1] |= {"data": "photographs", "image": name}
            figures.append({**factors[-1], "psnr": value})
    rows = list(generalisation._rows(Data.of(pd.DataFrame(figures), factors)))
    assert [row[2:4] for row in rows] == [
        ["n/4", -0.25], ["n/2", 3.5], [generalisation.BETTER, 0.75]
    ]  # fmt: skip
    assert rows[2][5] == "2 of 2"
    # Of what has been measured of one scale alone, that scale is shown; and images that both have.
    early = [i for i, each in enumerate(factors) if each["scale"] == "n/4"][:3]
    known = pd.DataFrame([figures[i] for i in early])
    rows = list(generalisation._rows(Data.of(known, [factors[i] for i in early])))
    assert [row[2:4] + row[5:] for row in rows] == [["n/4", -0.5, "0 of 1"]]


@pytest.mark.parametrize("study", [sound, film, shape])
def test_other_signals(study, run):
    """Of filters and networks, each of either."""
    first = [point.factors for point in study.STUDY.points("cpu") if point.factors["seed"] == 0]
    some = first if study is shape else first[:: len(common.FILTERS) + 1]
    data = run(study.STUDY, lambda point: point.factors in some)
    assert {each.get("filters") for each in some} == {each.get("filters") for each in first}
    assert {each["network"] for each in some} == {each["network"] for each in first}
    rows = [row for row in cells(study.STUDY.views[0], data) if row.get("seeds")]
    assert len(rows) == data.points["done"].sum() == len(some) == 3
    for row in rows:
        assert (row["evaluations"] is None) == row["network"].startswith("explicit")


@pytest.mark.parametrize(
    "study", [image, cost, reuse, gradients, generalisation, sound, film, shape]
)
def test_a_gpu_has_networks_of_the_published_width(study):
    for point in study.STUDY.points("gpu"):
        assert point.runs or point.reads
    widths = {
        each.recipe.model.width for p in study.STUDY.points("gpu") for each in p.runs.values()
    }
    assert not widths or max(widths) >= 512
