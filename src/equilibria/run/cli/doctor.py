"""Examine a run on a batch of its test samples: do its solves converge, is the Jacobian well
behaved, does the answer depend on the start, is the gradient correct, is the depth used? Reports
what is healthy, what is not and what to change. The figures are written to doctor.json in the run
folder, where `equilibria report` finds them. The exit status is 3 if anything is unhealthy, 1 after
an error, and otherwise 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from equilibria import files
from equilibria.metric import Metric
from equilibria.nn.using import layers
from equilibria.run import examination as visit
from equilibria.run import run
from equilibria.run.cli.option_words import as_options
from equilibria.run.cli.options import add_solver, solve_by
from equilibria.run.cli.output import Output, figures_table, say
from equilibria.run.cli.parser import Parser, check_least, check_seed
from equilibria.run.cli.status import DONE, UNHEALTHY
from equilibria.run.processes import device
from equilibria.run.weights import checksum
from equilibria.stability import Examination
from equilibria.stability.comparison import recipe_of
from equilibria.stability.examination import share_converged
from equilibria.stability.examine import STAGES, Progress
from equilibria.words import plural

FILE = "doctor.json"
STYLE = {"healthy": "green", "watch": "yellow", "unhealthy": "bold red"}


def main(argv: Sequence[str]) -> int:
    """Run `equilibria doctor` with the words `argv` and return the exit status."""
    parser = Parser("doctor", __doc__)
    parser.add_argument("run", type=str, help="run folder, for example runs/digits")
    parser.add_argument(
        "--samples",
        type=int,
        help=f"test samples to examine (default: {visit.SAMPLES}; {visit.SEQUENCES} sequences)",
    )
    parser.add_number("--starts", 4, "alternative starts to solve from")
    parser.add_number("--seed", 0, "seed of the starts")
    add_solver(parser)
    parser.add_data_dir()
    parser.add_device(usual="cpu")
    arguments = parser.parse_args(list(argv))
    check_least(arguments, samples=1, starts=1)
    check_seed(arguments.seed)
    where = device(arguments.device)
    run.Folder(Path(arguments.run)).check_writable()
    loaded = run.load(arguments.run, data_dir=arguments.data_dir)
    solve_by(arguments.solver, loaded)
    console = Output(quiet=arguments.quiet)
    examination = examine(
        loaded,
        samples=arguments.samples,
        starts=arguments.starts,
        seed=arguments.seed,
        device=where,
        quiet=arguments.quiet,
    )
    (layer,) = layers(loaded.model).values()
    methods = {"solver": layer.eval_solver or layer.solver, "adjoint": layer.adjoint}
    show(examination, console, {name: recipe_of(each) for name, each in methods.items()})
    if (precision := loaded.recipe.precision) != "float32":
        say(console, f"The run trained in {precision} and was examined in float32.", "yellow")
    path = loaded.folder / FILE
    console.finish(f"Written to {path}. Next: equilibria report {loaded.folder}", path)
    return UNHEALTHY if examination.severity == "unhealthy" else DONE


def examine(loaded: run.Run, *, quiet: bool = False, **options: Any) -> Examination:
    """Examine a run and write doctor.json; see `run.examination.examine` for the options.

    The stages are shown on standard error, unless `quiet`.
    """
    with _show_stages(f"Examining {loaded.folder}", quiet) as progress:
        examination = visit.examine(loaded, progress=progress, **options)
    weights = checksum(run.Folder(loaded.folder).weights)
    files.write_json(loaded.folder / FILE, {"weights": weights, **examination.json()})
    return examination


@contextmanager
def _show_stages(what: str, quiet: bool) -> Iterator[Progress]:
    """Show each stage as it begins: in one line of a terminal that changes, else a line each."""
    console = Output(stderr=True, quiet=quiet)

    def line(stage: str) -> Text:
        return Text(f"{what}: {STAGES.index(stage) + 1} of {len(STAGES)}, {stage} ...")

    if not console.is_terminal:
        yield lambda stage: console.print(line(stage), soft_wrap=True)
        return
    with console.status(Text(f"{what} ...")) as status:
        yield lambda stage: status.update(line(stage))


def show(examination: Examination, console: Console, methods: Mapping[str, str]) -> None:
    """Print the findings, then the figures behind them, `methods` as a recipe has them first."""
    findings = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    for finding in examination.findings:
        said = Text(finding.sentence)
        if finding.advice:
            said.append(f"\n{as_options(finding.advice)}", style="italic")
        style = STYLE[finding.severity]
        findings.add_row(Text(finding.severity, style), Text(finding.topic, "bold"), said)
    console.print(findings)
    samples = plural(examination.samples, "sample")
    rows = (*methods.items(), *_figures(examination))
    console.print(figures_table(f"{samples} of {examination.entries} entries", rows))


def _figures(e: Examination) -> Iterator[tuple[str, str]]:
    """What was measured, as names and text; a figure that does not exist is left out."""
    share, evals, jacobian = share_converged(e), e.forward.evals, e.jacobian
    radius, solved, ritz = jacobian.spectral_radius, jacobian.solved, jacobian.ritz
    rows = [
        (
            "evaluations: mean, median, 90 %, max",
            "{:.1f}, {:.0f}, {:.0f}, {:.0f}",
            (evals.mean, evals.p50, evals.p90, evals.max),
        ),
        ("spectral radius: mean, max", "{:.3f}, {:.3f}", (radius.mean, radius.max)),
    ]
    if 0 < share < 1:
        rows.append(
            ("the same of what converged: mean, max", "{:.3f}, {:.3f}", (solved.mean, solved.max))
        )
    if ritz is not None and share == 1:
        name = "the same from the solver's Ritz values"
        rows.append((name, "{:.3f}, {:.3f}", (ritz.mean, ritz.max)))
    rows += [
        ("Frobenius norm of the Jacobian: mean", "{:.3f}", (jacobian.norm.mean,)),
        ("distance between answers: max", "{:.1e}", (e.starts.distance.max,)),
    ]
    if e.gradient.compared:
        name = f"gradient of the {e.gradient.of}: cosine and length ratio to the exact one"
        rows.append((name, "{:.5f}, {:.4f}", (e.gradient.cosine, e.gradient.norm_ratio)))
    if (bound := e.gradient.bound) is not None:
        sigma, error, measured = bound.sigma_min, bound.error, bound.measured
        name = "smallest singular value of I - J, estimated from above: mean, median"
        rows.append((name, "{:.3f}, {:.3f}", (sigma.mean, sigma.p50)))
        name = "error of the adjoint, estimated bound: median, 90 %"
        rows.append((name, "{:.1e}, {:.1e}", (error.p50, error.p90)))
        name = "the same, measured: median, 90 %"
        rows.append((name, "{:.1e}, {:.1e}", (measured.p50, measured.p90)))
    for name, form, values in rows:
        if all(map(math.isfinite, values)):
            yield name, form.format(*values)
    metric = Metric(**e.depth.metric)
    where = "at the solution" if share == 1 else "where the solver stops"
    figures = [(f"after {plural(p.evals, 'evaluation')}", p.figure) for p in e.depth.points]
    for when, figure in (*figures, (where, e.depth.figure)):
        if figure is not None and math.isfinite(figure):
            yield f"{metric.label} {when}", metric.format(figure)
