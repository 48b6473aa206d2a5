"""Solves beside other people's code, and two checkouts in turns."""

import io
from functools import partial

import pytest
import torch

from benchmarks import turns
from equilibria.run.bench.cells import compare
from equilibria.run.bench.solvers import relative_residual
from equilibria.run.cli import main as cli
from equilibria.run.studies import pages
from equilibria.run.studies.study import Point
from equilibria.run.trainer import Trainer
from papers.bench import graphs, jit
from papers.bench.cells import Dense

# --- optimistix -----------------------------------------------------------------------------------


def test_the_bound_lies_between_the_last_two_residuals():
    torch.manual_seed(0)
    cell, x = Dense(6, 0.6), torch.randn(3, 6)
    with torch.no_grad():
        atol, evals = jit.calibrate(cell, x, 1e-4)
        z = torch.zeros_like(x)
        for _ in range(evals - 2):
            z = cell(z, x)
        for last in (False, True):
            image = cell(z, x)
            assert bool((relative_residual(image, z) <= 1e-4).all()) == last
            assert (float((image - z).square().mean().sqrt()) < atol) == last
            z = image


def test_it_is_solved_by_all_with_as_many_evaluations(measured):
    pytest.importorskip("optimistix")
    point = Point(factors={"f": "10 us"}, measures=[partial(jit.race, rounds=1)])
    times, figures = pages.render(jit.STUDY, measured(jit.STUDY, [point])).grids
    assert all(float(cell) > 0 for cell in times.rows[0][1:])
    assert len({row[3] for row in figures.rows}) == 1
    assert all(float(row[4]) <= 1e-4 for row in figures.rows)


# --- graphs ---------------------------------------------------------------------------------------


def test_no_edge_leaves_its_graph():
    edges = graphs.chains(100)
    assert bool((edges.sender // graphs.GRAPH == edges.receiver // graphs.GRAPH).all())
    both = {*zip(edges.sender.tolist(), edges.receiver.tolist(), strict=True)}
    assert both == {(b, a) for a, b in both} and {(0, 1), (0, 5), (7, 7)} <= both
    assert len(both) == len(edges.sender)


def test_every_way_finds_the_gradient():
    case = graphs.case(50)
    for way in graphs.ways(50):
        case.clear()
        value, _ = way.forward(case, 1e-6)
        (value * case.target).sum().backward()
        assert compare(case)[1] < 1e-3, way.name


def test_a_graph_layer_is_timed_beside_the_loop(measured):
    point = Point(factors={"nodes": 50}, measures=[partial(graphs.step, rounds=1)])
    times, figures = pages.render(graphs.STUDY, measured(graphs.STUDY, [point])).grids
    assert len(times.rows[0]) == 5 and all(float(cell) > 0 for cell in times.rows[0][1:])
    assert all(float(row[-1]) <= graphs.BOUND for row in figures.rows)


# --- turns ----------------------------------------------------------------------------------------


def test_a_training_waits_before_each_step_and_says_how_long_it_took(monkeypatch):
    class Training(Trainer):
        steps_per_epoch, recipe = 3, type("Recipe", (), {"epochs": 4})

        def __init__(self):
            pass

    taken = []
    monkeypatch.setattr(Trainer, "train_step", lambda self, penalized: taken.append(penalized))
    monkeypatch.setattr(cli, "main", lambda words: [Training().train_step() for _ in words])
    replies = io.StringIO()
    turns.serve(io.StringIO("\n" * 3), replies, ["a", "b", "c"])
    epoch, *times = replies.getvalue().splitlines()
    assert epoch == "3 4" and len(times) == 2 and len(taken) == 3
    assert all(float(each) >= 0 for line in times for each in line.split())


def test_an_epoch_is_the_median_of_whole_ones_or_made_of_its_steps():
    assert turns.epoch_seconds([1.0, 1.0, 2.0, 2.0, 5.0, 5.0, 9.0], 2) == 4.0
    assert turns.epoch_seconds([1.0, 2.0], 10) == 15.0


def test_what_cannot_be_trained_is_left_out_with_a_reason(monkeypatch, capsys):
    def compare(old, new, words, seconds, steps):
        if words[0] == "lm-text":
            raise turns.Ended("no text")
        return "timed", 4.0 if words[0] == "digits" else 1.0

    monkeypatch.setattr(turns, "compare", compare)
    monkeypatch.setattr("sys.argv", ["turns", "old", "new", "digits", "lm-text", "cora"])
    turns.main()
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "lm-text: left out: no text"
    assert said[-1] == "geometric mean of 2: 2.000"
