"""What a run shows while it trains: a bar on a terminal, lines elsewhere, and the time left."""

import io
import re
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from equilibria.metric import ACCURACY, LOSS
from equilibria.run.loggers import Terminal
from equilibria.run.loop import fit
from equilibria.run.tally import Tally

TASK = SimpleNamespace(
    streams=True,
    unit="tokens",
    primary=ACCURACY,
    loss_metric=LOSS,
    eval_split="valid",
    figures=lambda sums, split="train": {"loss": 1.0, "accuracy": 0.5},
)


class Clock:
    """Time that a test sets."""

    now = 1000.0

    def __call__(self):
        return self.now


def counted():
    tally = Tally()
    tally.add({name: torch.tensor(8.0) for name in ("loss", "units", "accuracy")})
    return tally


@pytest.fixture
def clock():
    return Clock()


def terminal(clock, *, epochs=100, steps=1200, width=80, **options):
    console = Console(
        file=io.StringIO(), width=width, color_system=None, legacy_windows=False, **options
    )
    return Terminal(console, epochs, steps, TASK, clock)


def lines(shown):
    """The lines of the bar as it is now."""
    console = Console(file=io.StringIO(), width=shown.console.width, color_system=None)
    console.print(shown.bar.get_renderable())
    return console.file.getvalue().rstrip("\n").split("\n")


def record(epoch, seconds):
    status = {"CONVERGED": 1.0}
    solve = {"status": status, "evals": {"mean": 12.3}}
    train = {"loss": 1.0, "accuracy": 0.5, "forward": solve, "adjoint": solve}
    valid = {"loss": 1.0, "accuracy": 0.5, "forward": solve}
    return {"epoch": epoch, "seconds": seconds, "tokens": 9, "train": train, "valid": valid}


@pytest.mark.parametrize("width", [80, 60, 200])
def test_the_bar_is_one_line_and_its_figures_another(clock, width):
    shown = terminal(clock, width=width, force_terminal=True)
    shown.step(12, 600, counted(), 300.0)
    bar, figures = lines(shown)
    shown.close()
    assert len(bar) <= width and len(figures) <= width
    assert bar.startswith("epoch 12/100 ") and "600/1200" in bar
    assert bar.rstrip().endswith("5:00 left, run 14:45:00")
    assert len(re.findall("━[━╸╺ ]*", bar)[0]) >= 8
    assert "loss 1.0" in figures and "accuracy 50.00 %" in figures


def test_the_time_left_counts_evaluations_as_long_as_the_last_one(clock):
    shown = terminal(clock, epochs=3, steps=10, force_terminal=True)
    clock.now += 9.0
    shown.step(1, 9, counted(), 9.0)
    assert "0:01 left, run 0:21" in lines(shown)[0]  # nothing is known of evaluations
    clock.now += 1.0 + 30.0
    shown.epoch(record(1, 10.0))
    assert ", 1:20 left\n" in shown.console.file.getvalue()
    clock.now += 5.0
    shown.step(2, 5, counted(), 5.0)
    assert "0:05 left, run 1:15" in lines(shown)[0]
    shown.step(3, 5, counted(), 5.0)
    bar = lines(shown)[0]
    shown.close()
    assert bar.rstrip().endswith("0:05 left")


def test_a_long_epoch_without_a_terminal_says_once_a_minute_where_it_is(clock):
    shown = terminal(clock, epochs=2, steps=1000)
    for step in range(1, 301):
        clock.now += 1.0
        shown.step(1, step, counted(), float(step))
    said = shown.console.file.getvalue().splitlines()
    assert [line.split("  ")[1] for line in said] == [f"step {n}/1000" for n in range(60, 301, 60)]
    assert said[0].startswith("epoch 1/2  step 60/1000  loss 1.0")
    assert said[0].endswith("left: 15:40, run 32:20")


def test_short_epochs_without_a_terminal_have_their_lines_alone(clock):
    shown = terminal(clock, epochs=3, steps=10)
    for epoch in (1, 2, 3):
        for step in range(1, 10):
            clock.now += 5.0
            shown.step(epoch, step, counted(), 5.0 * step)
        clock.now += 5.0
        shown.epoch(record(epoch, 50.0))
    said = shown.console.file.getvalue().splitlines()
    assert [line[:9] for line in said] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert said[0].endswith("1:40 left") and "left" not in said[2]


# --- what a run tells: on the terminal, to TensorBoard, in metrics.jsonl --------------------------


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
