"""Figures 2 to 4 and the solvers' study at sizes of seconds."""

import pytest
from rich.console import Console

from equilibria.experiments.initialisation import radius, solvers, threshold, variance, wide
from equilibria.experiments.runner import execute, publish


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of some dozen units, three scales."""
    monkeypatch.setattr(wide, "WIDTH", 40)
    monkeypatch.setattr(wide, "DRAWS", 2)
    monkeypatch.setattr(wide, "INPUTS", 2)
    monkeypatch.setattr(wide, "STEPS", 60)
    monkeypatch.setattr(wide, "SCALES", (0.4, 3.0))
    monkeypatch.setattr(wide, "LINES", (0.4, 3.0))
    monkeypatch.setattr(solvers, "WIDTH", 24)
    monkeypatch.setattr(solvers, "DRAWS", 1)
    monkeypatch.setattr(solvers, "INPUTS", 2)
    monkeypatch.setattr(solvers, "SCALES", (0.25, 3.0))
    monkeypatch.setattr(solvers, "ACTIVATIONS", ("hard-tanh",))


def test_figures_share_their_sweeps_and_are_drawn(tmp_path, monkeypatch) -> None:
    small(monkeypatch)
    for module in (variance, radius, threshold, solvers):
        outcome = execute(module.EXPERIMENT, out=tmp_path, console=Console(quiet=True), command="")
        assert not outcome.missing
        tables, paths = publish(module.EXPERIMENT, outcome, tmp_path, "")
        assert all(path.exists() for path in paths)
        assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    shared = sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert shared == [f"initialisation-wide-{each}" for each in ("gaussian", "goe", "orthogonal")]


def test_pages_without_results() -> None:
    for module in (variance, radius, threshold, solvers):
        assert module.show({}).tables


def test_where_half_of_the_samples_stop() -> None:
    scales = [1.0, 2.0, 3.0]
    assert wide.stopped_at(scales, [1.0, 0.75, 0.25]) == pytest.approx(2.5)
    assert wide.stopped_at(scales, [0.2, 0.0, 0.0]) == 1.0
    assert wide.stopped_at(scales, [1.0, 1.0, 0.9]) is None


def test_the_largest_workable_scale_has_no_gap_below_it() -> None:
    rows = [
        {"scale": scale, "solvers": {"plain": {"converged": share}}}
        for scale, share in ((1.0, 1.0), (2.0, 0.9), (3.0, 0.5), (4.0, 1.0))
    ]
    assert solvers.largest(rows, "plain") == 2.0
    assert solvers.largest(rows[2:], "plain") is None
