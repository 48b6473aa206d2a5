"""The run folder: what is in it, and what it refuses."""

import json

import pytest
import torch

from equilibria.run import run
from equilibria.run.checkpoint import CheckpointError
from equilibria.run.loop import fit
from equilibria.run.run import Folder, RunError
from equilibria.run.start import TrainingError


@pytest.fixture
def finished(make, whole):
    """A finished run, with a trainer that has its weights."""
    weights, folder = whole
    trainer, _ = make("whole", "--checkpoint.every", "3", new=False)
    trainer.model.load_state_dict(weights)
    return trainer, folder


def test_a_run_leaves_everything_that_is_needed_to_judge_it(finished):
    trainer, folder = finished
    info = json.loads(folder.info.read_text())
    assert info["versions"]["torch"] == torch.__version__
    assert info["parameters"] == sum(p.numel() for p in trainer.model.parameters())
    assert any(folder.events.iterdir())
    assert [record["epoch"] for record in folder.read_metrics()] == [1, 2]
    record = folder.read_metrics()[-1]
    for part in (record["train"]["forward"], record["train"]["adjoint"], record["test"]["forward"]):
        assert set(part["evals"]) == {"mean", "p50", "p90", "p99", "max"}
        assert sum(part["status"].values()) == pytest.approx(1.0)
    assert 0.0 < record["spectral_radius"]["mean"] <= record["spectral_radius"]["max"] < 1.0
    assert record["train"]["loss"] < folder.read_metrics()[0]["train"]["loss"]
    evaluation = json.loads(folder.evaluation.read_text())
    assert evaluation["accuracy"] == record["test"]["accuracy"]
    assert list(evaluation["at"]) == ["1", "2", "3", "5", "8", "12"]
    assert evaluation["samples"] == len(trainer.task.samples["test"])


def test_a_run_is_read_back(finished):
    trainer, folder = finished
    loaded = run.load(folder.path)
    assert loaded.recipe == trainer.recipe
    assert not loaded.model.training
    inputs, _ = loaded.data.samples["test"][:5]
    expected = trainer.model.eval()(inputs).output
    assert torch.equal(loaded.model(inputs).output, expected)
    assert loaded.metrics == folder.read_metrics()


def test_a_run_is_read_without_its_data(finished):
    loaded = run.load(finished[1].path, data=False)
    assert loaded.task is None
    with pytest.raises(RunError, match="without its data"):
        _ = loaded.data


def test_a_folder_with_other_things_is_not_taken(make, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="mine exists and is not a run"):
        make("mine")


def test_an_empty_folder_is_taken(make, tmp_path):
    (tmp_path / "empty").mkdir()
    assert make("empty")[1].recipe.is_file()


def test_what_is_no_run_cannot_be_loaded(tmp_path):
    with pytest.raises(RunError, match="there is no run folder"):
        run.load(tmp_path / "nowhere")
    with pytest.raises(RunError, match="is not a run folder"):
        run.load(tmp_path)


@pytest.mark.parametrize("damage", [None, b"", b"x" * 100])
def test_damaged_weights_are_one_clear_error(whole, damage):
    _, folder = whole
    if damage is None:
        folder.weights.unlink()
    else:
        folder.weights.write_bytes(damage)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        run.load(folder.path)


def test_a_line_of_metrics_that_a_crash_cut_off_is_left_out(whole):
    folder = Folder(whole[1].path)
    folder.metrics.write_text(folder.metrics.read_text() + '{"epoch": 3, "st')
    assert len(folder.read_metrics()) == 2


def test_a_loss_that_is_not_finite_stops_the_run(make, quiet):
    trainer, folder = make()
    with torch.no_grad():
        trainer.model.head.bias.fill_(float("nan"))
    with pytest.raises(TrainingError, match="the loss is nan at step 1"):
        fit(trainer, folder, quiet)


def test_a_model_that_does_not_fit_the_images_is_refused(make):
    with pytest.raises(ValueError, match=r"model.shape is \(1, 28, 28\), and .* has \(1, 8, 8\)"):
        make("run", "--model.shape", "[1, 28, 28]")


def test_another_seed_is_another_run(make):
    one, other = (make(f"run{seed}", "--seed", str(seed))[0] for seed in (0, 1))
    assert not torch.equal(one.model.head.weight, other.model.head.weight)
    assert not torch.equal(one.batch().targets, other.batch().targets)


def test_an_epoch_takes_each_sample_once(make):
    trainer, _ = make()
    seen = []
    samples = {image.numpy().tobytes() for image in trainer.task.samples["train"].inputs}
    for step in range(trainer.steps_per_epoch):
        trainer.step = step
        seen += [image.numpy().tobytes() for image in trainer.batch().inputs]
    assert len(seen) == 256 * trainer.steps_per_epoch
    assert len(set(seen)) >= len(seen) - (len(trainer.task.samples["train"]) - len(samples))
    trainer.step += 1
    assert [image.numpy().tobytes() for image in trainer.batch().inputs] != seen[:256]


def test_a_gradient_that_is_not_finite_stops_before_it_ruins_the_weights(
    make, quiet, whole, monkeypatch
):
    folder = whole[1]
    saved = folder.weights.read_bytes()
    trainer, other = make("second")
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}

    def poisoned(loss):
        loss.backward()
        next(trainer.model.parameters()).grad.fill_(float("nan"))

    monkeypatch.setattr(trainer.accelerator, "backward", poisoned)
    with pytest.raises(TrainingError, match="gradient is not finite at step 1"):
        fit(trainer, other, quiet)
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())
    assert not other.weights.exists() and folder.weights.read_bytes() == saved


def test_fp16_on_a_cpu_is_refused(make):
    with pytest.raises(TrainingError, match="fp16 needs a GPU"):
        make("half", "--precision", "fp16")


@pytest.mark.parametrize("content", [b"epochs: [1", b"\xff\xfe\x00"])
def test_a_damaged_recipe_of_a_run_is_named(whole, content):
    _, folder = whole
    folder.recipe.write_bytes(content)
    with pytest.raises(RunError, match=r"recipe\.yaml is damaged"):
        folder.read_recipe()


def test_a_run_that_does_not_converge_says_so_at_its_end(make, capsys):
    from rich.console import Console

    trainer, folder = make(
        "short", "--solver.max_evals", "2", "--epochs", "1", "--epoch_steps", "1"
    )
    fit(trainer, folder, Console())
    said = " ".join(capsys.readouterr().out.split())
    assert "Not all test samples converged: 100 % MAX_EVALS" in said
