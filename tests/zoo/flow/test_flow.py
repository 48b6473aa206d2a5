"""`equilibria flow`: two images, frames, videos, benchmarks; and what it says of bad input."""

import csv
import json
import os
import re
import shutil
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from flow_runs import save_frames, save_raft, save_run, scene, settle
from PIL import Image

from equilibria import files
from equilibria.run import run as runs
from equilibria.run.cli.main import main
from equilibria.run.folder import Folder
from equilibria.run.recipe import Recipe
from equilibria.run.weights import save_weights
from equilibria.solve import Anderson, Implicit, Phantom, Status
from equilibria.stability import AdaptiveAdjoint
from equilibria.zoo.flow.data import read_flow
from equilibria.zoo.flow.model.configs import DEQGMAConfig, DEQRAFTConfig, RAFTConfig
from equilibria.zoo.flow.model.weights import _sources
from equilibria.zoo.flow.predict import engine
from equilibria.zoo.io import video
from equilibria.zoo.io.colors import flow_colors
from equilibria.zoo.vision.model.single_scale import DenseConfig
from equilibria.zoo.vision.task.classification import ImageClassification
from flow_tree import MINI


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("run") / "deq")


@pytest.fixture(scope="module")
def raft(tmp_path_factory):
    return save_raft(tmp_path_factory.mktemp("raft") / "raft")


@pytest.fixture
def frames(tmp_path):
    return save_frames(tmp_path / "frames")


def flow(*words, status=0):
    assert main(["flow", *map(str, words)]) == status


def refused(capsys, *words):
    """The message of a command that fails, in one line."""
    flow(*words, status=1)
    error = capsys.readouterr().err
    assert error.startswith("equilibria flow: error: ") and error.count("\n") == 1
    assert "bug" not in error
    return error


def rows(out):
    return [json.loads(line) for line in (out / "flow.jsonl").read_text().splitlines()]


def pixels(path):
    return np.array(Image.open(path)).transpose(2, 0, 1)


def images(frames, *numbers):
    return [frames / f"f{number}.png" for number in numbers]


# --- two images ----------------------------------------------------------------------------------


def test_two_images_give_the_flow_of_the_network(run, frames, tmp_path, capsys):
    out = tmp_path / "pair" / "a.flo"
    flow(run, *images(frames, 0, 1), "--out", out)
    model = runs.load(run, data=False).model
    x = tuple(torch.from_numpy(pixels(path))[None] for path in images(frames, 0, 1))
    with torch.no_grad():
        prediction = model(x)
    found = read_flow(out).flow
    assert torch.allclose(found, prediction.output[0], atol=1e-5)
    row = json.loads(out.with_suffix(".json").read_text())
    assert row["evaluations"] == int(prediction.solution.stats.evals)
    assert row["status"] == "CONVERGED" and row["run"] == str(run)
    # What one more evaluation moves is measured at full size.
    operands = model.inject(x)
    with torch.no_grad():
        after = model.answer(model.deq.cell(prediction.solution.value, *operands), x)
    change = (after - prediction.output).norm(dim=1).square().mean().sqrt()
    assert row["moves"] == pytest.approx(float(change), rel=0.2, abs=2e-6) and row["moves"] > 0
    colors = flow_colors(found.numpy(), row["scale"])
    assert (pixels(out.with_name("a-colours.png")) == colors).all()
    assert pixels(out.with_name("a-convergence.png")).shape == (3, 40, 48)
    said = capsys.readouterr().out
    assert said.index("the correlation (all-pairs) takes 4 kB") < said.index("evaluations, CONV")


@pytest.mark.parametrize("ending", [".pfm", ".png"])
def test_the_ending_decides_the_format(run, frames, tmp_path, ending):
    flow(run, *images(frames, 0, 1), "--out", tmp_path / "a.flo", "--scale", "3")
    flow(run, *images(frames, 0, 1), "--out", tmp_path / f"b{ending}", "--scale", "3")
    first, second = read_flow(tmp_path / "a.flo").flow, read_flow(tmp_path / f"b{ending}").flow
    assert (first - second).abs().max() <= (1 / 128 + 1e-6 if ending == ".png" else 0)
    assert json.loads((tmp_path / "b.json").read_text())["scale"] == 3


def test_a_flow_is_not_replaced_unasked(run, frames, tmp_path, capsys):
    pair = [run, *images(frames, 0, 1), "--out", tmp_path / "a.flo", "--quiet"]
    flow(*pair)
    assert capsys.readouterr().out.strip() == str(tmp_path / "a.flo")
    assert f"{tmp_path / 'a.flo'} exists" in refused(capsys, *pair)
    flow(*pair, "--overwrite")
    onto = [run, *images(frames, 0, 1), "--out", frames / "f0.png", "--overwrite"]
    before = (frames / "f0.png").read_bytes()
    assert "--out would replace an image" in refused(capsys, *onto)
    assert (frames / "f0.png").read_bytes() == before


def test_raft_is_unrolled_unless_a_solver_is_named(raft, frames, tmp_path):
    model = runs.load(raft, data=False).model
    x = tuple(torch.from_numpy(pixels(path))[None] for path in images(frames, 0, 1))
    with torch.no_grad():
        expected = model(x).output[0]
    out = tmp_path / "a.flo"
    flow(raft, *images(frames, 0, 1), "--out", out)
    assert torch.allclose(read_flow(out).flow, expected, atol=1e-5)
    row = json.loads(out.with_suffix(".json").read_text())
    assert row["evaluations"] == 7 and "status" not in row
    solved = tmp_path / "b.flo"
    flow(raft, *images(frames, 0, 1), "--out", solved, "--solver", "anderson", "--rtol", "1e-4")
    row = json.loads(solved.with_suffix(".json").read_text())
    assert row["status"] == "CONVERGED" and row["solver"].startswith("Anderson(rtol=0.0001")
    more = tmp_path / "c.flo"
    flow(raft, *images(frames, 0, 1), "--out", more, "--max-evals", "60")
    assert (read_flow(more).flow - read_flow(solved).flow).abs().max() < 0.02
    assert (expected - read_flow(solved).flow).abs().max() > 0.1


def layout(key, value):
    """The names in RAFT's layout that a tensor has there, and its parts."""
    names = _sources(key, several=True)
    return zip(names, value.chunk(len(names)), strict=True)


def test_released_weights_are_read(tmp_path):
    # Released networks have four levels: images of 128 x 128 and more.
    config = RAFTConfig(**{**MINI, "levels": 4}, context_norm="none")
    model = settle(config.build()).eval()
    parts = {
        f"module.{name}": part
        for key, value in model.state_dict().items()
        for name, part in layout(key, value)
    }
    weights = tmp_path / "raft-things.pth"
    torch.save(parts, weights)
    frames = save_frames(tmp_path / "frames", 2, size=(128, 128))
    out = tmp_path / "a.flo"
    flow(weights, *images(frames, 0, 1), "--out", out)
    x = tuple(torch.from_numpy(pixels(path))[None] for path in images(frames, 0, 1))
    with torch.no_grad():
        expected = replace(config, eval_steps=32).build()
        expected.load_state_dict(model.state_dict())
        expected = expected.eval()(x).output[0]
    assert torch.allclose(read_flow(out).flow, expected, atol=1e-4)
    row = json.loads(out.with_suffix(".json").read_text())
    assert row["evaluations"] == 32 and row["weights"].startswith("sha256:")
    solved = tmp_path / "b.flo"
    flow(weights, *images(frames, 0, 1), "--out", solved, "--solver", "broyden")
    row = json.loads(solved.with_suffix(".json").read_text())
    assert row["status"] == "CONVERGED" and row["evaluations"] < 32
    assert (read_flow(solved).flow - expected).square().sum(0).mean().sqrt() < 0.1


def test_weights_of_something_else_are_refused(frames, tmp_path, capsys):
    wrong = tmp_path / "raft.pth"
    torch.save({"layer.weight": torch.zeros(3)}, wrong)
    assert f"{wrong}: no weights of RAFT" in refused(capsys, wrong, *images(frames, 0, 1))
    wrong.write_bytes(b"junk\n")
    assert "(torch.save has not written it)" in refused(capsys, wrong, *images(frames, 0, 1))
    wrong.write_bytes(b"PK\x03\x04")
    assert f"{wrong} is damaged" in refused(capsys, wrong, *images(frames, 0, 1))


# --- frames --------------------------------------------------------------------------------------


def test_frames_have_flow_colours_of_one_scale_and_rows(run, tmp_path):
    frames = save_frames(tmp_path / "frames", 4, names="frame{}0.png")
    (frames / "frame30.png").rename(frames / "frame100.png")  # natural order: after 20
    out = tmp_path / "out"
    flow(run, frames, "--out", out, "--video", tmp_path / "flow.gif", "--fps", "10")
    found = rows(out)
    names = ["frame00", "frame10", "frame20"]
    assert [row["flow"] for row in found] == [f"flow/{name}.flo" for name in names]
    assert found[2]["second"] == str(frames / "frame100.png")
    assert all(row["status"] == "CONVERGED" and row["milliseconds"] > 0 for row in found)
    with (out / "flow.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["moves"]) for row in table] == [row["moves"] for row in found]
    flows = [read_flow(out / row["flow"]).flow.numpy() for row in found]
    scale = np.percentile(np.concatenate([np.hypot(*each).ravel() for each in flows]), 99)
    for name, each in zip(names, flows, strict=True):
        drawn = pixels(out / "colours" / f"{name}.png").astype(int)
        off = np.abs(drawn - flow_colors(each, scale)).max(0)
        # The scale is within .5 %, and what is longer is darker.
        assert off[np.hypot(*each) < 0.99 * scale].max() <= 4
        assert (out / "convergence" / f"{name}.png").is_file()
    assert (out / "colours" / "legend.png").is_file()
    with Image.open(tmp_path / "flow.gif") as film:
        assert (film.n_frames, film.size, film.info["duration"]) == (3, (48, 40), 100)


def test_reuse_starts_at_the_last_equilibrium_and_notices_a_cut(run, tmp_path, capsys):
    frames = save_frames(tmp_path / "frames", 9, cut=5)
    words = [run, frames, "--max-evals", "100", "--rtol", "1e-5"]
    flow(*words, "--out", tmp_path / "cold")
    capsys.readouterr()
    flow(*words, "--out", tmp_path / "warm", "--reuse", "--compare", "2")
    said = capsys.readouterr().out
    cold, warm = rows(tmp_path / "cold"), rows(tmp_path / "warm")
    starts = [row["start"] for row in warm]
    assert starts == ["zero", "last", "last", "last", "cut", "zero", "last", "last"]
    for one, other in zip(cold, warm, strict=True):
        assert one["status"] == other["status"] == "CONVERGED"
        first, second = (
            read_flow(tmp_path / name / row["flow"]).flow
            for name, row in (("cold", one), ("warm", other))
        )
        assert (first - second).abs().max() < 0.01
        if other["start"] != "last":
            assert one["evaluations"] == other["evaluations"]
    both = [row for row in warm if "evaluations_from_zero" in row]
    assert [row["path"][-6:] for row in both] == ["f1.png", "f3.png", "f7.png"]
    by_path = {row["path"]: row for row in cold}
    for row in both:
        assert row["evaluations_from_zero"] == by_path[row["path"]]["evaluations"]
        assert row["distance_from_zero"] < 0.02
    ours = sum(row["evaluations"] for row in both)
    theirs = sum(row["evaluations_from_zero"] for row in both)
    assert "3 pairs solved from zero too, 3 converged both ways: " in said
    assert f"{ours / 3:.1f} evaluations against {theirs / 3:.1f}" in said
    assert f"({ours / theirs:.2f} x)" in said and "1 cut detected" in said


def test_what_reuse_saved_is_said_as_far_as_it_was_measured(run, tmp_path, capsys):
    cut = save_frames(tmp_path / "cut", 3, cut=2)
    whole = save_frames(tmp_path / "whole", 3)
    words = ["--max-evals", "100", "--rtol", "1e-5", "--reuse"]
    for frames, more, expected in (
        (cut, [], "1 cut detected; no evaluation was saved"),
        (whole, ["--compare", "0"], "the saving was not measured (--compare 10 does"),
        (whole, ["--overwrite"], "1 pair solved from zero too, 1 converged both ways: "),
    ):
        flow(run, frames, *words, *more, "--out", tmp_path / f"{frames.name}-out")
        assert expected in capsys.readouterr().out


def test_frames_at_rest_are_solved_in_one_evaluation(run, tmp_path):
    frames = tmp_path / "still"
    frames.mkdir()
    for k in range(3):
        Image.fromarray(scene(0)).save(frames / f"{k}.png")
    flow(run, frames, "--out", tmp_path / "out", "--reuse", "--compare", "1")
    first, second = rows(tmp_path / "out")
    assert first["evaluations"] > 1 == second["evaluations"]
    assert second["evaluations_from_zero"] == first["evaluations"]


def test_a_deadline_limits_the_evaluations(run, frames, tmp_path, capsys):
    flow(run, frames, "--out", tmp_path / "out", "--deadline", "0.001")
    for row in rows(tmp_path / "out"):
        assert (row["evaluations"], row["allowed"]) == (1, 1)
        assert row["stopped"] and row["late"] and row["status"] == "MAX_EVALS"
    assert "3 of 3 pairs stopped by it, 3 late" in capsys.readouterr().out
    flow(run, frames, "--out", tmp_path / "much", "--deadline", "1e7")
    for row in rows(tmp_path / "much"):
        assert row["status"] == "CONVERGED" and not (row["stopped"] or row["late"])
        assert row["allowed"] == 60  # the solver's own


@pytest.mark.parametrize(
    ("adjoint", "solver"),
    [
        (Phantom(steps=3, damping=0.8), None),
        (Phantom(steps=1, damping=1.0), Anderson(rtol=1e-9, max_evals=6)),  # ends at its budget
        (AdaptiveAdjoint(level=2), Anderson(rtol=1e-2, max_evals=30)),  # by now a phantom gradient
        (Implicit(), None),
    ],
    ids=lambda given: type(given).__name__,
)
def test_it_is_the_output_that_evaluate_judges(adjoint, solver, frames, tmp_path):
    run = save_run(tmp_path / "run", solver=solver, adjoint=adjoint)
    out = tmp_path / "pair.flo"
    flow(run, *images(frames, 0, 1), "--out", out)
    row = json.loads(out.with_suffix(".json").read_text())
    pair = tuple(torch.from_numpy(pixels(each))[None] for each in images(frames, 0, 1))
    with torch.no_grad():
        judged = runs.load(run, data=False).model(pair)
    assert torch.allclose(read_flow(out).flow, judged.output[0], atol=1e-5)
    assert row["evaluations"] == int(judged.solution.stats.evals[0])
    assert row["status"] == Status(int(judged.solution.status[0])).name


def test_a_limit_holds_the_steps_of_a_phantom_gradient_too(frames, tmp_path):
    run = save_run(tmp_path / "phantom", adjoint=Phantom(steps=3, damping=1.0))
    flow(run, frames, "--out", tmp_path / "out", "--max-evals", "4")
    assert [row["evaluations"] for row in rows(tmp_path / "out")] == [4, 4, 4]
    flow(run, frames, "--out", tmp_path / "more", "--max-evals", "9")
    assert all(row["evaluations"] <= 9 for row in rows(tmp_path / "more"))


def test_an_image_that_is_named_twice_is_two_frames(run, frames, tmp_path):
    flow(run, *images(frames, 0, 1, 0, 2), "--out", tmp_path / "out")
    found = rows(tmp_path / "out")
    first = str(frames / "f0.png")
    assert [row["path"] for row in found] == [first, str(frames / "f1.png"), f"{first}:2"]
    assert [row["flow"] for row in found] == ["flow/f0.flo", "flow/f1.flo", "flow/f0-2.flo"]


@pytest.mark.parametrize("status", ["DIVERGED", "NONFINITE", "MAX_EVALS", "STALLED"])
def test_a_solve_that_failed_is_not_what_the_next_begins_at(
    run, frames, tmp_path, monkeypatch, status
):
    estimate = engine.FlowNetwork.estimate

    def failing(network, first, second, *arguments, **options):
        found = estimate(network, first, second, *arguments, **options)
        return replace(found, status=Status[status])

    monkeypatch.setattr(engine.FlowNetwork, "estimate", failing)
    flow(run, frames, "--out", tmp_path / "out", "--reuse")
    assert [row["start"] for row in rows(tmp_path / "out")] == ["zero", "zero", "zero"]


def test_a_frame_that_cannot_be_read_costs_its_two_pairs_alone(run, tmp_path, capsys):
    frames = save_frames(tmp_path / "frames", 6)
    (frames / "f2.png").write_bytes(b"nothing")
    flow(run, frames, "--out", tmp_path / "out", "--reuse")
    found = rows(tmp_path / "out")
    assert [row["result"] for row in found] == ["ok", "error", "error", "ok", "ok"]
    assert all("f2.png is not an image" in row["error"] for row in found[1:3])
    assert [row.get("start") for row in found] == ["zero", None, None, "zero", "last"]
    assert "2 of 5 pairs have no flow" in capsys.readouterr().out


def test_the_same_command_continues_and_another_is_refused(run, frames, tmp_path, capsys):
    out = tmp_path / "out"
    flow(run, frames, "--out", out)
    whole = [(row["path"], row["evaluations"], row["moves"]) for row in rows(out)]
    lines = (out / "flow.jsonl").read_text().splitlines(keepends=True)
    (out / "flow.jsonl").write_text(lines[0] + lines[1] + lines[2][:20])
    (out / "flow" / "f1.flo").unlink()
    (out / "flow" / f".f1.flo.{files.HOST}-4194305.0.tmp").write_bytes(b"half")  # of no process
    flow(run, frames, "--out", out)
    assert len(list((out / "flow").iterdir())) == 3
    assert "1 pairs already have a row" in capsys.readouterr().out
    assert [(row["path"], row["evaluations"], row["moves"]) for row in rows(out)] == whole
    assert "other options" in refused(capsys, run, frames, "--out", out, "--format", "pfm")
    flow(run, frames, "--out", out, "--format", "pfm", "--overwrite")
    assert sorted(path.name for path in (out / "flow").iterdir()) == ["f0.pfm", "f1.pfm", "f2.pfm"]
    flow(run, frames, "--out", out, "--format", "pfm", "--scale", "7")  # pictures alone
    drawn = flow_colors(read_flow(out / "flow" / "f0.pfm").flow.numpy(), 7.0)
    assert (pixels(out / "colours" / "f0.png") == drawn).all()


def test_a_signal_keeps_all_rows(run, frames, tmp_path, monkeypatch):
    written = engine._write_pair
    calls = []

    def once(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return written(*arguments)

    monkeypatch.setattr(engine, "_write_pair", once)
    flow(run, frames, "--out", tmp_path / "out", status=75)
    assert len(rows(tmp_path / "out")) == 2
    flow(run, frames, "--out", tmp_path / "out")
    assert len(rows(tmp_path / "out")) == 3 and len(calls) == 3


# --- videos --------------------------------------------------------------------------------------


def test_an_animation_is_a_video(run, frames, tmp_path, capsys):
    film = tmp_path / "film.gif"
    video.write(film, [pixels(path) for path in images(frames, 0, 1, 2, 3)])
    out = tmp_path / "out"
    flow(run, film, "--out", out)
    assert [row["path"] for row in rows(out)] == [f"{film}:{k}" for k in (1, 2, 3)]
    assert (out / "flow" / "film-000003.flo").is_file()
    flow(run, film, "--out", out)  # nothing left
    assert len(rows(out)) == 3
    before = film.read_bytes()
    error = refused(capsys, run, film, "--out", out, "--video", film)
    assert "--video would replace what is read" in error and film.read_bytes() == before


def test_a_video_says_which_pictures_it_leaves_out(run, tmp_path, capsys):
    frames = save_frames(tmp_path / "frames", 3)
    save_frames(frames, 2, size=(48, 56), names="g{}.png")
    flow(run, frames, "--out", tmp_path / "out", "--video", tmp_path / "v.gif")
    said = " ".join(capsys.readouterr().out.split())
    assert "3 pictures in" in said and "v.gif has the 2 that are as large as the first" in said


def test_other_videos_need_the_extra(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    film = tmp_path / "film.mp4"
    film.write_bytes(b"not looked at")
    error = refused(capsys, run, film, "--out", tmp_path / "out")
    assert f"reading {film} needs the extra 'video'" in error and "ffmpeg -i FILE" in error
    frames = save_frames(tmp_path / "frames", 2)
    words = [run, frames, "--out", tmp_path / "out", "--video"]
    assert "writing v.mp4 needs the extra 'video'" in refused(capsys, *words, "v.mp4")
    assert "written to .gif or .mp4 files; got v.avi" in refused(capsys, *words, "v.avi")


def test_a_video_round_trips_through_the_extra(tmp_path):
    pytest.importorskip("av", exc_type=ImportError)
    film = tmp_path / "film.mp4"
    shown = [scene(0).transpose(2, 0, 1), scene(1).transpose(2, 0, 1)]
    assert video.write(film, shown) == 2
    for one, other in zip(shown, video.read(film), strict=True):
        assert np.abs(other.numpy().astype(int) - one).mean() < 20


# --- benchmarks ----------------------------------------------------------------------------------


def test_the_layout_of_sintel(run, tmp_path, capsys):
    for rendering in ("clean", "final"):
        for name, count in (("ambush", 3), ("cave", 2)):
            folder = tmp_path / "data" / "sintel" / "test" / rendering / name
            save_frames(folder, count + 1, names="frame_{:04}.png")
            (folder / "frame_0000.png").unlink()  # they begin with 1
    out = tmp_path / "out"
    words = [run, "--submit", "sintel", "--data-dir", tmp_path / "data", "--out", out]
    flow(*words, "--reuse")
    expected = ["ambush/frame0001", "ambush/frame0002", "cave/frame0001"]
    files = {str(path.relative_to(out)) for path in out.rglob("*.flo")}
    assert files == {f"{p}/{name}.flo" for p in ("clean", "final") for name in expected}
    assert [row["start"] for row in rows(out)] == ["zero", "last", "zero"] * 2
    assert not (out / "colours").exists()
    words[-1] = tmp_path / "other"
    data = tmp_path / "data" / "sintel" / "test"
    (data / "final" / "cave" / "frame_0002.png").unlink()
    error = refused(capsys, *words)
    assert "cave has a single image frame_*.png: expected two or more" in error
    shutil.rmtree(data / "final")
    assert "the server takes clean and final" in refused(capsys, *words)
    for name in ("ambush", "cave"):
        shutil.rmtree(data / "clean" / name)
    (data / "final").mkdir()
    assert f"{data / 'clean'} has no test images" in refused(capsys, *words)
    assert not words[-1].exists()  # noticed before anything is solved


def test_the_layout_of_kitti(run, tmp_path, capsys, monkeypatch):
    data = tmp_path / "data" / "testing" / "image_2"
    save_frames(data, 2, names="00000{}_10.png")
    save_frames(data, 2, names="00000{}_11.png")
    out = tmp_path / "out"
    words = [run, "--submit", "kitti", "--data-dir", tmp_path / "data", "--out"]
    flow(*words, out)
    assert sorted(path.name for path in (out / "flow").iterdir()) == [
        "000000_10.png",
        "000001_10.png",
    ]
    assert read_flow(out / "flow" / "000001_10.png").size == (40, 48)
    assert "pairs of KITTI are single" in refused(capsys, *words, tmp_path / "o", "--reuse")
    error = refused(capsys, *words, tmp_path / "o", "--format", "flo")
    assert "--submit kitti writes what the server takes" in error
    (data / "000001_11.png").unlink()
    assert "000001_11.png is missing" in refused(capsys, *words, tmp_path / "o")
    assert not (tmp_path / "o").exists()  # noticed before anything is solved
    empty = [*words[:-2], tmp_path / "frames", "--out", tmp_path / "o"]
    (tmp_path / "frames").mkdir()
    error = refused(capsys, *empty)
    assert f"no test images of KITTI 2015 in {tmp_path / 'frames'}" in error
    assert "a folder testing/image_2 there, or in its folder kitti or KITTI" in error
    monkeypatch.delenv("EQUILIBRIA_DATA", raising=False)
    error = refused(capsys, run, "--submit", "kitti", "--out", tmp_path / "o")
    assert "the folder that holds kitti/testing/image_2 with --data-dir" in error


def test_what_a_kitti_file_cannot_hold_is_cut_and_said():
    field, cut = engine.field_of(torch.tensor([[[600.0, 1.0]], [[0.0, -2.0]]]), ".png")
    assert cut == 1 and field.flow[0, 0].tolist() == [pytest.approx(511.98), 1.0]
    assert engine.field_of(torch.full((2, 1, 1), 600.0), ".flo")[1] == 0


# --- bad input -----------------------------------------------------------------------------------


def test_images_that_do_not_fit_are_refused_in_one_line(run, frames, tmp_path, capsys):
    first = frames / "f0.png"
    folder = tmp_path / "bad"
    folder.mkdir()
    image = Image.open(first)
    clear = image.convert("RGBA")
    clear.putpixel((3, 3), (0, 0, 0, 100))
    bad = {
        "cropped.png": (image.crop((0, 0, 40, 40)), "40 x 48 pixels and .* 40 x 40 .*same size"),
        "grey.png": (image.convert("L"), "is grey"),
        "clear.png": (clear, "is transparent in places"),
        "deep.png": (Image.fromarray(np.zeros((40, 48), np.uint16)), "more than 8 bits a channel"),
    }
    for name, (content, expected) in bad.items():
        content.save(folder / name)
        error = refused(capsys, run, first, folder / name, "--out", folder / "a.flo")
        assert name in error
        assert re.search(expected, error), error
    (folder / "text.png").write_text("nothing")
    assert "text.png is not an image" in refused(capsys, run, first, folder / "text.png")
    (folder / "half.png").write_bytes(first.read_bytes()[:120])
    error = refused(capsys, run, first, folder / "half.png", "--out", folder / "a.flo")
    assert "half.png is damaged" in error
    small = save_frames(tmp_path / "small", 2, size=(24, 48))
    error = refused(capsys, run, *images(small, 0, 1))
    assert "f0.png: images of 24 x 48 pixels are too small" in error and "32 x 32 at least" in error


def test_opaque_alpha_palettes_and_jpeg_are_images(run, frames, tmp_path):
    folder = tmp_path / "alike"
    folder.mkdir()
    image = Image.open(frames / "f0.png")
    image.convert("RGBA").save(folder / "0.png")
    image.save(folder / "1.png")
    image.quantize(256).save(folder / "2.png")
    flow(run, folder, "--out", tmp_path / "out")
    found = [read_flow(tmp_path / "out" / row["flow"]).flow for row in rows(tmp_path / "out")]
    assert len(found) == 2 and torch.equal(*found)


def test_what_is_no_pair_is_refused(run, frames, tmp_path, capsys):
    out = ["--out", tmp_path / "out"]
    assert "name two images" in refused(capsys, run)
    assert "is a single image" in refused(capsys, run, frames / "f0.png", *out)
    assert "there is no file or folder" in refused(capsys, run, tmp_path / "none", *out)
    alone = save_frames(tmp_path / "alone", 1)
    assert "has a single image" in refused(capsys, run, alone, *out)
    assert "is a folder: name one folder alone" in refused(capsys, run, frames, frames, *out)
    assert "name a folder for the results" in refused(capsys, run, frames)
    assert "holds the frames" in refused(capsys, run, frames, "--out", frames)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--solver", "newton"], "--solver must be one of Auto"),
        (["--deadline", "0"], "--deadline must be a positive number"),
        (["--scale", "-1"], "--scale must be a positive number"),
        (["--rtol", "-1"], "--rtol must be 0 or more"),
        (["--max-evals", "0"], "--max-evals must be 1 or more"),
        (["--compare", "3"], "--compare says what --reuse saves"),
        (["--fps", "3"], "--fps is of the video"),
        (["--data-dir", "/"], "--data-dir is for --submit"),
        (["--submit", "kitti"], "processes the benchmark's own test images"),
        (["--format", "png"], "the ending of --out decides, for example --out f0.png"),
        (["--reuse"], "two images are one pair"),
        (["--out", "a.txt"], "flow is written to .flo, .pfm, .png files; got a.txt"),
    ],
)
def test_options_that_mean_nothing_are_refused(run, frames, capsys, words, expected):
    assert expected in refused(capsys, run, *images(frames, 0, 1), *words)


def test_networks_that_are_none_are_refused(raft, frames, tmp_path, capsys):
    pair = images(frames, 0, 1)
    assert "there is no run folder and no file" in refused(capsys, tmp_path / "none", *pair)
    recipe = Recipe(task=ImageClassification(), model=DenseConfig(shape=(1, 8, 8), classes=10))
    Folder(tmp_path / "digits").create(recipe)
    error = refused(capsys, tmp_path / "digits", *pair)
    assert "is a run of another kind of network, Dense" in error
    assert "--rtol is for a solver, and RAFT" in refused(capsys, raft, *pair, "--rtol", "1e-3")
    error = refused(capsys, raft, frames, "--reuse", "--out", tmp_path / "out")
    assert "RAFT refines a flow 7 times" in error and "--solver" in error


def test_a_network_whose_flow_is_not_finite_is_said_to_be_so(frames, tmp_path, capsys):
    config = DEQRAFTConfig(**MINI, weight_norm=False)
    run = save_run(tmp_path / "broken", config)
    model = runs.load(run, data=False).model
    for value in model.upsampling.parameters():
        torch.nn.init.constant_(value, float("nan"))
    save_weights(run / "model.safetensors", model)
    assert "the network's flow cannot be used" in refused(capsys, run, *images(frames, 0, 1))
    flow(run, frames, "--out", tmp_path / "out", status=1)
    assert all("the flow is nan" in row["error"] for row in rows(tmp_path / "out"))


def test_the_memory_of_an_attention_is_announced(frames, tmp_path, capsys):
    config = DEQGMAConfig(**MINI, weight_norm=False)
    run = save_run(tmp_path / "gma", config)
    words = [run, *images(frames, 0, 1), "--out", tmp_path / "a.flo"]
    flow(*words, "--correlation", "on-demand", "--max-evals", "2")
    # 5 x 6 features: 30^2 numbers of the attention.
    said = capsys.readouterr().out
    assert "the correlation (on-demand) takes" in said and "the attention 4 kB" in said
