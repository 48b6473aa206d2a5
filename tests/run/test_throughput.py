"""The record of an epoch's speed: what it counts, and what processes wait for."""

import io
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from equilibria.run import loggers
from equilibria.run.loop import fit
from equilibria.run.tally import Tally, imbalance, throughput
from equilibria.solve import Status


def tally(*work, evals=()):
    found = Tally(work=list(work))
    found.add({"loss": torch.tensor(1.0), "units": torch.tensor(40)})
    found.forward.evals.update(evals)
    return found


@pytest.mark.parametrize(
    ("works", "accumulate", "expected"),
    [
        ([[4, 6, 8]], 1, (6, 6, 0)),
        ([[4, 4], [4, 4]], 1, (4, 4, 0)),
        ([[5, 5], [50, 50]], 1, (27.5, 50, 0.45)),
        ([[5, 50], [50, 5]], 1, (27.5, 50, 0.45)),  # each is the slower once: both wait
        ([[5, 50], [50, 5]], 2, (55, 55, 0)),  # micro-batches of one step
        ([[4, 6, 9], [4, 6]], 1, (5, 5, 0)),  # one of them was counted further
    ],
)
def test_processes_wait_for_the_slowest_in_each_step(works, accumulate, expected):
    assert imbalance(works, accumulate) == pytest.approx(expected)


def test_without_solves_nothing_is_known_of_waiting():
    assert imbalance([[], []]) is None and imbalance([]) is None
    assert imbalance([[3]], accumulate=2) is None


def test_rates_are_those_of_all_processes():
    one, other = tally(10, 10, evals={10: 4}), tally(30, 10, evals={20: 2})
    states = [one.state(), other.state()]
    total = Tally.total(states)
    found = throughput(states, total, 2.0, unit="samples")
    assert found == {
        "units_per_second": 40.0,
        "unit": "samples",
        "evaluations": {"mean": 15.0, "max": 20.0},
        "idle": pytest.approx(0.25),
    }
    assert throughput(states, total, 0.0, unit="samples")["units_per_second"] == 0.0


def test_an_epoch_records_its_speed_and_the_terminal_says_it(make):
    trainer, folder = make("run")
    console = Console(file=io.StringIO(), width=400, color_system=None)
    fit(trainer, folder, console)
    for record in folder.read_metrics():
        found = record["throughput"]
        assert found["units_per_second"] == pytest.approx(
            record["samples"] / record["seconds"], rel=0.05
        )
        evals = record["train"]["forward"]["evals"]["mean"]
        assert found["idle"] == 0.0 and found["evaluations"]["mean"] > evals
    assert "idle" not in console.file.getvalue()


def test_what_waits_is_said_where_processes_wait():
    found = {"idle": 0.2, "evaluations": {"mean": 12.0, "max": 15.0}}
    assert loggers._throughput({"throughput": found}) == (
        "  12.0 evals a step, 15.0 the slowest process: 20 % idle"
    )
    assert loggers._throughput({}) == ""


def test_a_tally_of_before_it_was_counted_is_read():
    state = tally(3).state()
    del state["work"]
    assert Tally.restore(state).work == []
    assert Tally.restore(tally(3, 4).state()).work == [3, 4]


def test_the_slowest_sample_of_each_batch_is_kept():
    found = Tally()
    solution = SimpleNamespace(
        status=torch.zeros(3, dtype=torch.int8),
        stats=SimpleNamespace(evals=torch.tensor([4, 9, 2])),
        adjoint=None,
    )
    found.add_solves([solution, solution])
    found.add_solves([])
    assert found.work == [18] and found.forward.evals == {4: 2, 9: 2, 2: 2}
    assert found.forward.status == {Status.CONVERGED.name: 6}
