"""Examine a run on a batch of its test samples: do its solves converge, is the Jacobian at the
solution well behaved, does the answer depend on the start, is the gradient correct, is the depth
used? Reports what is healthy, what is not and what to change. The figures are written to
doctor.json in the run folder, where `equilibria report` finds them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from equilibria.cli.parser import Parser, UserError
from equilibria.metric import Metric
from equilibria.stability import Examination
from equilibria.train import examination as visit
from equilibria.train import files, run

FILE = "doctor.json"
STYLE = {"healthy": "green", "watch": "yellow", "unhealthy": "bold red"}


def main(argv: Sequence[str]) -> None:
    """Run `equilibria doctor` with the words `argv`."""
    parser = Parser("doctor", __doc__)
    parser.add_argument("run", type=str, help="run folder, for example runs/digits")
    parser.add_argument(
        "--samples",
        type=int,
        help=f"test samples to examine (default: {visit.SAMPLES}; {visit.SEQUENCES} sequences)",
    )
    parser.add_argument(
        "--starts", type=int, default=4, help="alternative starts to solve from (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the starts (default: 0)")
    parser.add_data_dir()
    arguments = parser.parse_args(list(argv))
    for option in ("samples", "starts"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UserError(f"--{option} must be 1 or more; got {value}")
    loaded = run.load(arguments.run, data_dir=arguments.data_dir)
    console = Console()
    with console.status("Examining ..."):
        examination = examine(
            loaded, samples=arguments.samples, starts=arguments.starts, seed=arguments.seed
        )
    show(examination, console)
    precision = loaded.recipe.precision
    if precision != "float32":
        console.print(
            f"The run trained in {precision} and was examined in float32. A solve in {precision} "
            "can end above its tolerance: metrics.jsonl has the share of each status in training.",
            style="yellow",
        )
    path = loaded.folder / FILE
    console.print(
        f"Written to {path}. Next: equilibria report {loaded.folder}", soft_wrap=True, markup=False
    )


def examine(
    loaded: run.Run, *, samples: int | None = None, starts: int = 4, seed: int = 0
) -> Examination:
    """Examine a run and write doctor.json; see `train.examination.examine`."""
    examination = visit.examine(loaded, samples=samples, starts=starts, seed=seed)
    files.write_json(loaded.folder / FILE, examination.json())
    return examination


def show(examination: Examination, console: Console) -> None:
    """Print the findings, then the figures behind them."""
    e, evals, radius = examination, examination.forward.evals, examination.jacobian.spectral_radius
    findings = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    for finding in e.findings:
        said = Text(finding.sentence)
        if finding.advice:
            said.append(f"\n{finding.advice}", style="italic")
        style = STYLE[finding.severity]
        findings.add_row(Text(finding.severity, style), Text(finding.topic, "bold"), said)
    console.print(findings)

    figures = Table("figure", "value", title=f"{e.samples} samples of {e.entries} entries")
    figures.add_row("solver", e.solver)
    figures.add_row("adjoint", e.adjoint)
    figures.add_row(
        "evaluations: mean, median, 90 %, max",
        f"{evals.mean:.1f}, {evals.p50:.0f}, {evals.p90:.0f}, {evals.max:.0f}",
    )
    figures.add_row("spectral radius: mean, max", f"{radius.mean:.3f}, {radius.max:.3f}")
    if (ritz := e.jacobian.ritz) is not None:
        figures.add_row(
            "the same from the solver's Ritz values", f"{ritz.mean:.3f}, {ritz.max:.3f}"
        )
    figures.add_row("Frobenius norm of the Jacobian: mean", f"{e.jacobian.norm.mean:.3f}")
    figures.add_row("distance between answers: max", f"{e.starts.distance.max:.1e}")
    figures.add_row(
        "gradient: cosine and length ratio to the exact one",
        f"{e.gradient.cosine:.5f}, {e.gradient.norm_ratio:.4f}",
    )
    if (bound := e.gradient.bound) is not None:
        figures.add_row(
            "smallest singular value of I - J: mean, median",
            f"{bound.sigma_min.mean:.3f}, {bound.sigma_min.p50:.3f}",
        )
        figures.add_row(
            "error of the adjoint, bound: median, 90 %",
            f"{bound.error.p50:.1e}, {bound.error.p90:.1e}",
        )
        figures.add_row(
            "the same, measured: median, 90 %",
            f"{bound.measured.p50:.1e}, {bound.measured.p90:.1e}",
        )
    metric = Metric(**e.depth.metric)
    for point in e.depth.points:
        if point.figure is not None:
            after = "1 evaluation" if point.evals == 1 else f"{point.evals} evaluations"
            figures.add_row(f"{metric.label} after {after}", metric.format(point.figure))
    if e.depth.figure is not None:
        solved = e.forward.status["CONVERGED"] == 1.0
        where = "at the solution" if solved else "where the solver stops"
        figures.add_row(f"{metric.label} {where}", metric.format(e.depth.figure))
    console.print(figures)
