"""What a run tells: on the terminal, to TensorBoard, in metrics.jsonl."""

import io

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from equilibria.run.loop import fit


@pytest.fixture
def finished(make):
    """A run on a terminal of 80 columns: (trainer, folder, what was shown)."""
    trainer, folder = make()
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    fit(trainer, folder, console)
    return trainer, folder, console.file.getvalue()


def test_the_bar_shows_loss_accuracy_evaluations_and_share_converged(finished):
    _, folder, shown = finished
    for word in ("epoch 1/2", "epoch 2/2", "loss", "accuracy", "evals", "converged"):
        assert word in shown
    record = folder.read_metrics()[-1]
    assert f"test accuracy {100 * record['test']['accuracy']:.2f} %" in shown
    assert f"adjoint {record['train']['adjoint']['evals']['mean']:.1f} evals" in shown


def test_tensorboard_gets_every_number_of_every_epoch(finished):
    trainer, folder, _ = finished
    events = EventAccumulator(str(folder.events)).Reload()
    for record in folder.read_metrics():
        at = {e.step: e.value for e in events.Scalars("test/accuracy")}
        assert at[record["step"]] == pytest.approx(record["test"]["accuracy"])
    tags = events.Tags()["scalars"]
    for tag in ("train/loss", "train/forward/evals/p90", "train/adjoint/status/CONVERGED"):
        assert tag in tags
    assert "throughput/units_per_second" in tags
    assert len(events.Scalars("spectral_radius/mean")) == trainer.recipe.epochs
