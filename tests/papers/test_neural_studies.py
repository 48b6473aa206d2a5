"""Learned solvers of tiny networks."""

import random
from typing import Any

import pytest
from rich.console import Console

from equilibria.learned import Distillation
from equilibria.run import recipe as recipes
from equilibria.run.studies import pages, runner
from equilibria.run.studies.measures import timing
from equilibria.run.studies.training import Store, Training
from equilibria.solve import Anderson
from papers.neural import ablations, alternating, common, solvers

DIGITS: dict[str, Any] = {
    "task": {"name": "image_classification", "data": "digits"},
    "model": {"name": "dense", "shape": [1, 8, 8], "classes": 10, "width": 24},
    "solver": {"name": "Anderson", "period": 3, "rtol": 1e-2, "max_evals": 18},
    "batch_size": 64,
    "epochs": 2,
    "epoch_steps": 12,
    "probes": 2,
}
TEXT: dict[str, Any] = {
    "task": {"name": "language_modeling", "unit": "characters", "length": 12, "test_share": 0.3},
    "model": {"name": "deq-transformer", "width": 16, "heads": 2, "inner": 24, "memory": 8},
    "solver": {"name": "Anderson", "period": 3, "rtol": 1e-2, "max_evals": 12},
    "batch_size": 4,
    "eval_batch_size": 5,
    "epochs": 1,
    "epoch_steps": 4,
    "probes": 2,
}


@pytest.fixture
def run(monkeypatch, tmp_path, unsaved):
    """Runs a study on tiny networks: run(study, keep) -> its rows."""
    draw = random.Random(0)
    text = tmp_path / "text.txt"
    words = ("the", "cat", "sat", "on", "a", "mat", "and", "saw")
    text.write_text(". ".join(" ".join(draw.choices(words, k=7)) for _ in range(30)))

    def training_of(subject: str, scale: str, seed: int) -> Training:
        tree = TEXT if subject == common.PTB else DIGITS
        if subject == common.PTB:
            tree = {**tree, "task": {**tree["task"], "file": str(text)}}
        return Training(recipe=recipes.parse({**tree, "seed": seed}), minutes=0.1)

    for module in (common, ablations, alternating):
        monkeypatch.setattr(module, "training_of", training_of)
    monkeypatch.setattr(timing, "ROUNDS", 1)
    monkeypatch.setattr(common, "LIMITS", (1, 3, 18))
    monkeypatch.setattr(common, "SAMPLES", {"images": 32, "text": 4})
    monkeypatch.setattr(common, "BATCHES", 4)
    monkeypatch.setattr(ablations, "STEPS", 2)

    def quick(**fields: Any) -> Distillation:
        # A transformer of a few steps stalls before it reaches the default's tolerance.
        teacher = Anderson(rtol=1e-2, max_evals=100)
        return Distillation(**{"start_steps": 10, "steps": 2, "teacher": teacher, **fields})

    monkeypatch.setattr(common, "Distillation", quick)
    store = Store(tmp_path / "runs", Console(quiet=True))

    def execute(study, keep=lambda point: True):
        path = tmp_path / "rows.csv"
        done = runner.execute(study, path=path, store=store, console=store.console, only=keep)
        assert not done.failed, done.missing
        found = runner.collect(study, path)
        pages.picture(pages.render(study, found), tmp_path / "figure.svg")
        return found

    return execute


def cells(view: Any, data: Any) -> list[dict[str, Any]]:
    grid = view.render(data)
    return [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]


def test_learned_solvers_stand_beside_classical_ones(run, monkeypatch) -> None:
    monkeypatch.setattr(solvers, "SHOWN", (1, 3, 18))
    chosen = lambda point: point.factors["subject"] != common.MDEQ  # noqa: E731
    data = run(solvers.STUDY, chosen)
    rows = data.rows
    of_mnist = rows[rows["subject"] == common.MNIST]
    ends = of_mnist[of_mnist["solver"] == common.FULL]["quality"]
    assert len(ends) == 1 and 0 < ends.iloc[0] <= 1
    for solver in ("Picard", "Anderson", "Anderson(period=3)", "Broyden", "start"):
        own = of_mnist[of_mnist["solver"] == solver]
        full = own[own["limit"] == 18]
        assert abs(full["lost"].iloc[0]) <= 1.0  # points: converged to the same equilibrium
        least = own.dropna(subset=["residual"]).set_index("evals")["residual"]
        assert (least.diff().dropna() <= 0).all() and least.index.max() == 20
    first = of_mnist[of_mnist["limit"] == 1].set_index("solver")["lost"]
    assert first["Picard"] == first["Anderson"]  # both read the start
    titles = {
        view.title: cells(view, data) for view in solvers.STUDY.views if hasattr(view, "rows")
    }
    lost = next(rows for title, rows in titles.items() if "lost by stopping" in title)
    assert lost[0]["network"] == common.MDEQ and "not run" in lost[0].values()
    cost = next(rows for title, rows in titles.items() if "size and training time" in title)
    by_name = {row["network"]: row for row in cost}
    assert by_name[common.MNIST]["outcome"] in ("worth it", "not worth it")
    assert 0 < by_name[common.PTB]["share, %"] < 30
    safe = next(rows for title, rows in titles.items() if "Safeguards" in title)
    assert {row["tolerance"] for row in safe} >= {0.1, 0.01, 0.001, 0.0001}


SOME = {"Anderson", "ours", "no start", "the papers'"}


@pytest.mark.parametrize(
    "variants",
    [
        pytest.param(SOME, id="some"),
        pytest.param({"Anderson", *ablations.VARIANTS}, id="all", marks=pytest.mark.slow),
    ],
)
def test_each_part_can_be_left_out(variants, run, monkeypatch) -> None:
    for name, few in (("ours, batches of 2", 8), ("ours, batches of 8", 4)):
        fields = {**ablations.VARIANTS[name], "batches": few}
        monkeypatch.setitem(ablations.VARIANTS, name, fields)

    def keep(point) -> bool:
        return point.factors["seed"] == 0 and point.factors["variant"] in variants

    points = run(ablations.STUDY, keep).points
    points = points[points["done"]].set_index("variant")
    assert set(points.index) == variants
    assert (points["residual"] > 0).all() and (points["error"] > 0).all()
    assert points.loc["ours", "residual"] != points.loc["no start", "residual"]


def test_training_by_a_learned_solver_stands_beside_the_usual_one(run, monkeypatch) -> None:
    config = alternating.Alternating(every=8, batches=3, start_steps=20, steps=1)
    monkeypatch.setitem(alternating.NETWORKS, "alternating", config)
    found = run(alternating.STUDY, lambda point: point.factors["seed"] == 0)
    points = found.points[found.points["done"]].set_index("training")
    assert points.loc["classical", "learning_share"] == 0
    assert 0 < points.loc["alternating", "learning_share"] < 1
    assert (points["mean_forward"] > 1).all()
    assert set(found.rows["used"].dropna()) <= {0.0, 1.0}
    assert found.rows["used"].notna().any()
