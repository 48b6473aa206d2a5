"""The record of an epoch's speed: what it counts, what processes wait for, and that it is free."""

import io
import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from rich.console import Console

from equilibria.solve import Status
from equilibria.tasks import ImageClassification
from equilibria.train import hardware, terminal
from equilibria.train import recipe as recipes
from equilibria.train.hardware import GPUS
from equilibria.train.loop import fit
from equilibria.train.tally import Tally
from equilibria.train.throughput import Cost, cost_of, imbalance, throughput

BOUNDLESS = ("--model.width", "16", "--model.bound", "null")


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


def test_rates_are_those_of_all_processes(monkeypatch):
    one, other = tally(10, 10, evals={10: 4}), tally(30, 10, evals={20: 2})
    states = [one.state(), other.state()]
    cost = Cost(rest=7.0, evaluation=2.0, product=5.0)
    total = Tally.total(states)
    found = throughput(states, total, 2.0, unit="samples", samples=6, cost=cost)
    assert found == {
        "units_per_second": 40.0,
        "unit": "samples",
        "evaluations": {"mean": 15.0, "max": 20.0},
        "idle": pytest.approx(0.25),
        "flops_per_second": (6 * 7 + (10 * 4 + 20 * 2) * 2) / 2,
        "peak_share": None,
    }
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100-SXM4-40GB")
    device = torch.device("cuda")
    for precision, peak in (("bf16", GPUS["A100"].half), ("float32", GPUS["A100"].single)):
        assert hardware.peak_of(device, precision) == peak
        on_gpu = throughput(
            states, total, 2.0, unit="samples", samples=6, cost=cost, device=device,
            precision=precision,
        )  # fmt: skip
        assert on_gpu["peak_share"] == pytest.approx(on_gpu["flops_per_second"] / (2 * peak))
    assert throughput(states, total, 0.0, unit="samples")["units_per_second"] == 0.0


def test_a_cost_is_that_of_the_matrices():
    tree = {
        "task": {"name": "image_classification", "data": "digits"},
        "model": {"name": "dense", "width": 16, "bound": None},
    }
    task = ImageClassification(data="digits").load()
    recipe = recipes.settled(recipes.parse(tree), task)
    cost = cost_of(recipe, task, task.feed(8, 0).batch(0))
    assert cost.evaluation == cost.product == 2 * 16 * 16
    assert cost.rest == 2 * 2 * 64 * 16 + 3 * 2 * 16 * 10 + 2 * cost.evaluation


def test_finding_a_cost_draws_nothing_and_trains_nothing(make):
    trainer, _ = make("run", *BOUNDLESS)
    states = random.getstate(), numpy.random.get_state()[1].copy(), torch.get_rng_state()
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.step = 1
    assert trainer._cost.evaluation == 2 * 16 * 16
    assert random.getstate() == states[0]
    assert (numpy.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])
    after = trainer.model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_an_epoch_records_its_speed_and_the_terminal_says_it(make):
    trainer, folder = make("run", *BOUNDLESS)
    console = Console(file=io.StringIO(), width=400, color_system=None)
    fit(trainer, folder, console)
    for record in folder.read_metrics():
        found = record["throughput"]
        assert found["units_per_second"] == pytest.approx(
            record["samples"] / record["seconds"], rel=0.05
        )
        solves = record["train"]
        evals = solves["forward"]["evals"]["mean"]
        assert found["idle"] == 0.0 and found["evaluations"]["mean"] > evals
        samples = trainer.steps_per_epoch * 256
        flops = samples * (trainer._cost.rest + 512 * (evals + solves["adjoint"]["evals"]["mean"]))
        assert found["flops_per_second"] == pytest.approx(flops / record["seconds"], rel=0.05)
        assert found["peak_share"] is None
    said = console.file.getvalue()
    assert said.count("FLOP/s") == 2 and "idle" not in said


def test_a_shallow_start_and_a_graph_have_no_count(language, make, tmp_path):
    trainer, folder = make("run", "--pretrain.steps", "5", tree=language)
    fit(trainer, folder, Console(quiet=True))
    rates = [record["throughput"]["flops_per_second"] for record in folder.read_metrics()]
    assert rates[:2] == [None, None] and rates[2] > 0  # four steps an epoch
    chains = recipes.load("chains")
    task = chains.task.load()
    chains = recipes.settled(chains, task)
    assert cost_of(chains, task, task.feed(chains.rows, 0).batch(0)) is None


def test_a_flow_has_a_count():
    flow = recipes.load("flow-layers", ["--batch_size", "1", "--model.hidden", "16"])
    task = flow.task.load()
    flow = recipes.settled(flow, task)
    found = cost_of(flow, task, task.feed(1, 0).batch(0))
    assert found is not None and found.rest > found.evaluation > 0
    assert found.product == 0  # its adjoint, Phantom, needs none


def test_what_waits_is_said_where_processes_wait():
    evaluations = {"mean": 12.0, "max": 15.0}
    found = {"flops_per_second": 2.5e12, "peak_share": 0.41, "idle": 0.2}
    assert terminal._throughput({"throughput": found | {"evaluations": evaluations}}) == (
        "  2.5 TFLOP/s (41 % of the peak)  12.0 evals a step, 15.0 the slowest process: 20 % idle"
    )
    assert terminal._throughput({}) == ""  # a record of before it was counted
    assert [terminal._scaled(x) for x in (3.2e15, 4e9, 1.5e6)] == ["3.2 P", "4 G", "1.5 M"]


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
