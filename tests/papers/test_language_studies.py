"""The language studies of Bai et al. 2019 and 2021 from end to end, on a line of words."""

import copy
import dataclasses
import warnings
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from rich.console import Console

from equilibria.run import evaluation
from equilibria.run import memory as train_memory
from equilibria.run import recipe as recipes
from equilibria.run.initialization import ShallowStart
from equilibria.run.models import EquilibriumModel
from equilibria.run.recipe import IMPLICIT
from equilibria.run.regularizer import JacobianPenalty
from equilibria.run.report import svg
from equilibria.run.studies import catalog, pages, runner
from equilibria.run.studies.measures import timing
from equilibria.run.studies.results import Data
from equilibria.run.studies.training import Store
from equilibria.run.studies.views import NOT_RUN
from equilibria.run.trainer import Trainer
from equilibria.solve import Picard, Shared, SolveWarning, Status
from papers.deq import common, convergence, imbalance, solvers, tables
from papers.deq import memory as step_memory
from papers.jacobian import common as jacobian_common
from papers.jacobian import language, stability
from papers.measures import counterpart, memory, sequences

COMMON = {
    "solver": {"name": "Anderson", "rtol": 1e-2, "max_evals": 12},
    "adjoint": {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-2, "max_evals": 12}},
    "optimizer": {"name": "AdamW", "lr": 3e-3},
    "epochs": 2, "epoch_steps": 3, "batch_size": 4, "eval_batch_size": 4, "probes": 2,
}  # fmt: skip
MODELS = {
    "transformer": {
        "name": "deq-transformer", "width": 8, "heads": 2, "inner": 16, "memory": 4, "scale": 0.2,
        "dropout": 0.05,
    },
    "trellisnet": {"name": "deq-trellisnet", "width": 4, "hidden": 8, "scale": 0.2},
}  # fmt: skip
CELLS = sorted(MODELS)
STUDIES = [name for name in catalog.names() if name.startswith("deq/")]
VARIANTS = {
    "jacobian/language": {"tied", "early", "post-jr-long"},
    "jacobian/stability": {"post", "pre-jr"},
}
PENALTY = {"name": "JacobianPenalty", "gamma": 0.1, "probability": 0.5}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Tiny recipes in the place of those of both cells and of copy memory; their folder."""
    folder = tmp_path_factory.mktemp("language")
    line = "the cat sat on the mat and the dog lay by the door while it rained\n"
    (folder / "text.txt").write_text(line * 60)
    task = {
        "name": "language_modeling",
        "file": str(folder / "text.txt"),
        "unit": "words",
        "length": 8,
    }
    copying = {"name": "copy_memory", "delay": 5, "train": 16, "test": 4}
    pretrain = {"name": "ShallowStart", "layers": 2, "steps": 2}
    trees = {
        "transformer": {"task": task, "pretrain": pretrain, "regularizer": PENALTY},
        "trellisnet": {"task": task},
        "copy-memory": {"task": copying},
    }
    for name, tree in trees.items():
        model = MODELS.get(name, MODELS["transformer"])
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**tree, "model": model, **COMMON}))
    load = common.load_recipe

    def named(name, scale, *options):
        return load(str(folder / f"{name}.yaml"), scale, *options)

    with pytest.MonkeyPatch.context() as patch:
        for cell in CELLS:
            patch.setitem(common.CELLS, cell, cell)
            patch.setitem(common.SEEDS, cell, (0,))
        for module in (common, step_memory, jacobian_common):
            patch.setattr(module, "load_recipe", named)
        for module, sizes in (
            (tables.common, {"COPY_SEEDS": (0,)}),
            (jacobian_common, {"EPOCHS": {"cpu": 2}, "STEPS": {"cpu": 2}}),
            (convergence, {"LENGTHS": (5,), "SEGMENTS": 2}),
            (solvers, {"SEGMENTS": 2}),
            (step_memory, {"LENGTHS": (5,), "DEPTHS": (3,), "BATCH": 2}),
            (imbalance, {"BATCHES": 2, "LIMIT": 20}),
            (train_memory, {"LONG": (3,)}),  # of the profiler, a second each
            (timing, {"ROUNDS": 1, "WARM_UP": 1, "SPENT": 5}),
            (svg, {"_save": lambda figure: ""}),
        ):
            for name, value in sizes.items():
                patch.setattr(module, name, value)
        for name, solver in convergence.SOLVERS.items():
            patch.setitem(convergence.SOLVERS, name, dataclasses.replace(solver, max_evals=12))
        yield folder


@pytest.fixture(scope="module")
def run(small):
    """Run a study: run(name) -> its rows. All studies share the trainings."""
    store = Store(small / "runs", Console(quiet=True))

    def execute(name, networks=()):
        study, file = catalog.find(name), small / f"{name.replace('/', '-')}.csv"
        options = {"path": file, "store": store, "console": store.console}
        if networks:
            options["only"] = lambda point: point.factors["network"] in networks
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SolveWarning)
            outcome = runner.execute(study, **options)
        assert not outcome.failed and (networks or not outcome.missing)
        data = runner.collect(study, file)
        pages.picture(pages.render(study, data), small / "figure.svg")
        return data

    return execute


def cells(view, data):
    """Rows of a table as dicts."""
    grid = view.render(data)
    return [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]


def loaded(cell="transformer", *options):
    return common.load_recipe(cell, "cpu", *options)


@pytest.fixture
def network(small):
    recipe = loaded()
    task = recipe.task.load()
    torch.manual_seed(0)
    return task.model(recipe.model, **recipe.layer()), task


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_of_2019_runs_to_its_end(run, name):
    for grid in pages.render(catalog.find(name), run(name)).grids:
        if "WikiText" not in grid.title:
            assert NOT_RUN not in [cell for row in grid.rows for cell in row]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_study_of_2021_runs_to_its_end(run, name):
    points = run(name, VARIANTS[name]).points
    done = points[points["done"]].set_index("network")
    assert set(done.index) == VARIANTS[name]
    if name == "jacobian/language":
        assert done["step_bytes"].notna().all() and not done.isna().loc["early", "token_seconds"]
        assert done["penalised_bytes"].notna().tolist() == [False, False, True]
    else:
        assert done["perplexity"].notna().all()


# --- measures -------------------------------------------------------------------------------------


def measured(model, task, **options):
    """Rows of `residuals` of a network that was not trained."""
    run = SimpleNamespace(model=model.eval(), data=task)
    context = SimpleNamespace(run=SimpleNamespace(load=lambda: run))
    return list(sequences.residuals(context, **options))


def test_residuals_are_of_every_evaluation_and_leave_the_solver_alone(network):
    model, task = network
    before = model.deq.solver, model.deq.eval_solver
    solvers = {"plain": Picard(rtol=0.0, max_evals=9)}
    rows = measured(model, task, solvers=solvers, count=3, length=7)
    assert [row["evals"] for row in rows] == list(range(1, 10))
    assert all(row["low"] <= row["median"] <= row["high"] for row in rows)
    assert rows[-1]["median"] < rows[0]["median"]
    assert (model.deq.solver, model.deq.eval_solver) == before


def test_segments_are_as_long_as_asked_and_come_from_the_split(network):
    _, task = network
    batch = sequences.segments(task, 11, 4, "train")
    assert batch.inputs.shape == (4, 11) and batch.begins
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert sequences.segments(task, None, 4).inputs.shape == (4, task.config.length)


def test_spread_counts_what_a_batch_waits_for():
    found = imbalance.spread(torch.tensor([2.0, 4, 6, 8]))
    assert found["mean"] == 5 and (found["min"], found["max"]) == (2, 8)
    assert found["waiting"] == pytest.approx(12 / 32)
    assert found["deviation"] == pytest.approx(5**0.5)
    assert imbalance.spread(torch.tensor([7.0, 7]))["waiting"] == 0


def test_dropout_slows_no_solve_that_it_is_off_for(run):
    data = run("deq/imbalance")
    for _, point in data.points.iterrows():
        assert point["min"] <= point["mean"] <= point["max"]
        rows = data.series("evals", weight_norm=point["weight_norm"], dropout=point["dropout"])
        assert len(data.series("mean", dropout=point["dropout"])) == 2 * 2  # batches, networks
        assert rows["converged"].is_monotonic_increasing and rows["converged"].iloc[-1] == 1


def test_a_probe_leaves_the_run_as_it_is_and_sees_the_feedback(small):
    training = jacobian_common.training_of("post-jr", "cpu")
    recipe = training.recipe
    trainer = Trainer(recipe, recipe.task.load(), evaluation.accelerator("float32"))
    trainer.train_step()
    before = copy.deepcopy(trainer.model.state_dict())
    layer = trainer.model.deq
    solver, adjoint = layer.solver, layer.adjoint
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # 16 products are what is asked for
        assert training.probe is not None
        found = training.probe(trainer)
    assert set(found) == {"forward", "adjoint", "norm"} and all(v >= 0 for v in found.values())
    assert all(torch.equal(before[k], v) for k, v in trainer.model.state_dict().items())
    assert all(p.grad is None for p in trainer.model.parameters())
    assert layer.solver is solver and layer.adjoint is adjoint and layer.eval_solver is None
    assert trainer.model.training
    inputs = evaluation.probes(trainer.task, recipe.probes, trainer.accelerator).inputs
    trainer.model.eval()
    operands = trainer.model.inject(inputs)
    # At the state that the probe found: an unconverged one, which is not that of another solver.
    limits = {"rtol": 0.0, "max_evals": training.probe.forward, "patience": None}
    layer.solver = dataclasses.replace(solver, **limits)
    with torch.no_grad():
        z = layer(*operands).value
    operands = [x.value if isinstance(x, Shared) else x for x in operands]
    full = torch.autograd.functional.jacobian(lambda z: layer.cell(z, *operands), z)
    exact = float(full.square().sum()) / z.numel()  # samples do not mix: blocks on the diagonal
    assert found["norm"] == pytest.approx(exact, rel=0.2)  # of 4 draws, 6 % apart


@pytest.mark.parametrize("name", jacobian_common.VARIANTS)
def test_a_variant_differs_where_it_says_and_sees_as_many_tokens(small, name):
    variant, recipe = jacobian_common.VARIANTS[name], jacobian_common.recipe_of(name, "cpu")
    base = jacobian_common.recipe_of("post", "cpu")
    assert recipe.task.length * recipe.batch_size == base.task.length * base.batch_size
    assert recipe.epochs == base.epochs and recipe.epoch_steps == base.epoch_steps
    assert recipe.optimizer.weight_decay == variant.decay
    assert (recipe.regularizer is not None) == variant.penalized
    for key, value in variant.model.items():
        assert getattr(recipe.model, key) == value != getattr(base.model, key)
    if variant.limit:
        assert recipe.solver.max_evals == recipe.adjoint.linear.max_evals == variant.limit
    else:
        assert not recipe.model.implicit


def test_a_step_with_the_penalty_holds_more_than_one_without(network):
    recipe, task = loaded("transformer", "--model.dropout", "0"), network[1]
    model = task.model(recipe.model, **recipe.layer())
    batch = sequences.segments(task, 8, 4, "train")
    known = train_memory.measure(model, task, batch, depths=(12,))[0]
    solver = dataclasses.replace(model.deq.solver, rtol=0.0, max_evals=12, patience=None)
    plain = memory.step_bytes(model, task, batch, solver=solver)
    assert known.kind == "deq" and plain == pytest.approx(known.bytes, rel=0.01)
    assert memory.step_bytes(model, task, batch, solver=solver, penalized=True) > plain
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_both_kinds_of_step_are_timed_and_weighed_as_they_are_drawn(small, share):
    penalty = JacobianPenalty(gamma=0.1, probability=share)
    recipe = dataclasses.replace(loaded(), pretrain=None, regularizer=penalty)
    stack = counterpart.explicit(recipe, layers=2)
    trainers = {
        name: Trainer(each, each.task.load(), evaluation.accelerator("float32"))
        for name, each in {"deq": recipe, "tied": stack}.items()
    }
    drawn = trainers["deq"].stabilizer.counts
    found = timing.steps(trainers)
    steps = timing.ROUNDS + timing.WARM_UP
    assert drawn["applied"] == (steps if share else 0)
    assert drawn["steps"] - drawn["applied"] == steps
    plain, penalized = found["deq"]["plain"], found["deq"]["penalised"]
    assert (penalized is None) == (share == 0)
    whole = (1 - share) * plain + share * (penalized or 0)
    assert found["deq"]["step"] == pytest.approx(whole)
    tied = found["tied"]
    assert tied["step"] == tied["plain"] and tied["penalised"] is None


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_row_has_converged_where_all_of_its_pieces_have(small, monkeypatch, pieces):
    recipe = loaded("transformer", "--model.subsequence", str(8 // pieces))
    task = recipe.task.load()
    torch.manual_seed(0)
    model = task.model(recipe.model, **recipe.layer()).eval()
    run = SimpleNamespace(recipe=recipe, model=model, data=task, diverged=None)
    run.load = lambda: run
    exact = SimpleNamespace(gradient=SimpleNamespace(cosine=0.9))
    monkeypatch.setattr(common, "examine", lambda run: exact)
    counts = []

    def statuses(model, inputs, prediction):
        """One piece of the first row of each segment has not converged."""
        counts.append(len(inputs[0]))
        for place, solution in enumerate(prediction.solutions):
            solution.status.fill_(int(Status.CONVERGED))
            if place == len(prediction.solutions) - 1:
                solution.status[0] = int(Status.MAX_EVALS)

    with model.register_forward_hook(statuses):
        found = common.quality(SimpleNamespace(run=run), rtol=1e-2)
    asked = [(b.targets >= 0).any(1) for b in task.batches("test", recipe.eval_batch_size)]
    right = sum(int(rows[1:].sum()) for rows in asked)
    assert found["rows_converged"] == pytest.approx(right / sum(int(r.sum()) for r in asked))
    assert found["pieces"] == len(range(0, 8, 8 // pieces)) and len(counts) == len(asked)
    assert 1 > found["pieces_converged"] >= found["rows_converged"] and found["cosine"] == 0.9
    assert not model._forward_hooks
    run.diverged = "the loss is nan"
    assert common.quality(SimpleNamespace(run=run), rtol=1e-2) == {}


# --- explicit counterparts ------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("tied", [True, False])
def test_everything_but_the_fixed_point_is_the_same(small, cell, tied):
    recipe = dataclasses.replace(loaded(cell, "--seed", "3"), regularizer=JacobianPenalty())
    stack = counterpart.explicit(recipe, layers=5, tied=tied)
    ours, theirs = recipes.dump(recipe), recipes.dump(stack)
    assert stack.model.layers == 5 and stack.model.tied is tied and not stack.model.implicit
    assert all(theirs[key] in (None, False) for key in IMPLICIT)
    for key in set(ours) - {"model", "description", *IMPLICIT}:
        assert theirs[key] == ours[key], key
    differ = {k for k, v in ours["model"].items() if theirs["model"].get(k, "missing") != v}
    assert differ == {"name", "subsequence"}
    assert recipes.parse(theirs) == stack


@pytest.mark.parametrize("cell", CELLS)
def test_there_and_back_is_the_same_network(small, cell):
    model, stack = loaded(cell).model, counterpart.explicit(loaded(cell)).model
    assert counterpart.implicit(stack) == model
    with pytest.raises(ValueError, match="not a weight-tied stack"):
        counterpart.implicit(dataclasses.replace(stack, tied=False))


@pytest.mark.parametrize("cell", CELLS)
def test_a_stack_is_the_plain_iteration_of_its_equilibrium_network(small, cell):
    recipe = counterpart.explicit(loaded(cell), layers=4)
    task = recipe.task.load()
    torch.manual_seed(0)
    stack = task.model(recipe.model).eval()
    model = sequences.as_equilibrium(SimpleNamespace(model=stack, data=task, recipe=recipe))
    assert isinstance(model, EquilibriumModel) and not model.training
    inputs = sequences.segments(task, 9, 3).inputs
    with torch.no_grad(), ShallowStart(layers=4).unroll(model):
        torch.testing.assert_close(model(inputs).output, stack(inputs).output)


def test_what_has_no_stack_is_refused():
    with pytest.raises(ValueError, match="has no explicit stack; deq-transformer, deq-trellisnet"):
        counterpart.explicit(recipes.load("digits"))


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_recurrent_network_has_the_size_nearest_to_the_others(small, name):
    recipe = loaded()
    made = counterpart.recurrent(recipe, name, 20)
    aim = counterpart.parameters(recipe.model, 20)

    def miss(width):
        sized = dataclasses.replace(made.model, width=width, hidden=width)
        return abs(counterpart.parameters(sized, 20) - aim)

    width = made.model.hidden
    assert made.model.width == width and miss(width) <= min(miss(width - 1), miss(width + 1))
    assert made.optimizer == recipe.optimizer and made.solver is None


# --- tables of made-up rows -----------------------------------------------------------------------

TRAINED = {
    "parameters": 2_000_000, "core": 1_000_000, "perplexity": 130.0, "loss": 4.8, "seconds": 60.0,
    "conditions": "2 threads, 2 cores", "step_bytes": 2**20, "evals": 7.0, "pieces": 8,
    "pieces_converged": 0.9, "rows_converged": 0.6, "cosine": 0.995,
}  # fmt: skip
TIMED = {
    "threads": 2, "deq_plain": 100.0, "deq_penalised": 300.0, "deq_step": 150.0, "deq_read": 3.0,
    "deq_untrained": 150.0, "tied_step": 100.0, "tied_read": 2.0, "tied_untrained": 100.0,
}  # fmt: skip
DIVERGED = {"parameters": 2_000_000, "seconds": 20.0, "diverged": "the loss is nan at step 3"}
DIVERGED["conditions"] = TRAINED["conditions"]
EPOCH = {"probe_forward": 0.01, "probe_adjoint": 0.02, "probe_norm": 0.3, "radius": 0.8}


def made_up(study, figures, changes=()):
    """Data of a study: rows by the factors of a point, or other figures, or none."""
    factors = [dict(point.factors) for point in study.points("cpu")]
    rows = []
    for each in factors:
        row = figures(each)
        for which, other in changes:
            if which.items() <= each.items():
                row = other if other is None else [{**other}]
        rows += [{**each, **further} for further in row or ()]
    return Data.of(pd.DataFrame(rows), factors)


def whole(factors):
    if factors["network"].startswith("both"):
        return [TIMED]
    penalized = factors["network"].startswith("deq")
    return [TRAINED | ({"penalised_bytes": 2**21} if penalized else {})]


def compared(changes=(), row=0):
    return cells(tables.common.COMPARISON, made_up(tables.STUDY, whole, changes))[row]


TRANSFORMER = {"network": "deq-transformer", "seed": 0, "data": "ptb"}


@pytest.fixture
def three_seeds(monkeypatch):
    monkeypatch.setitem(common.SEEDS, "transformer", (0, 1, 2))


def test_a_step_has_its_share_of_penalised_ones(three_seeds):
    row = compared()
    assert row["a step, interleaved"] == 1.5 and (row["plain"], row["penalised"]) == (1, 3)
    ours = cells(tables.common.TIMES, made_up(tables.STUDY, whole))[2]
    assert [*ours.values()][1:] == [
        *("ours, 2 threads", "1.50x", "1.50x", "1.00x", "3.00x", "1.50x", "1.00x")
    ]


def test_solves_of_pieces_and_rows_that_converged_are_told_apart(three_seeds):
    row = compared()
    assert row["pieces a segment"] == 8 and row["pieces converged, %"] == pytest.approx(90)
    assert row["rows converged, %"] == pytest.approx(60)
    assert row["with the penalty"] == 2


def test_trainings_of_two_machines_have_no_ratio_of_times(three_seeds):
    assert compared()["training time, ratio"] == 1
    changes = [(TRANSFORMER, TRAINED | {"conditions": "1 threads, 2 cores"})]
    assert compared(changes)["training time, ratio"] is None
    assert compared(changes)["on"] == "1 threads, 2 cores against 2 threads, 2 cores"
    assert compared(changes, 1)["training time, ratio"] == 1


def test_what_diverged_is_told_from_what_was_not_run(three_seeds):
    changes = [
        (TRANSFORMER, DIVERGED),
        ({"network": "tied-transformer", "seed": 1}, None),
        ({"network": "deq-trellisnet"}, None),
    ]
    row = compared(changes)
    assert row["perplexity, DEQ"] == "diverged" and row["tied"] == 130
    figures = ("ratio", "rows converged, %", "memory, ratio", "training time, ratio")
    assert {row[name] for name in figures} == {"diverged"}
    row = compared(changes, 1)
    assert row["tied"] == row["ratio"] == row["memory, ratio"] == NOT_RUN
    assert row["perplexity, DEQ"] == 130 and row["adjoint cosine"] == 0.995
    assert compared(changes, 3)["rows converged, %"] == NOT_RUN


def test_a_stack_that_diverged_is_told_too(three_seeds):
    row = compared([({"network": "tied-transformer", "seed": 0}, DIVERGED)])
    assert row["tied"] == row["ratio"] == row["memory, ratio"] == "diverged"
    assert row["rows converged, %"] == pytest.approx(60)
    data = made_up(tables.STUDY, whole, [({"network": "lstm", "seed": 0}, DIVERGED)])
    row = cells(tables.common.AGAINST, data)[0]
    assert [*row.values()] == [0, 4.8, "diverged", 4.8, "diverged"]


def test_stability_is_shown_in_whole_in_part_and_diverged():
    def epochs(factors):
        further = [
            {"epoch": n, "step": 10 * n, "valid_perplexity": 300 / n, **EPOCH} for n in (1, 2)
        ]
        return [TRAINED, *further]

    def table(*changes):
        rows = cells(stability.STUDY.views[0], made_up(stability.STUDY, epochs, changes))
        return {row["network"]: [*row.values()][2:] for row in rows}

    rows = table()
    assert len(rows) == len(stability.NAMES)
    assert rows["DEQ, post-LN"] == [150, 0.01, 0.01, 0.02, 0.8, 0.3, 0.3]
    ended = DIVERGED | {"epoch": 1, "valid_perplexity": 300.0, **EPOCH}
    rows = table(
        ({"network": "pre"}, ended),
        ({"network": "unnormalised"}, DIVERGED),
        ({"network": "pre-jr"}, None),
    )
    assert rows["DEQ, pre-LN"][0] == "diverged" and rows["DEQ, pre-LN"][2] == 0.01
    assert rows["DEQ, post-LN, no weight norm"][0] == "diverged in the first epoch"
    assert rows["DEQ, pre-LN, regularised"] == [NOT_RUN, *[None] * 6]


def test_regularised_networks_are_shown_with_times_of_one_machine_alone():
    def figures(factors):
        further = {"epoch": 1, "epoch_seconds": 30.0, "valid_perplexity": 300.0, "forward": 6.0}
        return [TRAINED | ({"seconds": 30.0} if factors["network"] == "tied" else {}), further]

    changes = [
        ({"network": "pre"}, TRAINED | {"conditions": "another"}),
        ({"network": "post-15"}, DIVERGED),
        ({"network": "post-jr"}, TRAINED | {"penalised_bytes": 2**21}),
        ({"network": "pre-jr"}, None),
    ]
    data = made_up(language.STUDY, figures, changes)
    ours = {row[0]: [*row][7:] for row in language.STUDY.views[0].render(data).rows}
    assert ours["DEQ, post-LN"] == [130, "2.00x", 6, 7, 1]
    assert ours["DEQ, pre-LN"][1] is None
    assert ours["DEQ, post-LN, 15 evaluations"] == ["diverged", *[None] * 4]
    assert ours["DEQ, post-LN, regularised"][4] == 2
    assert ours["DEQ, pre-LN, regularised"][0] == NOT_RUN
    assert ours["Megatron-LM"] == [None] * 5
