"""The content of the page, its order and its wording."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from equilibria.run.report.classes import classes
from equilibria.run.report.gallery import gallery
from equilibria.run.report.reading import Run, pick, solves
from equilibria.run.report.sections import sections
from equilibria.run.report.summary import comparison, differences, remarks, tiles, verdicts
from equilibria.run.report.words import flat


def page(runs: Sequence[Run]) -> str:
    """One HTML page about a run, or one that compares several, without any external resource.

    Args:
        runs: for each run a dictionary with
            `name`: how the page calls it;
            `metrics`: a list with one dictionary an epoch: `epoch`, `seconds`, `train` and the
            split that was evaluated (each the figures by name, `forward`, in training `adjoint`
            too; those have `evals` with `mean` and `p99`, and `status`, a share by name),
            `spectral_radius` (`mean`, `max`), how many units were read, and where states are kept
            from step to step `reuse` (their `bytes`);
            and, where they were measured,
            `evaluation`: on the test data the figures, `at` (by evaluations, then by name),
            `budgets`, `baseline`, `forward`;
            `memory`: a list of `kind` (deq, unrolled, checkpointed, explicit), `evals`, `bytes`,
            `history_bytes`;
            `gradients`: the adjoints compared on a batch, as JSON;
            `depth`: what answers owe to the evaluations of their solves, as JSON;
            `examination`: the doctor's, as JSON, its worst finding first; or `unexamined`, why
            there is none;
            `seen`: `labels` and perhaps `colors` of the classes that the run tells apart, whose
            `confusion` is in `evaluation`;
            `gallery`: test samples, as `run.gallery.hang` has them; or `unpictured`, why there
            are none;
            `recipe`: a nested dictionary, with `epochs`;
            `about`: versions, hardware and what else the run recorded: its `metrics`, the primary
            one first, each as `Metric.describe` has it; `unit`; `eval_split`.
            A number that is missing or not finite is left out of its plot. What is said of
            solutions depends on the shares of solves that converged.

    Raises:
        ValueError: no run.
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    runs = [_name_held(run) for run in runs]
    return _render(
        runs=runs,
        single=len(runs) == 1,
        title=runs[0]["name"] if len(runs) == 1 else f"{len(runs)} runs compared",
        description=pick(runs[0], "recipe", "description") if len(runs) == 1 else None,
        solving=[run["name"] for run in runs if solves(run)],
        remarks=[(run["name"], said) for run in runs if (said := remarks(run))],
        tiles=tiles(runs[0]) if len(runs) == 1 else [],
        comparison=comparison(runs) if len(runs) > 1 else None,
        differences=differences(runs) if len(runs) > 1 else None,
        examined=[
            (run["name"], run["examination"]["findings"]) for run in runs if run.get("examination")
        ],
        verdicts=verdicts(runs),
        gallery=gallery(runs[0].get("gallery")) if len(runs) == 1 else None,
        classes=classes(runs[0]) if len(runs) == 1 else None,
        sections=sections(runs),
        recipes=[
            (run["name"], yaml.safe_dump(run["recipe"], sort_keys=False, allow_unicode=True))
            for run in runs
            if run.get("recipe")
        ],
        abouts=[(run["name"], flat(_plain(run["about"]))) for run in runs if run.get("about")],
    )


def _render(**values: Any) -> str:
    """The page that the template makes of `values`: escaped, and strict about what it asks for."""
    environment = Environment(
        loader=PackageLoader("equilibria.run.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = lambda drawing: Markup(drawing.svg)
    assert environment.loader is not None
    style, _, _ = environment.loader.get_source(environment, "page.css")
    return environment.get_template("page.html").render(style=Markup(style), **values)


def _name_held(run: Run) -> Run:
    """The run with the figures of the split that follows each epoch under one name, `held`."""
    older = "valid" if any("valid" in row for row in run["metrics"]) else "test"
    name = pick(run, "about", "eval_split") or older
    metrics = [{**row, "held": row.get(name)} for row in run["metrics"]]
    return {**run, "metrics": metrics, "eval_split": name}


def _plain(about: Mapping[str, Any]) -> dict[str, Any]:
    """What a run recorded, without the descriptions that are for this page."""
    left_out = ("metrics", "place", "segments", "command")
    words = [str(word) for word in about.get("command") or ()]
    command = {"command": f"equilibria train {shlex.join(words)}"} if words else {}
    return {**command, **{key: value for key, value in about.items() if key not in left_out}}
