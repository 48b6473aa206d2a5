"""Counting evaluations and statuses over batches, and the speed of an epoch."""

import io
from types import SimpleNamespace

import numpy
import pytest
import torch
from rich.console import Console

from equilibria.run import loggers
from equilibria.run.loop import fit
from equilibria.run.tally import SolveTally, Tally, imbalance, throughput
from equilibria.solve import Status
from equilibria.zoo.vision.task.classification import ImageClassification

TASK = ImageClassification(data="digits").load()


def batch(loss, units, answers):
    return {
        "loss": torch.tensor(loss),
        "units": torch.tensor(units),
        "correct": torch.tensor(sum(answers)),
        "answers": torch.tensor(len(answers)),
    }


def solution(evals, status, adjoint=None):
    stats = SimpleNamespace(evals=torch.tensor(evals))
    ended = torch.tensor(status, dtype=torch.int8)
    return SimpleNamespace(stats=stats, status=ended, adjoint=adjoint)


def test_means_and_shares_weigh_samples_not_batches():
    tally = Tally()
    tally.add(batch(1.0, 1, [True]))
    tally.add_solves([solution([2], [0])])
    tally.add(batch(8.0, 2, [True, False]))
    tally.add_solves([solution([4, 9], [0, 1], solution([1, 1], [2, 0]))])
    summary = tally.summary(TASK)
    assert summary["loss"] == pytest.approx(3.0)
    assert summary["accuracy"] == pytest.approx(2 / 3)
    assert summary["forward"]["evals"]["mean"] == pytest.approx(5.0)
    assert summary["forward"]["status"]["CONVERGED"] == pytest.approx(2 / 3)
    assert summary["forward"]["status"]["MAX_EVALS"] == pytest.approx(1 / 3)
    assert summary["adjoint"]["status"]["STALLED"] == pytest.approx(1 / 2)
    assert set(summary["forward"]["status"]) == {status.name for status in Status}


def test_percentiles_are_those_of_numpy():
    evals = torch.randint(1, 40, (501,), generator=torch.Generator().manual_seed(0))
    tally = SolveTally()
    tally.add(evals, torch.zeros(501, dtype=torch.int8))
    summary = tally.summary()["evals"]
    for percent in (50, 90, 99):
        expected = numpy.percentile(evals.numpy(), percent, method="inverted_cdf")
        assert summary[f"p{percent}"] == expected
    assert summary["max"] == evals.max()


def test_a_tally_survives_being_saved_and_two_add_up():
    one, two, both = Tally(), Tally(), Tally()
    for tally in (one, both):
        tally.add(batch(1.0, 1, [True]))
        tally.add_solves([solution([2], [0], solution([3], [0]))])
    for tally in (two, both):
        tally.add(batch(2.0, 1, [False]))
        tally.add_solves([solution([2], [3], solution([4], [0]))])
    assert Tally.restore(one.state()) == one
    both.work.clear()  # of each process by itself
    assert Tally.total([one.state(), two.state()]) == both


def test_a_task_may_reuse_the_tensor_of_its_sums():
    tally, confusion = Tally(), torch.zeros(3, dtype=torch.float64)
    for place in range(3):
        tally.add({"confusion": confusion.zero_().index_fill_(0, torch.tensor(place), 1.0)})
    assert tally.sums["confusion"].tolist() == [1.0, 1.0, 1.0]


def test_an_adjoint_that_solves_nothing_has_no_figures():
    tally = Tally()
    tally.add(batch(1.0, 1, []))
    tally.add_solves([solution([2], [0])])
    assert tally.summary(TASK)["adjoint"] == {"evals": None, "status": None}


def test_estimated_errors_are_those_of_known_converged_samples():
    error = torch.tensor([1e-3, 2e-3, 0.0, float("nan"), float("inf"), 5.0])
    status = torch.tensor([0, 0, 0, 0, 0, int(Status.STALLED)], dtype=torch.int8)
    tally = Tally()
    stats = SimpleNamespace(evals=torch.ones(6, dtype=torch.int64), error=error)
    found = SimpleNamespace(stats=stats, status=status, adjoint=None)
    tally.add_solves([found])
    assert "error" not in tally.forward.summary()
    tally.add_solves([found], with_error=True)
    parts = Tally.total([tally.state(), tally.state()])
    for each in (tally, Tally.restore(tally.state()), parts):
        summary = each.forward.summary()["error"]
        assert summary["p50"] == pytest.approx(1e-3, rel=0.13)
        assert summary["p90"] == summary["p99"] == pytest.approx(2e-3, rel=0.13)


# --- the record of an epoch's speed: what it counts, and what processes wait for ------------------


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
