"""The page: self-contained, complete, robust to what was not measured."""

import copy
import functools
import math
import re
from html.parser import HTMLParser

import pytest

from equilibria.metric import ACCURACY, LOSS, Metric
from equilibria.run.report import page

pytestmark = pytest.mark.usefixtures("drawn_once")

STATUSES = ("CONVERGED", "MAX_EVALS", "STALLED", "DIVERGED", "NONFINITE")


def solves(mean, converged):
    status = dict.fromkeys(STATUSES, 0.0) | {"CONVERGED": converged, "MAX_EVALS": 1 - converged}
    return {"evals": {"mean": mean, "p50": 8, "p90": 11, "p99": 14, "max": 20}, "status": status}


def run(name="digits", **changes):
    metrics = [
        {
            "epoch": epoch,
            "seconds": 1.5,
            "train": {
                "loss": 2.0 / epoch,
                "accuracy": 1 - 0.5 / epoch,
                "forward": solves(9.0, 0.9),
                "adjoint": solves(7.5, 1.0),
            },
            "test": {
                "loss": 2.2 / epoch,
                "accuracy": 0.98 - 0.5 / epoch,
                "forward": solves(9.5, 1.0),
            },
            "spectral_radius": {"mean": 0.61, "max": 0.83},
        }
        for epoch in (1, 2, 3)
    ]
    memory = [
        {"kind": kind, "evals": depth, "bytes": size * depth + 2**20, "history_bytes": 2**18}
        for kind, size in (("deq", 0), ("unrolled", 2**20), ("checkpointed", 2**14))
        for depth in (5, 80)
    ]
    trace = {
        "evals": [1, 2, 3],
        "p10": [0.1, 0.01, 1e-4],
        "p50": [0.2, 0.02, 1e-3],
        "p90": [0.3, 0.03, 2e-3],
        "max": [0.4, None, 3e-3],
    }
    points = [{"evals": k, "distance": 1 / k, "figure": 0.9} for k in (1, 2)]
    findings = [
        {"topic": "Depth", "severity": "healthy", "sentence": "Depth is used.", "advice": ""},
        {"topic": "Gradient", "severity": "unhealthy", "sentence": "It is off.", "advice": "Mend."},
    ]
    return {
        "name": name,
        "metrics": metrics,
        "evaluation": {
            "accuracy": 0.9731,
            "at": {k: {"accuracy": v} for k, v in (("1", 0.61), ("2", 0.9), ("12", 0.97))},
            "forward": solves(9.5, 1.0),
        },
        "memory": memory,
        "examination": {
            "forward": {"rtol": 1e-3, "trace": trace},
            "depth": {"points": points, "figure": 0.97, "metric": ACCURACY.describe()},
            "findings": findings,
        },
        "recipe": {"description": "A <small> network.", "model": {"width": 32}, "seed": 0},
        "about": {
            "versions": {"torch": "2.13.0"},
            "hardware": "2 CPU cores",
            "parameters": 25994,
            "metrics": [ACCURACY.describe(), LOSS.describe()],
        },
    } | changes


class Elements(HTMLParser):
    """Checks that tags nest, and collects them."""

    VOID = frozenset({"meta", "br", "hr", "link", "img", "input"})

    def __init__(self, html):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def titles(html):
    return re.findall(r"<figure[^>]*>\s*<h3>(.*?)</h3>", html)


ALL = [
    "Loss",
    "Accuracy",
    "Residual against evaluations",
    "Effect of depth",
    "Evaluations in each epoch",
    "Spectral radius",
    "How solves end",
    "Memory of one training step against depth",
]


@functools.cache
def page_of(*names):
    return page([run(name) for name in names])


@pytest.mark.parametrize("names", [("digits",), ("a", "b")], ids=["one", "two"])
def test_page_is_complete_and_needs_nothing_else(names):
    html = page_of(*names)
    assert titles(html) == ALL
    elements = Elements(html)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in elements.tags}
    for _, attributes in elements.tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "://" not in html and "@import" not in html
    assert set(re.findall(r"url\((.)", html)) <= {"#"}


def test_every_colour_follows_the_theme():
    html = page_of("digits")
    drawings = "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    assert not re.search(r"#[0-9a-f]{6}\b(?!\w)", re.sub(r'"#\w+"|url\(#\w+\)', "", drawings))
    used = set(re.findall(r"var\(--([\w-]+)\)", html))
    defined = re.findall(r"--([\w-]+):", html)
    assert used - {"key", "wash", "text"} <= set(defined)
    theme = re.search(r"prefers-color-scheme: dark\) \{(.*?)\n\}", html, re.DOTALL)
    light = set(re.findall(r"--([\w-]+):", html[: theme.start()]))
    assert light == set(re.findall(r"--([\w-]+):", theme[1]))


def test_references_inside_drawings_are_unique():
    html = page_of("a", "b")
    names = re.findall(r'\bid="([^"]+)"', html)
    assert len(names) == len(set(names))
    assert set(re.findall(r"(?:url\(|href=\")#([\w-]+)", html)) <= set(names)


def test_numbers_are_those_of_the_run():
    html = page_of("digits")
    for text in ("97.31 %", "9.5", "7.5", "0.61", "25,994", "2.13.0", "2 CPU cores", "width: 32"):
        assert text in html
    assert "A &lt;small&gt; network." in html


def test_memory_tile_compares_at_the_depth_needed_and_at_the_deepest():
    run_ = run("digits")
    depths = {p["evals"]: p["bytes"] for p in run_["memory"] if p["kind"] == "unrolled"}
    needed = run_["metrics"][-1]["test"]["forward"]["evals"]["p99"]
    near = min(depth for depth in depths if depth >= needed)
    html = page([run_])
    for depth in (near, max(depths)):
        assert f"{depth} times {depths[depth] / 2**20:.1f} MiB" in html


def test_memory_counts_the_states_that_are_kept_from_step_to_step():
    run_ = run("a")
    words = "states kept from step to step"
    assert words not in page([run_])
    run_["metrics"][-1]["reuse"] = {"bytes": 3 * 2**20}
    alone, both = page([run_]), page([run_, run("b")])
    assert words in alone and "3.0 MiB" in alone
    for html in (alone, both):
        assert "4.0 MiB" in html  # 1 MiB of the layer at each depth
    unrolled = [p["bytes"] for p in run_["memory"] if p["kind"] == "unrolled"]
    assert all(f"{size / 2**20:.1f} MiB" in alone for size in unrolled)


def test_findings_have_their_advice():
    html = page_of("digits")
    assert all(said in html for said in ("It is off.", "Mend.", "Depth is used."))


def test_a_metric_of_any_name_is_drawn_as_it_describes_itself():
    """In pixels, better where it is smaller; and each run of a comparison has its own metrics."""
    error = Metric(name="epe", label="end-point error", spec=".3f", unit=" px")
    flow = run("a")
    flow["about"]["metrics"] = [error.describe(), LOSS.describe()]
    flow["evaluation"] = {"epe": 1.25, "at": {"1": {"epe": 4.5}, "12": {"epe": 1.5}}}
    for row in flow["metrics"]:
        for split in ("train", "test"):
            row[split]["epe"] = row[split].pop("accuracy")
    html = page([flow])
    assert "End-point error" in titles(html) and "Accuracy" not in titles(html)
    for text in ("Test end-point error", "1.250 px", "4.500 px", "If the curve falls"):
        assert text in html
    both = page([flow, run("b")])
    assert {"End-point error", "Accuracy"} <= set(titles(both))
    assert "1.250 px" in both and "97.31 %" in both


def test_comparison_shows_what_differs():
    other = run("b", recipe={"model": {"width": 64}, "seed": 0})
    html = page([run("a"), other])
    table = html[html.index("What differs") :]
    table = table[: table.index("</table>")]
    assert "model.width" in table and "64" in table and "seed" not in table
    assert "What differs" not in page_of("a", "b")


def test_settings_that_only_some_recipes_have_are_apart():
    other = run("b", recipe={"model": {"depth": 18, "stem": "cifar"}, "seed": 1})
    html = page([run("a"), other])
    shared, _, partial = html[html.index("What differs") :].partition("Settings that not all")
    partial = partial[: partial.index("</table>")]
    assert "seed" in shared and "model.width" not in shared
    assert "(3)" in partial and "seed" not in partial
    for key in ("model.width", "model.depth", "model.stem"):
        assert key in partial


def test_figures_after_evaluations_that_were_not_made_are_left_out():
    stopped = run()
    stopped["evaluation"]["forward"]["evals"]["max"] = 2
    html = page([stopped])
    table = html[html.index("Effect of depth") :]
    table = table[: table.index("</table>")]
    assert "90.00 %" in table and "97.00 %" not in table


def test_figures_of_the_validation_data_are_called_that():
    given = run(evaluation=None)
    given["about"] = given["about"] | {"eval_split": "valid"}
    for row in given["metrics"]:
        row["valid"] = row.pop("test")
    html = page([given])
    assert "Validation accuracy" in html and "Test accuracy" not in html
    assert "the figures are those of the validation data" in html


def test_bfloat16_that_stalls_is_advised_on_where_no_doctor_was_asked():
    given = run(examination=None)
    given["recipe"] = {"precision": "bf16", "solver": {"rtol": 1e-3}}
    given["evaluation"]["forward"]["status"] |= {"CONVERGED": 0.25, "STALLED": 0.75}
    html = page([given])
    assert "75 % of the solves in bfloat16 ended short of the tolerance of 0.001" in html
    assert "to 0.005 or more, or precision to float32." in html
    given["recipe"]["solver"]["rtol"] = {"hidden": 1e-3, "flow": 0.0}
    assert "ended short of the tolerance of 0.001" in page([given])
    given["recipe"]["solver"]["rtol"] = [1e-2, 0.0]
    assert "ended short of the tolerance" not in page([given])


def test_a_tolerance_for_each_leaf_is_no_tolerance_too_fine_for_float32():
    given = run(examination=None)
    given["recipe"] = {"precision": "float32", "solver": {"rtol": [1e-2, 0.0]}}
    given["evaluation"]["forward"]["status"] |= {"CONVERGED": 0.25, "MAX_EVALS": 0.75}
    assert "ended short of the tolerance" not in page([given])


OPTIONAL = ("evaluation", "memory", "examination", "recipe", "about")
UNMEASURED = {
    "Memory of one training step against depth",
    "Residual against evaluations",
    "Effect of depth",
}


def test_what_was_not_measured_is_left_out():
    absent = {key: value for key, value in run("b").items() if key not in OPTIONAL}
    for bare in (absent, absent | dict.fromkeys(OPTIONAL)):
        assert set(titles(page([bare]))) == set(ALL) - UNMEASURED
    assert titles(page([run("a"), absent])) == ALL


def test_an_adjoint_that_solves_nothing():
    given = run()
    for row in given["metrics"]:
        row["train"]["adjoint"] = {"evals": None, "status": None}
    html = page([given])
    assert titles(html) == ALL
    assert "backward, training" not in html and "Backward solve" not in html


def test_a_run_that_broke_is_still_shown():
    given = copy.deepcopy(run())
    for row in given["metrics"][1:]:
        row["train"]["loss"] = math.nan
        row["test"]["loss"] = math.inf
        row["spectral_radius"] = {"mean": None, "max": None}
    assert titles(page([given])) == ALL


def test_one_epoch():
    given = run()
    given["metrics"] = given["metrics"][:1]
    assert titles(page([given])) == ALL


def test_the_same_numbers_give_the_same_page(drawn_once):
    before = page_of("digits")
    drawn_once.clear()
    assert page([run()]) == before


def test_no_run_is_an_error():
    with pytest.raises(ValueError, match="at least one run"):
        page([])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, 0.0, None])
def test_a_run_whose_residuals_cannot_be_drawn_still_has_a_page(value):
    broken = run("a")
    trace = broken["examination"]["forward"]["trace"]
    for name in ("p10", "p50", "p90", "max"):
        trace[name] = [value] * len(trace[name])
    assert "Residual against evaluations" not in titles(page([broken]))
    assert "Residual against evaluations" in titles(page([broken, run("b")]))


@pytest.mark.parametrize("penalty", [[0.3, 0.1, None], [0.3, 0.0, 0.1], [None, None, 0.2]])
def test_a_penalty_is_drawn_where_there_was_one(penalty):
    held = run("b")
    for row, value in zip(held["metrics"], penalty, strict=True):
        row["regulariser"] = {"penalty": value, "applied": 0.5, "gamma": 2.0}
    for runs in ([held], [run("a"), held]):
        assert "Jacobian penalty" in titles(page(runs))
    for row in held["metrics"]:
        row["regulariser"]["penalty"] = None
    assert "Jacobian penalty" not in titles(page([held]))
