"""What the rows of the benchmarks come to; each study measures a point for real."""

import importlib.util
import math
import multiprocessing
import os
import statistics
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from equilibria.run import memory
from equilibria.run import recipe as recipes
from equilibria.run.bench import methods
from equilibria.run.bench.contestants import MissingPeer, contestants
from equilibria.run.cli.main import main
from equilibria.run.studies import catalog, pages, runner
from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Point
from equilibria.run.studies.training import Training
from papers.bench import adjoints, common, processes, scaling, solvers, training
from papers.bench.cells import layer
from papers.digits import training as digits

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(
    [
        *(processes.__name__, "sklearn.datasets", "sklearn.model_selection", "torch._dynamo"),
        *("pytest", "equilibria.run.cli.main", "equilibria.run.bench.contestants", pages.__name__),
    ]
)

# --- forward solvers ------------------------------------------------------------------------------


def solved(solver, method, ms, family="equilibria", reached=8):
    own = {"solver": solver, "family": family, "method": method, "reached": reached, "ms": ms}
    counts = {"evals": 4.0, "evals_max": 5, "calls": 5, "f_samples": 40, "reads": 5}
    operations = {"ops": 9.0, "ops_mean": 10.0, "bytes": 640}
    return own | counts | operations | {"samples": 8, "wrong": 0, "residual": 1e-5}


def problem(name, picard, default, plain, anderson, kind="tanh"):
    rows = [
        solved("Picard", "Picard", picard),
        solved("default", "default", default, reached=8 if default else 3),
        solved("torchdeq plain", "Picard", plain, "torchdeq"),
        solved("torchdeq anderson", "Anderson", anderson, "torchdeq"),
    ]
    rows[0] |= {"kind": kind, "state_bytes": 320, "f_ms": 1.0}
    return [{"problem": name, **row} for row in rows]


def data_of(*problems):
    names = [{"problem": rows[0]["problem"]} for rows in problems]
    return Data.of(pd.DataFrame([row for rows in problems for row in rows]), names)


@pytest.fixture(scope="module")
def tables():
    """The rows of each table, by its title, with the first cell in front."""
    data = data_of(problem("a", 2.0, 5.5, 4.0, 11.0), problem("b", 1.0, None, 8.0, 6.0))
    grids = pages.render(solvers.STUDY, data).grids
    return {grid.title: grid for grid in grids}


def cells(table, row, *columns):
    """Cells of the first row that begins so."""
    found = next(each for each in table.rows if list(each[: len(row)]) == list(row))
    return [found[list(table.columns).index(column)] for column in columns]


def test_the_summary_compares_what_was_timed(tables):
    table = tables["Solvers: summary"]
    columns = "problems", "geometric mean", "worst", "where"
    assert cells(table, ["Picard: times as fast as torchdeq's"], *columns) == [
        *(2, pytest.approx(4.0), 2.0, "a")
    ]
    for name, overhead in {"default": [5.5 / 5], "plain": [2.0 / 5, 1.0 / 5]}.items():
        what = f"overhead, {name}, f >= 1 ms, matrix products and attention"
        count, mean, median, worst = cells(table, [what], *columns[:2], "median", "worst")
        assert (count, worst) == (len(overhead), pytest.approx(max(overhead)))
        assert mean == pytest.approx(statistics.geometric_mean(overhead))
        assert median == pytest.approx(statistics.median(overhead))
    none = cells(table, ["Anderson: times as fast as torchdeq's"], *columns[:2])
    assert none == [0, None]


def test_layers_are_compared_by_the_time_of_f():
    slow, fast = (problem(n, 2.0, 5.5, 4.0, 11.0, "layer") for n in ("layer-a", "layer-b"))
    fast[0]["f_ms"] = 0.02
    fast[2]["calls"] = 10
    (table, *_) = pages.render(solvers.STUDY, data_of(slow, fast)).grids
    for size, place, evaluations in (("< 0.1 ms", "layer-b", 2.0), (">= 1 ms", "layer-a", 1.0)):
        times = f"layers, f {size}: default times as fast as torchdeq's best, by hindsight"
        assert cells(table, [times], "problems", "worst", "where") == [
            *(1, pytest.approx(4.0 / 5.5), place)
        ]
        fewer = f"layers, f {size}: evaluations of torchdeq's best / the default's"
        assert cells(table, [fewer], "median") == [evaluations]
    assert not any("0.1 to 1 ms" in row[0] and row[1] for row in table.rows if "layers" in row[0])


def test_convergence_is_compared_with_the_best_peer(tables):
    table, columns = tables["Solvers: summary"], ("geometric mean", "worst", "where")
    default = cells(table, ["samples converged / the best peer's, default"], *columns)
    assert default == [pytest.approx((3 / 8) ** 0.5), 3 / 8, "b"]
    best = cells(table, ["samples converged / the best peer's, best of ours"], *columns)
    assert best[:2] == [1, 1]


def test_ratios_have_a_gap_where_the_default_failed(tables):
    table = tables["Solvers: times as fast as torchdeq"]
    assert cells(table, ["a"], "Picard", "torchdeq's best") == [2.0, "plain"]
    columns = "torchdeq's best", "default against it", "overhead of the default"
    assert cells(table, ["b"], *columns) == ["anderson", None, None]


def test_who_converges_is_counted_in_samples(tables):
    table = tables["Solvers: who converges"]
    names = ["Picard", "default", "torchdeq plain", "torchdeq anderson"]
    assert table.columns == ["problem", "samples", *names]
    assert cells(table, ["b"], "samples", *names) == [8, 8, 3, 8, 8]
    assert cells(table, ["all"], "default") == ["68.8 %"]


def test_costs_are_those_of_the_problems_that_were_solved(tables):
    table = tables["Solvers: what they cost beside f"]
    columns = "solved", "overhead", "ops/eval", "reads/eval", "bytes/state"
    assert cells(table, ["default"], *columns) == [1, pytest.approx(5.5 / 5), 10.0, 1.0, 2.0]
    assert cells(table, ["Picard"], *columns[:2]) == [2, pytest.approx(math.sqrt(2.0) / 5)]


def test_the_details_say_what_share_was_reached(tables):
    table = tables["Solvers: all figures"]
    assert len(table.rows) == 8
    assert cells(table, ["b", "default"], "") == ["38 % reached the tolerance"]
    assert cells(table, ["b", "Picard"], "", "bytes/state", "f-samples") == ["", 2.0, 40]


# --- gradients ------------------------------------------------------------------------------------


def step(method, ms, family="torchdeq", error=1e-4, **other):
    row = {"method": method, "family": family, "exact": True, "samples": 8, "reached": 8}
    return row | {"problem": "small", "failed": 0, "error": error, "ms": ms} | other


def test_speed_is_against_the_fastest_accurate_step_of_torchdeq():
    data = data_of(
        [
            step("default", 2.0, "equilibria"),
            step("torchdeq fast", 1.0, error=0.5),
            step("torchdeq right", 5.0),
            step("torchdeq slow", 9.0, failed=1),
        ]
    )
    first, equal, every = pages.render(training.STUDY, data).grids
    assert first.rows[0] == ["small", "right", 5.0, 2.5]
    heads = [row[0] for row in first.rows[1:]]
    assert heads == ["geometric mean, equal tolerance", "worst, equal tolerance"]
    assert first.rows[1][-1] == first.rows[2][-1] == 2.5 and not equal.rows
    assert [row[1] for row in every.rows][:2] == ["torchdeq fast", "default"]  # the fastest first
    said = {row[1]: row[-1] for row in every.rows}
    assert said["torchdeq fast"] == "called exact, and is not"
    assert said["torchdeq slow"] == "backward: says that 1 failed"
    assert said["default"] == ""


def test_at_equal_error_the_bound_decides_who_is_accurate():
    rows = [
        step("default", 2.0, "equilibria", error=9e-4, rtol=1e-4),
        step("torchdeq fast", 1.0, error=2e-3, rtol=1e-6),
        step("torchdeq right", 5.0, error=8e-4, rtol=1e-2, reached=7),
    ]
    rows[0]["bound"] = 1e-3
    _, equal, _ = pages.render(training.STUDY, data_of(rows)).grids
    assert equal.rows == [["small", 2.5, 2.0, "9.0e-04", "1.0e-04", 5.0, "8.0e-04", "1.0e-02"]]


def test_a_method_that_failed_says_why():
    lost = {"failure": "ArithmeticError: no", "exact": True, "reached": None, "failed": None}
    data = data_of([step("default", None, "equilibria", None, **lost)])
    assert common.steps(data, 1e-3)["said"].tolist() == ["ArithmeticError: no"]


# --- for real -------------------------------------------------------------------------------------


@pytest.fixture
def tables_of(measured):
    """Measure a study; the tables of its page."""
    return lambda study, *points, **options: (
        pages.render(study, measured(study, *points, **options)).grids
    )


def test_solvers_are_measured(tables_of, monkeypatch):
    some = [each for each in contestants() if each.name in ("Picard", "torchdeq anderson")]
    monkeypatch.setattr(solvers, "contestants", lambda device, own: some)
    monkeypatch.setattr(solvers, "require_peers", lambda *names: None)
    once = [partial(solvers.solve, rounds=1)]
    factors = {"problem": "linear-symmetric-0.5", "mode": "eager", "precision": "bfloat16"}
    shown = tables_of(solvers.STUDY, [Point(factors=factors, measures=once)])[2]
    assert shown.rows[0][0] == "linear-symmetric-0.5, eager, bfloat16"
    assert shown.rows[0][1:] == [64] * (1 + len(some))


def test_a_layer_is_a_problem_of_both(tables_of, monkeypatch):
    some = [each for each in contestants() if each.name in ("Picard", "default")]
    monkeypatch.setattr(solvers, "contestants", lambda device, own: some)
    monkeypatch.setattr(solvers, "require_peers", lambda *names: None)
    monkeypatch.setattr(common, "require_peers", lambda *names: None)
    name = "layer-tanh-32x64-0.3"
    once = [partial(solvers.solve, rounds=1)]
    (row,) = tables_of(solvers.STUDY, [Point(factors={"problem": name}, measures=once)])[2].rows[:1]
    assert row == [name, 32, 32, 32]
    points = common.points({name: {"layer": name}}, two_ways, rtol=1, rounds=1, bound=1e-3)
    rows = tables_of(training.STUDY, points)[-1].rows
    assert [row[1] for row in rows] == ["Implicit(GMRES)", "JacobianFree"]
    assert float(rows[0][6]) <= 1e-3 < float(rows[1][6]) and rows[1][2] is None


def test_graphs_are_a_batch_of_one():
    case = layer("layer-graph")
    assert case.x.shape == (1, 2000, 32) and not case.coupled
    torch.testing.assert_close(case.cell(case.x, case.x)[0], case.cell(case.x[0], case.x[0]))


def two_ways():
    return [each for each in methods.adjoints() if each.name in ("Implicit(GMRES)", "JacobianFree")]


@pytest.mark.parametrize("name", ["adjoints", "training"])
def test_gradients_are_measured(name, tables_of, monkeypatch):
    monkeypatch.setattr(common, "require_peers", lambda *names: None)
    case = {"width": 5, "batch": 2, "radius": 0.5}
    points = common.points({"tiny": case}, two_ways, rtol=1e-4, rounds=1)
    grids = tables_of(catalog.find(f"bench/{name}"), points)
    rows = next(grid for grid in grids if grid.title.endswith("all figures")).rows
    errors = {
        row[1]: float(next(c for c in row if "e-" in str(c) or "e+" in str(c))) for row in rows
    }
    assert errors["Implicit(GMRES)"] < 1e-2 < errors["JacobianFree"]


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("bench/rules", {"map": ".9 z + b"}),
        ("bench/compile", {"solver": "Picard", "adjoint": "JacobianFree"}),
    ],
)
def test_a_point_is_measured(name, factors, tables_of):
    grids = tables_of(catalog.find(name), only=lambda point: point.factors == factors)
    (row,) = (row for row in grids[0].rows if "not run" not in row)
    assert list(row[: len(factors)]) == list(factors.values())
    if name == "bench/rules":
        assert row[1:] == ["45: 0.97 %"] * 5
    else:
        assert row[2] <= 1 and row[4] < 1e-5  # a graph break at most


class Forked:
    """A process of `launch`, forked from one that has imported torch, which takes seconds."""

    def __init__(self, command, env, **_):
        assert command[:3] == [sys.executable, "-P", processes.__file__]
        self.output = Path(f"output-{env['WORLD_SIZE']}-{env['RANK']}").resolve()
        self.process = forks.Process(target=_begin, args=(command[3:], env, self.output))
        self.process.start()

    def communicate(self):
        self.process.join()
        return self.output.read_text(), ""

    @property
    def returncode(self):
        return self.process.exitcode


def _begin(words, environment, output):
    os.environ.update(environment)
    processes.STEPS, processes.WARM = 3, 1
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    processes.main(words[0], int(words[1]))


def test_two_processes_are_timed_beside_one(tables_of, monkeypatch):
    monkeypatch.setattr(scaling, "ROUNDS", 1)
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=Forked, PIPE=None))
    point = Point(factors={"recipe": "digits", "rows": 16}, measures=[scaling.speeds])
    (row,) = tables_of(scaling.STUDY, [point])[0].rows
    one, two, ratio, low, high, idle = (float(cell) for cell in row[2:])
    assert two / one == pytest.approx(ratio, rel=0.05) and low == high == ratio
    assert 0 <= idle < 100


def test_a_process_that_fails_is_named_with_its_error():
    with pytest.raises(RuntimeError, match=r"nowhere on 1 processes failed: .*nowhere"):
        scaling.launch("nowhere", 4, 1)


def test_digits_are_trained_and_their_memory_measured(tables_of, monkeypatch):
    monkeypatch.setattr(memory, "DEPTHS", (3,))
    recipe = recipes.load("digits", ["--epochs", "1", "--model.width", "16"])
    point = Point(
        factors={"recipe": "digits", "seed": 0},
        measures=[digits.figures, digits.step_memory],
        runs={"run": Training(recipe=recipe, minutes=1)},
    )
    figures, _, depths, _ = tables_of(digits.STUDY, [point])
    (row,) = figures.rows
    assert row[0] == 0 and all(0 <= share <= 100 for share in row[1:4]) and row[4] >= 1
    assert depths.columns == ["evaluations", "deq, MiB", "unrolled, MiB", "checkpointed, MiB"]
    assert depths.rows[0][0] == 3 and all(float(cell) > 0 for cell in depths.rows[0][1:])


def test_means_are_of_several_seeds_alone():
    rows = [
        {"recipe": name, "seed": seed, "accuracy": 0.5 + seed / 10}
        for name, seeds in digits.SEEDS.items()
        for seed in seeds
    ]
    data = Data.of(pd.DataFrame(rows), [{k: r[k] for k in ("recipe", "seed")} for r in rows])
    first, second, *_ = pages.render(digits.STUDY, data).grids
    assert [row[0] for row in first.rows] == [0, 1, 2, "mean"] and first.rows[-1][1] == 60.0
    assert [row[0] for row in second.rows] == [0]


# --- the command ----------------------------------------------------------------------------------


def test_a_missing_peer_is_named_with_what_installs_it(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torchdeq" else real(name)
    )
    context = SimpleNamespace(factors={"problem": "tanh-128x8"}, device="cpu")
    for measure in (partial(solvers.solve, rounds=1), training.STUDY.points("cpu")[0].measures[0]):
        with pytest.raises(MissingPeer, match=r"torchdeq.*pip install 'equilibria\[bench\]'"):
            measure(context)


def test_bench_is_short_for_reproduce(tmp_path, capsys):
    assert main(["bench"]) == 0
    listed = capsys.readouterr().out
    assert "bench/solvers" in listed and "deq/growth" not in listed
    words = ["bench", "rules", "--only", "map=.9 z + b", "--out", str(tmp_path / "o")]
    assert main([*words, "--runs", str(tmp_path / "r")]) == 0
    assert "45: 0.97 %" in capsys.readouterr().out
    assert (tmp_path / "o" / "bench-rules.csv").exists()
    assert main(["bench", "rulez"]) == 1
    assert "did you mean 'bench/rules'?" in capsys.readouterr().err


OWN = """
from dataclasses import dataclass
import equilibria as eq

@dataclass(frozen=True, kw_only=True)
class Mine(eq.Picard):
    pass

@dataclass(frozen=True, kw_only=True)
class Exact(eq.GMRES):
    pass

@dataclass(frozen=True, kw_only=True)
class Rough(eq.Adjoint):
    def solve(self, product, g):
        return list(g)

@dataclass(frozen=True, kw_only=True)
class Needy(Mine):
    order: int
"""


def one_way():
    return [each for each in methods.adjoints() if each.name == "Implicit(Fallback)"]


@pytest.fixture
def bench_own(tmp_path, capsys, monkeypatch):
    """Run a small benchmark with a class of `its_own`; its exit status and output."""
    (tmp_path / "its_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        solvers,
        "contestants",
        lambda *given: [c for c in contestants(*given) if c.name == "default" or c.family == "own"],
    )
    once = [partial(solvers.solve, rounds=1)]
    case = {"width": 5, "batch": 2, "radius": 0.5}
    grids = {
        solvers: [Point(factors={"problem": "linear-symmetric-0.5"}, measures=once)],
        adjoints: common.points({"tiny": case}, one_way, rtol=1e-4, rounds=1),
    }
    for module, points in grids.items():
        small = replace(module.STUDY, points=lambda scale, points=points: points)
        monkeypatch.setattr(module, "STUDY", small)

    def run(*words):
        status = main(["bench", *words])
        said = capsys.readouterr()
        return status, said.out + said.err

    yield run
    sys.modules.pop("its_own", None)


@pytest.mark.parametrize(
    ("study", "name", "default"),
    [
        ("solvers", "Mine", "default"),
        ("adjoints", "Exact", "Implicit(Fallback)"),
        ("adjoints", "Rough", "Implicit(Fallback)"),
        ("adjoints", "Mine", "Implicit(Fallback)"),
    ],
)
def test_a_class_of_ones_own_takes_part(study, name, default, bench_own):
    status, said = bench_own(study, "--own", f"its_own:{name}")
    assert status == 0 and f"its_own:{name} beside {default}" in said
    assert not Path("results").exists()
    join = catalog.find(f"bench/{study}").own
    assert join is not None
    its_study = join(f"its_own:{name}")
    data = runner.collect(its_study, Path(f"runs/own/its_own.{name}/bench-{study}.csv"))
    assert data.rows["family"].tolist() == ["equilibria", "own"]
    *_, table = pages.render(its_study, data).grids
    speed, faults = table.rows[0][-2:]
    assert float(speed) > 0 and faults == "" and None not in table.rows[0]


def test_a_class_of_ones_own_is_measured_again_when_its_module_changes(bench_own, tmp_path):
    words = "solvers", "--own", "its_own:Mine", "--out", "results"
    assert "[1/1]" in bench_own(*words)[1] and "[1/1]" not in bench_own(*words)[1]
    (tmp_path / "its_own.py").write_text(f"{OWN}\nCHANGED = True\n")
    sys.modules.pop("its_own")
    assert "[1/1]" in bench_own(*words)[1]
    assert not list(Path("results").glob("*.csv"))  # they lie in a folder of the class


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("solvers --own its_own:Min", "has no class 'Min'; did you mean 'Mine'?"),
        ("solvers --own its_own:Exact", "its_own:Exact is not a subclass of eq.Solver"),
        ("solvers --own its_own:Needy", "the option 'order' has no default"),
        ("solvers --own nowhere:Mine", "add the folder that holds it to PYTHONPATH"),
        ("solvers --own its_own", "--own expects MODULE:CLASS"),
        ("rules --own its_own:Mine", "no class of yours can take part in bench/rules"),
        ("--own its_own:Mine", "--own expects the name of a benchmark"),
    ],
)
def test_a_class_that_cannot_take_part_is_explained(words, message, bench_own):
    status, said = bench_own(*words.split())
    assert status == 1 and message in said
