"""The experiments on linear networks: their measurements on small ones, and their pages."""

import io
import math

import pytest
import tiny
import torch
from rich.console import Console

from equilibria.experiments.experiment import NOT_RUN
from equilibria.experiments.initialisation import length, moments
from equilibria.experiments.initialisation.linear import spaced, tied, untied
from equilibria.experiments.initialisation.words import NAMES
from equilibria.experiments.runner import execute, publish
from equilibria.nn.init import fill
from equilibria.nn.init.normal import disk
from equilibria.theory import critical_V, length_variance, second_moment

WIDTH, DELTAS = 30, (0.7, 0.3)


def weight(ensemble, seed):
    generator = torch.Generator().manual_seed(seed)
    if ensemble == "normal":  # of which the experiment draws the eigenvalues alone
        return torch.diag(disk(WIDTH, generator))
    w = torch.empty(WIDTH, WIDTH, dtype=torch.float64)
    fill(w, ensemble, 1.0, generator=generator)
    return w


@pytest.mark.parametrize("ensemble", list(NAMES))
def test_traces_are_those_of_the_inverse(ensemble):
    w = weight(ensemble, 3)
    for delta, (second, fourth) in zip(DELTAS, tied(ensemble, WIDTH, DELTAS, 3), strict=True):
        V = critical_V(ensemble) * (1 - delta)
        m = torch.linalg.inv(torch.eye(WIDTH, dtype=w.dtype) - math.sqrt(V) * w)
        gram = m.mH @ m
        assert second == pytest.approx(float(gram.diagonal().real.mean()), rel=1e-10)
        assert fourth == pytest.approx(2 * float((gram @ gram).diagonal().real.mean()), rel=1e-10)


def test_untied_states_follow_the_theory():
    found = list(untied("orthogonal", 100, 0.5, 20, 0))
    middles = torch.tensor(found, dtype=torch.float64).median(0).values.tolist()
    # Of 100 units a state is off by 2 %, its length variance by 3 %.
    assert middles[0] == pytest.approx(second_moment("orthogonal", 0.5, tied=False), rel=0.02)
    assert middles[1] == pytest.approx(length_variance("orthogonal", 0.5, tied=False), rel=0.03)
    settled, apart = spaced(0.5)
    assert 0.5**settled < 1e-4 and 0.5**apart < 0.15


@pytest.fixture
def small(monkeypatch):
    tiny.linear_networks(monkeypatch)


@pytest.mark.parametrize(
    "experiment", [length.EXPERIMENT, moments.EXPERIMENT], ids=lambda e: e.file
)
def test_runs_to_its_end(small, tmp_path, experiment):
    def run(**options):
        console = Console(file=io.StringIO())
        return execute(experiment, out=tmp_path, console=console, command="typed", **options)

    none = run(deadline=0.0)
    assert not none.done
    page = experiment.show(none.done)
    assert all(NOT_RUN in row for table in page.tables for row in table.rows)
    assert not [series for panel in page.panels for series in panel.series]
    some = run(only=lambda key: "goe" in key)
    assert any(
        series.label for panel in experiment.show(some.done).panels for series in panel.series
    )
    whole = run()
    assert not whole.missing
    tables, paths = publish(experiment, whole, tmp_path, "typed")
    assert not [row for table in tables for row in table.rows if NOT_RUN in row]
    assert "not run" not in paths[1].read_text()
