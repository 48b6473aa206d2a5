"""What is run, kept, resumed and refused."""

import dataclasses
import math
import random
import time
from functools import partial

import numpy
import pytest
import torch
from filelock import FileLock
from rich.console import Console

import equilibria as eq
from equilibria.run import processes
from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.run.loop import Interrupted
from equilibria.run.studies import catalog, identity, pages, results, runner, stale
from equilibria.run.studies.results import CHANGED, Origin
from equilibria.run.studies.study import Point, Study, StudyError
from equilibria.run.studies.training import Store, Training
from equilibria.run.studies.views import Pivot

pytestmark = pytest.mark.usefixtures("few_digits")

CALLS: list[str] = []


def square(context, power=2):
    CALLS.append(context.factors["x"])
    return {"y": context.factors["x"] ** power}


def broken(context):
    raise ZeroDivisionError("no")


def infinite(context):
    return {"y": math.inf}


def study(measure=square, xs=(1, 2), **options):
    return Study(
        title="squares",
        description="squares",
        points=lambda scale: [Point(factors={"x": x}, measures=[measure], **options) for x in xs],
        views=[Pivot(title="squares", index={"x": "x"}, values={"y": "y"})],
    )


@pytest.fixture
def run(tmp_path):
    """Execute a study in a folder of its own and return the outcome and its points."""
    CALLS.clear()
    store = Store(tmp_path / "runs", Console(quiet=True))
    path = tmp_path / "s.csv"

    def execute(which, **options):
        console = options.pop("console", Console(quiet=True))
        outcome = runner.execute(which, path=path, store=store, console=console, **options)
        return outcome, runner.collect(which, path).points

    execute.path, execute.store = path, store
    return execute


def test_a_point_is_measured_once(run):
    for _ in range(2):
        outcome, points = run(study())
        assert not outcome.missing and points["y"].tolist() == [1, 4]
    assert CALLS == [1, 2]


def test_a_change_of_what_decides_is_measured_anew_and_prose_is_not(run):
    run(study())
    run(dataclasses.replace(study(), title="other words", description="other words"))
    assert CALLS == [1, 2]
    run(study(settings={"tolerance": 1e-3}))
    assert CALLS == [1, 2, 1, 2]
    _, points = run(study(partial(square, power=3)))
    assert points["y"].tolist() == [1, 8]


def test_legacy_rows_are_shown_and_never_taken_for_a_result(run):
    origin = Origin.now()
    order = [{"x": 1}, {"x": 2}]
    results.replace_point(
        run.path, order, {"x": 1}, [{"y": 7}], identity=results.LEGACY, origin=origin, seconds=0
    )
    outcome, points = run(study(), only=lambda point: False)
    assert points["y"].tolist()[0] == 7 and set(outcome.missing) == {"x=1", "x=2"}
    _, points = run(study())
    assert points["y"].tolist() == [1, 4]


def test_rows_of_an_earlier_generation_of_the_core_are_kept_and_counted(run):
    which = study()
    first, second = which.points("cpu")
    old = runner.identity_of(first, run.store, generation=1)
    plain = {"factors": {"x": 1}, "measures": [square], "settings": {}, "runs": {}, "reads": []}
    assert old == identity.digest(plain)  # as before generations were counted
    origin = dataclasses.replace(Origin.now(), generation=1)
    order = [first.factors, second.factors]
    results.replace_point(
        run.path, order, first.factors, [{"y": 7}], identity=old, origin=origin, seconds=0
    )
    outcome, points = run(which)
    assert CALLS == [2] and not outcome.missing and points["y"].tolist() == [7, 4]
    assert points["_generation"].tolist() == [1, identity.GENERATION]
    assert pages.count_earlier(runner.collect(which, run.path)).startswith("1 of 2 points")
    _, points = run(study(partial(square, power=3)))
    assert points["y"].tolist() == [1, 8]
    assert pages.count_earlier(runner.collect(which, run.path)) == ""


def test_a_failure_keeps_its_traceback_and_stops_nobody(run):
    which = study()
    points = [*which.points("cpu"), Point(factors={"x": 0}, measures=[broken])]
    mixed = dataclasses.replace(which, points=lambda scale: [points[2], points[0]])
    outcome, rows = run(mixed)
    assert outcome.failed == ("x=0",) and rows["done"].tolist() == [False, True]
    (file,) = (run.store.folder / "errors").iterdir()
    assert "ZeroDivisionError: no" in file.read_text()


def test_infinity_is_a_result(run):
    run(study(infinite, xs=(1,)))
    _, points = run(study(infinite, xs=(1,)))
    assert points["y"].tolist() == [math.inf]


def test_what_does_not_fit_the_budget_is_not_begun(run):
    outcome, _ = run(study(minutes=5), deadline=time.monotonic() + 60)
    assert not CALLS and "needs about 5 minutes" in outcome.missing["x=1"].reason
    outcome, _ = run(study(), deadline=time.monotonic() - 1)
    assert not CALLS and outcome.missing["x=2"] == (runner.BUDGET, False)


def test_an_interrupt_keeps_what_is_done(run):
    def second(context):
        if context.factors["x"] == 2:
            raise KeyboardInterrupt
        return {"y": 0}

    outcome, points = run(study(second, xs=(1, 2, 3)))
    assert outcome.stopped and points["done"].tolist() == [True, False, False]


@pytest.mark.parametrize("xs", [(1, 1), (1, 1.0), (1, "1"), (0.1, 0.1 + 1e-12), (True, "True")])
def test_two_points_with_the_same_factors_are_an_error(run, xs):
    with pytest.raises(StudyError, match=f"x={xs[0]}"):
        run(study(xs=xs))


@pytest.mark.parametrize("x", ["long" * 100, 'a/b\\c:d<e>"?*|', "é"])
def test_the_traceback_of_any_point_can_be_kept(run, x):
    outcome, _ = run(study(broken, xs=(x,)))
    assert outcome.failed == (f"x={x}",)
    (file,) = (run.store.folder / "errors").iterdir()
    assert not set(file.name) & set('\\/:<>"?*|') and len(file.name) < 130


def names_a_factor(context):
    return [{"x": 7}]


def test_a_measure_cannot_change_a_factor(run):
    outcome, points = run(study(names_a_factor))
    assert outcome.failed == ("x=1", "x=2") and not points["done"].any()
    assert "'x', which is a factor" in outcome.missing["x=1"].reason


def test_two_processes_measure_a_point_once(run):
    def elsewhere(point):
        if point.factors["x"] == 1 and not CALLS:
            CALLS.append("elsewhere")
            run(study())
        return True

    outcome, points = run(study(), only=elsewhere)
    assert CALLS == ["elsewhere", 1, 2]
    assert not outcome.missing and points["done"].all()


def test_what_another_process_measures_is_left_to_it(run):
    (point, _) = study().points("cpu")
    run.store.folder.mkdir()
    with FileLock(run.store.folder / f".{runner.identity_of(point, run.store)}.lock"):
        outcome, _ = run(study())
    assert outcome.missing["x=1"].reason == "another process is running it" and CALLS == [2]


def drawn(context):
    return {"drawn": random.random() + numpy.random.rand() + float(torch.rand(()))}


def test_a_measure_is_the_same_whichever_came_before_and_changes_no_random_state(run):
    which = study()
    points = [Point(factors={"x": n}, measures=[drawn] * n) for n in (1, 2)]
    points.append(Point(factors={"x": 0}, measures=[drawn, broken]))
    before = processes.random_state()
    _, rows = run(dataclasses.replace(which, points=lambda scale: points))
    assert rows["drawn"][0] == rows["drawn"][1]
    assert processes.random_state() == before


def test_what_was_measured_on_another_device_is_measured_anew(run):
    run(study(xs=(1,)))
    run(study(xs=(1,)), device="cuda")
    assert CALLS == [1, 1]


# --- trainings -----------------------------------------------------------------------------------

TINY = ("--epochs=1", "--epoch_steps=2", "--task.samples=100")


def accuracy(context):
    return {"accuracy": context.run.evaluation["accuracy"], "epochs": len(context.run.metrics)}


def test_a_training_is_shared_by_what_decides_it(run):
    recipe = recipes.load("digits", TINY)
    polished = dataclasses.replace(recipe, description="the same in other words")
    for each in (recipe, polished):
        training = Training(recipe=each, minutes=1)
        _, points = run(study(accuracy, xs=(each.description,), runs={"run": training}))
        assert points["epochs"].tolist() == [1]
    assert len([each for each in run.store.folder.iterdir() if each.is_dir()]) == 1
    other = Training(recipe=dataclasses.replace(recipe, seed=1), minutes=1)
    assert run.store.find(other) is None


def test_a_training_is_resumed_under_another_description(run):
    recipe = dataclasses.replace(recipes.load("digits", TINY), clip=1)  # 1.0 as it is read
    polished = dataclasses.replace(recipe, description="the same in other words")
    with pytest.raises(Interrupted):
        run.store.run(Training(recipe=recipe, minutes=1), lambda: True)
    found = run.store.run(Training(recipe=polished, minutes=1), lambda: False)
    assert len(found.metrics) == 1
    assert found.trainer(trained=True, before_end=1).step == 1


def test_the_checksum_of_the_data_and_the_probe_count(run, monkeypatch):
    training = Training(recipe=recipes.load("digits", TINY), minutes=1)
    before = run.store.identity(training)
    probed = dataclasses.replace(training, probe=accuracy)
    assert run.store.identity(probed) != before
    assert run.store.identity(training, generation=1) != before
    monkeypatch.setattr(run.store.task(training.recipe), "checksum", "of another copy")
    assert run.store.identity(training) != before


def test_a_default_that_changes_changes_the_identity():
    recipe = recipes.load("digits")
    whole = identity.decides(recipe)
    assert whole["solver"]["max_evals"] and "description" not in whole
    assert identity.digest(whole) != identity.digest({**whole, "seed": 5})


def test_options_that_are_gone_change_no_identity():
    """Rows were measured with them, as None."""
    measured = "100b906dedee8af5"
    assert identity.digest([eq.Implicit(linear=eq.GMRES(rtol=1e-3))]) == measured
    tree = {"task": {"name": "image_classification"}, "model": {"name": "dense"}}
    before = {**tree, "adjoint": {"name": "Implicit", "guess": None, "preconditioner": None}}
    recipe = recipes.parse(before)
    assert recipe == recipes.parse(tree)
    assert identity.decides(recipe)["adjoint"].items() >= before["adjoint"].items()
    with pytest.raises(ConfigError, match=r"unknown key 'adjoint\.guess'"):
        recipes.parse({**tree, "adjoint": {"name": "Implicit", "guess": True}})


def power_of(power):
    def measure(context):
        return {"y": context.factors["x"] ** power}

    return measure


@pytest.mark.parametrize(
    "x", [object(), lambda context: {}, power_of(2)], ids=["object", "lambda", "closure"]
)
def test_what_has_no_name_is_no_part_of_an_identity(x):
    with pytest.raises(TypeError, match="identity"):
        identity.digest({"x": x})


@dataclasses.dataclass
class Power:
    power: int

    def measure(self, context):
        return {"y": context.factors["x"] ** self.power}


def test_methods_and_decorated_functions_are_known_by_what_they_are():
    assert identity.digest(Power(2).measure) != identity.digest(Power(3).measure)
    assert identity.digest(torch.no_grad()(square)) == identity.digest(square)


# --- stale ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "identity_", "commit", "trained", "verdict"),
    [
        ({"latest", "row"}, "i", "row", None, "current"),
        ({"latest", "row"}, "i", "row", "row", "current"),
        ({"latest", "old"}, "i", "old", None, "stale"),
        ({"latest", "row", "old"}, "i", "row", "old; row", "stale"),
        ({"latest", "row"}, results.LEGACY, "row", None, "stale"),
        ({"latest"}, "i", "elsewhere", None, "unknown"),
        ({"latest", "row"}, "i", f"row{CHANGED}", None, "unknown"),
        (set(), "i", "row", None, "unknown"),
    ],
)
def test_rows_older_than_the_last_change_below_them_are_stale(
    monkeypatch, known, identity_, commit, trained, verdict
):
    def git(*words):
        if words[0] == "log":
            return "latest" if known else None
        if words[0] == "cat-file":
            return "commit" if words[-1] in known else None
        return "" if words[-1] == "row" else None  # is the last change an ancestor of the row?

    monkeypatch.setattr(stale, "git", git)
    stale._verdict.cache_clear()
    import pandas as pd

    rows = pd.DataFrame({"_identity": [identity_], "_commit": [commit], "_trained": [trained]})
    rows["_generation"] = identity.GENERATION
    source = catalog.source_of("deq/growth")
    assert stale.verdicts(rows, source, [None]) == [verdict]
    assert stale.verdicts(rows, source, ["another"]) == ["stale"]
    assert stale.verdicts(rows.assign(_generation=1), source, [None]) == ["stale"]
    stale._verdict.cache_clear()


def test_a_change_of_an_application_makes_rows_stale(monkeypatch):
    """Recipes name models, tasks and data by strings: no import shows which."""
    asked = []
    monkeypatch.setattr(stale, "git", lambda *words: asked.extend(words))
    stale.last_change(catalog.source_of("deq/growth"))
    assert {str(stale.SOURCE / "zoo"), str(catalog.source_of("deq/growth"))} <= set(asked)


def test_what_lies_below_a_study_are_its_imports():
    names = {
        p.relative_to(stale.SOURCE).as_posix()
        for p in stale.below(catalog.source_of("deq/growth"))
        if p.is_relative_to(stale.SOURCE)
    }
    assert {"solve/loop.py", "run/trainer.py", "run/studies/measures/epochs.py"} <= names
    assert not any(name.startswith(("run/cli/", "cli/", "run/studies/views")) for name in names)
