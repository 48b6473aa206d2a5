"""Train a solver for a run's own equilibrium layer: a small network that guesses where a solve
begins and how an Anderson step mixes. No labels are needed; some training inputs are solved by a
classical solver, and the learned one learns from the equilibria. It is then compared with the
classical solvers on batches that it has not seen, and where it takes at most nine tenths of the
evaluations of the best of them, it is written to neural.safetensors and neural.json in the run
folder; else nothing is. `--solver neural` of evaluate, generate, predict and doctor solves by it.

With --tune the run's learned solver is trained further, as a rule on other inputs, --data, which
need no labels. A run that is trained further has other weights, and needs another learned solver.

The exit status is 0 also where the learned solver is not worth it, and 1 after an error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from equilibria.cli.output import Output
from equilibria.cli.parser import Parser, UserError
from equilibria.cli.status import DONE
from equilibria.models import EquilibriumModel
from equilibria.nn.distilling import Distillation, Outcome, distil
from equilibria.nn.neural import Learned
from equilibria.train import neural, run
from equilibria.train.device import device


def main(argv: Sequence[str]) -> int:
    """Run `equilibria distil` with the words `argv` and return the exit status."""
    usual = Distillation()
    parser = Parser("distil", __doc__)
    parser.add_argument("run", type=Path, help="run folder, for example runs/mnist")
    parser.add_argument(
        "--batches", type=int, default=24, help="batches of inputs to solve (default: 24)"
    )
    parser.add_argument("--batch-size", type=int, help="rows of a batch (default: the recipe's)")
    parser.add_argument(
        "--start-steps",
        type=int,
        default=usual.start_steps,
        help=f"steps of the start by itself (default: {usual.start_steps})",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=usual.steps,
        help=f"steps through unrolled solves (default: {usual.steps})",
    )
    parser.add_argument(
        "--horizon",
        type=int,
        default=usual.horizon,
        help="evaluations of an unrolled solve, after which Anderson's weights are used (default: "
        f"{usual.horizon})",
    )
    parser.add_argument(
        "--mixer",
        type=Literal["gram", "pooled", "none"],
        default="gram",
        help="learned mixing weights: gram (from the Gram matrix of residuals), pooled (the "
        "paper's), or none (default: gram)",
    )
    parser.add_argument(
        "--budget", type=int, help="parameters of the start (default: 3 % of the model's)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: 0)")
    parser.add_argument("--tune", action="store_true", help="go on with the run's learned solver")
    parser.add_argument(
        "--data", type=str, help="inputs to learn from in place of the run's training data"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a learned solver of the run"
    )
    parser.add_data_dir()
    parser.add_device(usual="cpu")
    arguments = parser.parse_args(list(argv))
    folder = run.Folder(arguments.run)
    how = _how(arguments)
    loaded = run.load(arguments.run, data_dir=arguments.data_dir, other=arguments.data)
    begin = _begin(arguments, folder, loaded)
    model = loaded.model.to(device(arguments.device))
    assert isinstance(model, EquilibriumModel)
    console = Output(quiet=arguments.quiet)
    how = neural.budgeted(how, model)
    began = time.perf_counter()
    with console.status("Collecting inputs ..."):
        inputs = neural.inputs_of(
            model,
            loaded.data,
            batches=arguments.batches,
            batch_size=arguments.batch_size or loaded.recipe.rows,
            seed=arguments.seed,
            other=loaded.other is not None,
        )
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=console.quiet or not console.is_terminal,
    ) as bar:
        shown = bar.add_task("Solving by the classical solver", total=None)

        def tell(done: int, total: int, loss: float) -> None:
            words = f"Learning, loss {loss:.3f}"
            bar.update(shown, completed=done, total=total, description=words)

        outcome = distil(model.deq, inputs, how, begin=begin, progress=tell)
    seconds = time.perf_counter() - began
    _show(outcome, model, console)
    trained = sum(record.get("seconds", 0.0) for record in loaded.metrics)
    share = f", {100 * seconds / trained:.0f} % of the training's" if trained else ""
    console.print(f"It took {seconds:.0f} s{share}.", highlight=False)
    if not outcome.worth:
        console.print(f"{outcome} Nothing was written.", soft_wrap=True, highlight=False)
        return DONE
    about = {
        "distillation": asdict(how),
        "seconds": seconds,
        "contest": {
            name: {"evals": each.mean, "converged": each.converged, "seconds": each.seconds}
            for name, each in outcome.all.items()
        },
    }
    path = neural.save(folder, outcome, about)
    console.done(
        f"{outcome} Written to {path}. Next: equilibria evaluate {folder.path} --solver neural",
        path,
    )
    return DONE


def _how(arguments: Any) -> Distillation:
    for name in ("batches", "batch_size", "budget"):
        value, least = getattr(arguments, name), 2 if name == "batches" else 1
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} must be {least} or more; got {value}")
    try:
        return Distillation(
            start_steps=arguments.start_steps,
            steps=arguments.steps,
            horizon=arguments.horizon,
            mixer=None if arguments.mixer == "none" else arguments.mixer,
            budget=arguments.budget,
            seed=arguments.seed,
        )
    except ValueError as error:
        raise UserError(f"--{str(error).replace('_', '-', 1)}") from None


def _begin(arguments: Any, folder: run.Folder, loaded: run.Run) -> Learned | None:
    """The weights to go on from.

    Raises:
        UserError: the run has no equilibrium layer; it has a learned solver, which is neither to be
            replaced nor to be tuned; or it has none to tune.
    """
    model = loaded.model
    if not isinstance(model, EquilibriumModel):
        raise UserError(
            f"{folder.path} is the run of an explicit network, {loaded.recipe.model.title}: there "
            "is no equilibrium to solve for"
        )
    if arguments.tune:
        layer = neural.attach(folder, model).deq
        learned, layer.neural, layer.eval_solver = layer.neural, None, None
        return learned
    if neural.known(folder) and not arguments.overwrite:
        raise UserError(
            f"{folder.path} has a learned solver already: go on with it (--tune), or replace it "
            "(--overwrite)"
        )
    return None


def _show(outcome: Outcome, model: EquilibriumModel, console: Output) -> None:
    table = Table(
        "solver", "evaluations", "converged", "time", title="Batches that it has not seen"
    )
    for name, each in outcome.all.items():
        table.add_row(
            name, f"{each.mean:.2f}", f"{100 * each.converged:.1f} %", f"{each.seconds:.3f} s"
        )
    console.print(table)
    learned = outcome.learned.learned
    assert learned is not None
    own = sum(p.numel() for p in learned.parameters())
    size = sum(p.numel() for p in model.parameters()) - (own if model.deq.neural is not None else 0)
    kept = "a start and a mixer" if outcome.mixes else "a start"
    console.print(
        f"Learned: {kept}, {own:,} parameters, {100 * own / size:.1f} % of the model's {size:,}.",
        highlight=False,
    )
