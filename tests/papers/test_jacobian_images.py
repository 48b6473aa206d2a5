"""The Jacobian penalty on images: trained, stopped early, timed and weighed on tiny networks."""

import pytest
import torch
import yaml
from rich.console import Console

from equilibria.run import recipe as recipes
from equilibria.run.studies import pages, results, runner
from equilibria.run.studies.measures import timing
from equilibria.run.studies.measures.probes import Probing
from equilibria.run.studies.results import Origin
from equilibria.run.studies.training import Store
from equilibria.run.studies.views import DIVERGED, NOT_RUN
from equilibria.solve import Anderson, estimate
from papers.jacobian import growth, images, penalty, tables
from papers.jacobian.penalty import WORDS
from papers.mdeq import common

BEST, GAMMAS, LIMIT, SEEDS, THIRD = (
    getattr(images, name) for name in ("BEST", "GAMMAS", "LIMIT", "SEEDS", "THIRD")
)
RECIPE = {
    "task": {"name": "image_classification", "data": "digits", "samples": 40, "valid": 20},
    "model": {
        "name": "mdeq", "channels": [4, 4], "head_channels": [2, 2], "final": 8, "expansion": 2,
        "groups": 2, "initial": None,
    },
    "solver": {"name": "Anderson", "rtol": 1e-2, "max_evals": 12},
    "adjoint": {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-2, "max_evals": 12}},
    "optimizer": {"name": "AdamW", "lr": 3e-3}, "pretrain": {"name": "ShallowStart", "steps": 2},
    "epochs": 2, "epoch_steps": 2, "batch_size": 4, "eval_batch_size": 500, "probes": 2,
}  # fmt: skip


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
@pytest.mark.parametrize("name", images.WORDS)
def test_trainings_differ_where_they_say(name, scale):
    recipe, plain = images.recipe_of(name, scale, 1), images.recipe_of("plain", scale, 1)
    assert recipe.seed == 1 and recipe.model == plain.model and recipe.task == plain.task
    assert (recipe.epochs, recipe.batch_size) == (plain.epochs, plain.batch_size)
    limit = THIRD if name in GAMMAS else LIMIT
    assert recipe.solver.max_evals == recipe.adjoint.linear.max_evals == limit
    assert 3 * THIRD == LIMIT
    if name in GAMMAS:
        assert recipe.regularizer.gamma == GAMMAS[name] and recipe.optimizer == plain.optimizer
    else:
        assert recipe.regularizer is None
        assert (recipe.optimizer.weight_decay == images.DECAY) == (name == "decay")
    assert recipes.parse(recipes.dump(recipe)) == recipe


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the first seeds of a study on tiny networks: run(study) -> its rows and its page."""
    path = tmp_path / "images.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    monkeypatch.setitem(images.BASE, "cpu", str(path))
    monkeypatch.setattr(images, "PROBED", Probing(3, 3))
    monkeypatch.setitem(common.RECIPES, "cifar10", {"cpu": str(path)})
    monkeypatch.setitem(common.SHAPES, "cifar10", (1, 8, 8))
    monkeypatch.setattr(timing, "ROUNDS", 1)
    monkeypatch.setattr(timing, "WARM_UP", 1)
    common._recipe.cache_clear()
    store = Store(tmp_path / "runs", Console(quiet=True))

    def wanted(point):
        name = point.factors.get("network", "plain")
        return point.factors["seed"] == 0 and name in ("plain", "decay", BEST, "resnet")

    def execute(study):
        file = tmp_path / f"{study.title}.csv"
        outcome = runner.execute(study, path=file, store=store, console=store.console, only=wanted)
        assert not outcome.failed, outcome.missing
        data = runner.collect(study, file)
        return data, pages.render(study, data)

    yield execute
    common._recipe.cache_clear()


def test_the_studies_run_to_their_end(run, tmp_path):
    data, _ = run(growth.STUDY)
    epochs = data.series("epoch", network="plain", seed=0)
    assert len(epochs) == 2 and epochs[["probe_forward", "probe_norm"]].notna().all(axis=None)
    assert epochs["radius"].iloc[-1] > 0
    data, page = run(tables.STUDY)
    pages.picture(page, tmp_path / "figure.svg")
    assert "not run" not in (tmp_path / "figure.svg").read_text()
    stops = data.series("limit", network="plain")
    assert stops["limit"].tolist() == list(penalty.LIMITS)
    assert stops["reader"].dropna().tolist() == ["stopped", "plain"]
    for column in ("accuracy", "read_ms", "step_bytes"):
        known = data.series(column).dropna(subset=["reader"])["reader"]
        assert set(known) == set(WORDS) - ({"stopped"} if column == "step_bytes" else set()), column
    steps = data.series("step_ms")
    assert (steps["step_ms"] > 0).all() and set(steps["reader"]) == set(WORDS) - {"stopped"}
    assert data.series("relative", reader="resnet")["relative"].tolist() == [1.0]
    memory = data.series("peak_bytes")
    assert len(memory) == 6 and (memory["history_bytes"] > 0).all()
    assert memory["saving"].tolist()[:2] == [1, 1]


def test_a_solver_that_keeps_more_steps_needs_more_memory(run, monkeypatch):
    for limit in ("BLOCK", "KEPT"):  # large only beside a model as small as this
        monkeypatch.setattr(estimate, limit, 64)
    recipe = images.recipe_of("plain", "cpu")
    task = recipe.task.load()
    torch.manual_seed(0)
    model = task.model(recipe.model, **recipe.layer())
    model.deq.solver = Anderson(rtol=0.0, history=2)
    before = model.deq.solver, model.deq.eval_solver
    inputs = task.sample("test", 8).inputs
    few, many = (penalty.inference(model, inputs, limit) for limit in (4, 16))
    state = sum(leaf.numel() * 4 for leaf in model(inputs).solution.value)
    # A state an evaluation, in a buffer that doubles: 16 against 8.
    assert many["broyden"][0] - few["broyden"][0] >= 8 * state
    # No history but the last three iterates and images, which the error is estimated from.
    assert abs(many["own"][1] - few["own"][1]) <= 4 * state
    assert abs(many["own"][0] - few["own"][0]) <= 5 * state  # two of them are kept
    assert (model.deq.solver, model.deq.eval_solver) == before and model.training


# --- tables of canned rows ------------------------------------------------------------------------


class Canned:
    """Rows as they are hoped for: the penalty costs 0.2 points, stopping 2, epochs 2 to 1."""

    def __init__(self, study, path):
        self.study, self.path = study, path
        self.order = [point.factors for point in study.points("cpu")]
        for factors in self.order:
            self.put(factors, self.rows(**factors))

    def rows(self, network=None, seed=0, cost=None):
        if cost == "memory":
            steps = {"resnet": 1, "plain": 1, BEST: 2}
            rows = [{"reader": name, "step_bytes": 2**20 * steps[of]}
                    for name, (of, _) in penalty.READERS.items() if name != "stopped"]  # fmt: skip
            peaks = {"plain": (400, 100), "stopped": (200, 100), "regularised": (160, 100)}
            return rows + [
                {"reader": reader, "solver": "broyden", "peak_bytes": peak, "saving": 400 / peak,
                 "history_bytes": peak - bare, "share": 1 - bare / peak}
                for reader, (peak, bare) in peaks.items()
            ]  # fmt: skip
        if cost == "time":
            step = {"resnet": 1.0, "plain": 9.0, "regularised": 5.0}
            return [{"reader": name, "read_ms": 5.0, "relative": 1.0, "step_ms": step.get(name)}
                    for name in penalty.READERS]  # fmt: skip
        seconds = 10.0 if network == BEST else 20.0
        head = {"parameters": 50_000, "source": "CIFAR-10 (copy)", "conditions": "1 thread"}
        found = [head | {"epoch_seconds": seconds}]
        for limit in penalty.LIMITS if network != "resnet" else (None,):
            accuracy = 0.5 if limit in (None, LIMIT) else 0.498 if network == BEST else 0.48
            readers = [name for name, of in penalty.READERS.items() if of == (network, limit)]
            row = {"limit": limit, "reader": next(iter(readers), None)}
            found.append(row | {"accuracy": accuracy, "error": 1 - accuracy})
        return found

    def put(self, factors, rows):
        results.replace_point(
            self.path, self.order, factors, rows, identity="i", origin=Origin.now(), seconds=1
        )

    def diverge(self, network, *seeds):
        for seed in seeds:
            head = {"diverged": "the loss is nan", "conditions": "1 thread"}
            self.put({"network": network, "seed": seed}, [head])

    def tables(self):
        """Tables by the beginning of their titles, rows as dicts."""
        page = pages.render(self.study, runner.collect(self.study, self.path))
        return {
            grid.title.split(":")[0]: [
                dict(zip(grid.columns, row, strict=True)) for row in grid.rows
            ]
            for grid in page.grids
        }


@pytest.fixture
def canned(tmp_path, monkeypatch):
    origin = Origin.now()
    monkeypatch.setattr(Origin, "now", lambda *_: origin)  # Git is asked once
    return Canned(tables.STUDY, tmp_path / "rows.csv")


def third(found):
    return found["A third of the evaluations"]


def test_what_is_lost_is_read_from_the_seeds(canned):
    found = canned.tables()
    assert [row["seed"] for row in third(found)] == ["0", "1", "2", "mean of 3"]
    for row in third(found):
        assert row["lost by the penalty, points"] == pytest.approx(0.2)
        assert row["lost by stopping, points"] == pytest.approx(2.0)
        assert row["stopping over penalty"] == pytest.approx(10)
        assert row["time of a training step, without over with penalty"] == pytest.approx(1.8)
        assert row["time of an epoch in training, without over with penalty"] == pytest.approx(2)
    for row in found[f"Points lost against {LIMIT} evaluations without penalty"]:
        assert (row["with penalty"], row["seeds"]) == (pytest.approx(0.2), 3)
    ours = [row for row in found["Table 3"] if row["whose"] == "ours"]
    assert [row["gamma"] for row in ours] == [0.0, *GAMMAS.values()]
    assert [row["seeds"] for row in ours] == [f"{len(SEEDS[n])} of {len(SEEDS[n])}"
                                              for n in ("plain", *GAMMAS)]  # fmt: skip
    assert list(ours[0].values())[3:] == [*[pytest.approx(48)] * 6, pytest.approx(50)]
    costs = {row["network"]: row for row in found["Figure 6"] if row["whose"] == "ours"}
    assert set(costs) == set(WORDS.values())
    assert costs[WORDS["regularised"]]["memory of a training step"] == "2.0 MiB"
    assert costs[WORDS["stopped"]]["test error, %"] == pytest.approx(52)
    share = {row["network"]: row for row in found["Section 3.4"]}[WORDS["regularised"]]
    assert share["the solver's share, %"] == pytest.approx(37.5)
    assert share[f"MDEQ at {LIMIT} over this"] == 2.5


def test_epochs_are_compared_under_the_same_conditions_alone(canned):
    rows = canned.rows(network="plain", seed=1)
    canned.put({"network": "plain", "seed": 1}, [rows[0] | {"conditions": "2 threads"}, *rows[1:]])
    column = "time of an epoch in training, without over with penalty"
    assert [row[column] for row in third(canned.tables())] == [2, None, 2, None]


def test_a_training_that_diverged_enters_no_mean(canned):
    canned.diverge("plain", 1)
    canned.diverge("resnet", 0)
    found = canned.tables()
    row = third(found)[1]
    assert list(row.values())[1:6] == [DIVERGED, DIVERGED, pytest.approx(49.8), None, None]
    assert third(found)[-1]["seed"] == "mean of 2"
    canned.diverge(BEST, *SEEDS[BEST])
    found = canned.tables()
    ours = {row["network"]: row for row in found["Table 2"] if row["whose"] == "ours"}
    assert ours["ResNet"]["test accuracy, %"] == DIVERGED
    assert ours[WORDS["plain"]]["seeds"] == "2 of 3"
    assert ours[WORDS["regularised"]]["test accuracy, %"] == DIVERGED
    assert [row["seed"] for row in third(found)] == ["0", "1", "2"]


def test_what_is_missing_is_said(canned):
    lines = canned.path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith((",2,plain", "memory"))]
    canned.path.write_text("".join(kept))
    found = canned.tables()
    assert third(found)[2][f"stopped at {THIRD}, %"] == NOT_RUN
    assert third(found)[-1]["seed"] == "mean of 2"
    assert NOT_RUN in found["Section 3.4"][0].values()


@pytest.mark.parametrize(("epochs", "ended"), [(0, "diverged in the first epoch"), (2, DIVERGED)])
def test_growth_tells_when_a_training_diverged(epochs, ended, tmp_path):
    order = [point.factors for point in growth.STUDY.points("cpu")]
    path = tmp_path / "rows.csv"
    rows = [{"epoch": n, "valid_accuracy": 0.4, "probe_forward": 0.1 * n} for n in (1, 2)]
    put = {"identity": "i", "origin": Origin.now(), "seconds": 1}
    for seed, head, count in ((0, {}, 2), (1, {"diverged": "at step 3"}, epochs)):
        point = {"network": "plain", "seed": seed}
        results.replace_point(path, order, point, [head, *rows[:count]], **put)
    (table,) = pages.render(growth.STUDY, runner.collect(growth.STUDY, path)).grids
    whole, broken, missing, *_ = table.rows
    assert whole[2] == pytest.approx(40) and whole[4:6] == [pytest.approx(0.1), pytest.approx(0.2)]
    assert broken[2] == ended and missing[2] == NOT_RUN
    assert len(table.rows) == len(order)
