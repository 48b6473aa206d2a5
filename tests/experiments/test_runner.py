"""Cases are run once, in order, while the budget lasts; what is done is kept."""

import hashlib
import json
import time

import pytest
from rich.console import Console
from toy import Toy, show

from equilibria.experiments import measure
from equilibria.experiments.case import RESULT, SHARED, Case, CaseError
from equilibria.experiments.experiment import Experiment
from equilibria.experiments.runner import check, execute, publish
from equilibria.solve import AlternatingAnderson
from equilibria.train.trainer import Interrupted

QUIET = Console(quiet=True)


def run(toy, out, **options):
    return execute(toy.experiment, out=out, console=QUIET, command="typed", **options)


def left(minutes):
    return time.monotonic() + 60 * minutes


def test_each_case_is_measured_once_and_kept(tmp_path):
    toy = Toy()
    outcome = run(toy, tmp_path)
    assert toy.calls == [1, 2, 3] and list(outcome.done) == ["n1", "n2", "n3"]
    assert not outcome.missing and not outcome.stopped and not outcome.failed
    again = run(toy, tmp_path)
    assert toy.calls == [1, 2, 3] and again.done == outcome.done
    kept = json.loads((tmp_path / "cases/toy/squares/n2/result.json").read_text())
    assert {"command", "commit", "machine", "versions", "date", "seconds", "threads"} <= set(kept)
    assert kept["value"] == {"square": 4, "nothing": None}


def test_a_shared_case_serves_every_experiment_and_its_run_stays_out_of_the_repository(tmp_path):
    run(Toy(), tmp_path)
    assert (tmp_path / SHARED / "n1/result.json").is_file()
    for folder in (SHARED, "cases"):
        ignored = (tmp_path / folder / ".gitignore").read_text().split()
        assert ignored[0] == "*" and "!result.json" in ignored
    other = Toy()
    other_experiment = Experiment(
        name="toy/other", paper="", subject="", description="", cases=other.cases, show=show
    )
    execute(other_experiment, out=tmp_path, console=QUIET, command="typed")
    assert other.calls == [2, 3]


def test_no_budget_runs_nothing_and_draws_what_is_there(tmp_path):
    toy = Toy()
    run(toy, tmp_path, only=lambda key: key == "n3")
    outcome = run(toy, tmp_path, deadline=left(0))
    assert toy.calls == [3] and set(outcome.missing) == {"n1", "n2"}
    assert outcome.missing["n1"] == "the budget is spent" and "n1" in outcome.missing["n2"]
    tables, (page, figure) = publish(toy.experiment, outcome, tmp_path, "typed")
    assert list(tables[0].rows) == [["n3", 9]]
    whole = json.loads(page.read_text())
    assert whole["missing"] == outcome.missing and whole["command"] == "typed"
    assert "Not run: n1" in whole["note"] and "commit" in whole["cases"]["n3"]
    assert "<svg" in figure.read_text()


def test_an_empty_experiment_draws_too(tmp_path):
    toy = Toy()
    outcome = run(toy, tmp_path, deadline=left(0))
    _, (_, figure) = publish(toy.experiment, outcome, tmp_path, "typed")
    assert "not run" in figure.read_text() and not toy.calls


def test_a_case_begins_only_where_its_estimate_fits(tmp_path):
    toy = Toy(n1={"minutes": 5.0}, n3={"minutes": 5.0, "resumable": True})
    outcome = run(toy, tmp_path, deadline=left(2))
    assert toy.calls == [3], "a case that can go on later may begin"
    assert "needs about 5 minutes, 2.0 are left" in outcome.missing["n1"]


def test_a_case_that_stops_at_the_deadline_goes_on_the_next_time(tmp_path):
    def stops(place):
        marker = place.folder / "half"
        if marker.exists():
            return {"square": 1}
        marker.touch()
        while not place.late:
            time.sleep(0.01)
        raise Interrupted("saved")

    toy = Toy(n1={"run": stops, "resumable": True})
    first = run(toy, tmp_path, deadline=time.monotonic() + 0.05)
    assert first.missing["n1"] == "begun; the budget is spent" and not first.stopped
    assert toy.calls == []
    assert run(toy, tmp_path).done["n1"].value == {"square": 1}


@pytest.mark.parametrize("error", [Interrupted("saved"), KeyboardInterrupt()])
def test_ctrl_c_ends_the_experiment_and_keeps_what_is_done(tmp_path, error):
    def interrupted(place):
        raise error

    toy = Toy(n2={"run": interrupted})
    outcome = run(toy, tmp_path)
    assert outcome.stopped and list(outcome.done) == ["n1"]
    assert set(outcome.missing) == {"n2", "n3"} and toy.calls == [1]


def test_a_case_that_fails_leaves_its_traceback_and_stops_no_other(tmp_path):
    def fails(place):
        raise ZeroDivisionError("by zero")

    outcome = run(Toy(n2={"run": fails}), tmp_path)
    assert outcome.failed == ("n2",) and list(outcome.done) == ["n1", "n3"]
    trace = tmp_path / "cases/toy/squares/n2/error.txt"
    assert "ZeroDivisionError" in trace.read_text() and "by zero" in outcome.missing["n2"]
    mended = Toy()
    assert list(run(mended, tmp_path).done) == ["n1", "n2", "n3"] and mended.calls == [2]
    assert not trace.exists()


def test_a_result_of_other_settings_is_refused_and_left_alone(tmp_path):
    run(Toy(), tmp_path)
    before = (tmp_path / SHARED / "n1/result.json").read_bytes()
    with pytest.raises(CaseError, match=r"other settings \(scale: cpu there, gpu here\).*--out"):
        run(Toy(), tmp_path, scale="gpu")
    assert (tmp_path / SHARED / "n1/result.json").read_bytes() == before


def test_a_solver_is_known_by_the_name_that_older_records_gave_it(tmp_path):
    """Before the default had a name of its own it was `Anderson` with a period of 3."""
    now = measure.described(AlternatingAnderson())
    settings = {"solvers": [now], "recipe": {"solver": now}}
    case = Case(key="a", description="d", minutes=1, run=lambda place: {"n": 1}, settings=settings)
    done = case.write(tmp_path, {"n": 1}, 1.0, "typed", {})
    path = tmp_path / RESULT
    path.write_text(path.read_text().replace("AlternatingAnderson", "Anderson"))
    read = case.read(tmp_path, {})
    assert read is not None and read.value == done.value
    path.write_text(path.read_text().replace('"period": 3', '"period": 1'))
    with pytest.raises(CaseError, match="name: Anderson there, AlternatingAnderson here"):
        case.read(tmp_path, {})


def retrained(tmp_path):
    """Both cases measured, then the shared one measured anew with another result."""
    run(Toy(), tmp_path)
    (tmp_path / SHARED / "n1/result.json").unlink()
    run(Toy(n1={"run": lambda place: {"square": -1}}), tmp_path, only=lambda key: key == "n1")


def test_what_was_measured_on_another_training_is_refused_and_left_alone(tmp_path):
    retrained(tmp_path)
    path = tmp_path / "cases/toy/squares/n2/result.json"
    before = path.read_bytes()
    toy = Toy()
    outcome = run(toy, tmp_path)
    assert list(outcome.done) == ["n1", "n3"] and not toy.calls and not outcome.failed
    assert outcome.missing["n2"].startswith(f"refused: {path} was not measured on the n1 that is")
    assert path.read_bytes() == before
    path.unlink()
    assert list(run(toy, tmp_path).done) == ["n1", "n2", "n3"] and toy.calls == [2]


def test_without_its_training_a_result_is_not_shown(tmp_path):
    run(Toy(), tmp_path)
    (tmp_path / SHARED / "n1/result.json").unlink()
    outcome = run(Toy(), tmp_path, deadline=left(0))
    assert list(outcome.done) == ["n3"] and outcome.missing["n2"] == "needs n1"


def test_a_result_that_names_no_training_is_refused(tmp_path):
    run(Toy(), tmp_path)
    path = tmp_path / "cases/toy/squares/n2/result.json"
    whole = json.loads(path.read_text())
    digest = hashlib.sha256((tmp_path / SHARED / "n1/result.json").read_bytes()).hexdigest()
    assert whole.pop("needs") == {"n1": digest}
    path.write_text(json.dumps(whole))
    assert "refused" in run(Toy(), tmp_path).missing["n2"]
    alone = json.loads((tmp_path / SHARED / "n1/result.json").read_text())
    assert "needs" not in alone, "the record of a training stays as it was"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"value": 1}', "\x00"])
def test_a_damaged_result_is_named(tmp_path, text):
    run(Toy(), tmp_path)
    (tmp_path / SHARED / "n1/result.json").write_text(text)
    with pytest.raises(CaseError, match=r"result\.json is damaged"):
        run(Toy(), tmp_path)


def test_two_processes_do_not_run_one_case(tmp_path):
    from filelock import FileLock

    folder = tmp_path / SHARED / "n1"
    folder.mkdir(parents=True)
    with FileLock(folder / ".lock"):
        outcome = run(Toy(), tmp_path)
    assert outcome.missing["n1"] == "another process is at it" and list(outcome.done) == ["n3"]


@pytest.mark.parametrize(
    "cases",
    [
        [Toy().case(1), Toy().case(1)],
        [Toy().case(2, needs=("n1",))],
        [Toy().case(2, needs=("n1",)), Toy().case(1)],
        [Toy(n1={"key": "../up"}).case(1)],
    ],
    ids=["twice", "missing", "too late", "no folder"],
)
def test_cases_that_cannot_be_are_refused(cases):
    with pytest.raises(CaseError):
        check(cases)
