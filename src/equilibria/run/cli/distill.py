"""Train a solver for a run's own equilibrium layer: a small network that predicts the initial guess
and the mixing weights of Anderson's method. No labels are needed: some training inputs are solved
by a classical solver, and the network is trained on the equilibria. It is then compared with
classical solvers on held-out batches. If it takes at most nine tenths of the evaluations of the
best of these, it is written to neural.safetensors and neural.json in the run folder; otherwise
nothing is written. `--solver neural` of evaluate, generate, predict and doctor uses it.

With --tune the run's learned solver is trained further, usually on other inputs, --data, which
need no labels: for a network on images, any folder of images. Its architecture is kept. After
further training of the run itself, whose weights then change, a new learned solver is needed.

The exit status is 0 even if the learned solver is not worth using, and 1 after an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

from rich.table import Table
from torch import Tensor

from equilibria.learned import Distillation, Learned, Outcome, distill
from equilibria.run import neural, run
from equilibria.run.cli.output import Output, progress_bar, say
from equilibria.run.cli.parser import Parser, UserError, check_least, check_seed
from equilibria.run.cli.status import DONE
from equilibria.run.models import EquilibriumModel
from equilibria.run.processes import device
from equilibria.words import percent


def main(argv: Sequence[str]) -> int:
    """Run `equilibria distill` with the words `argv` and return the exit status."""
    arguments = _parser().parse_args(list(argv))
    folder = run.Folder(arguments.run)
    folder.check_writable()
    check_seed(arguments.seed)
    how = _how(arguments)
    unlabeled = _find_unlabeled(arguments, folder)
    loaded = run.load(
        folder.path,
        data=unlabeled is None,
        data_dir=arguments.data_dir,
        other=arguments.data if unlabeled is None else None,
    )
    begin = _begin(arguments, folder, loaded)
    model = loaded.model.to(device(arguments.device))
    assert isinstance(model, EquilibriumModel)
    console = Output(quiet=arguments.quiet)
    how = neural.set_budget(how, model)
    began = time.perf_counter()
    with console.status("Collecting inputs ..."):
        inputs = _inputs(arguments, loaded, model, unlabeled)
    if len(inputs) < 2:
        raise UserError(
            f"the data give {len(inputs)} batches, but at least 2 are needed, one for training and "
            "one for the comparison: use more data, or a smaller --batch-size"
        )
    with progress_bar(console) as bar:
        shown = bar.add_task("Solving with the classical solver", total=None)

        def tell(done: int, total: int, loss: float) -> None:
            words = f"Training, loss {loss:.3f}"
            bar.update(shown, completed=done, total=total, description=words)

        try:
            outcome = distill(model.deq, inputs, how, begin=begin, progress=tell)
        except (ValueError, FloatingPointError) as error:
            raise UserError(f"{folder.path}: {error}") from None
    seconds = time.perf_counter() - began
    _show(outcome, model, console)
    trained = sum(record.get("seconds", 0.0) for record in loaded.metrics)
    share = f", {percent(seconds / trained)} of the run's training time" if trained else ""
    console.print(f"It took {seconds:.0f} s{share}.", highlight=False)
    if not outcome.worth:
        kept = ", and the previous learned solver is kept" if neural.exists(folder) else ""
        say(console, f"{outcome} Nothing was written{kept}.")
        return DONE
    path = neural.save(folder, outcome, _describe(how, outcome, seconds))
    console.finish(
        f"{outcome} Written to {path}. Next: equilibria evaluate {folder.path} --solver neural",
        path,
    )
    return DONE


def _parser() -> Parser:
    usual = Distillation()
    parser = Parser("distill", __doc__)
    parser.add_argument("run", type=Path, help="run folder, for example runs/mnist")
    parser.add_number("--batches", 24, "number of batches to solve")
    parser.add_argument("--batch-size", type=int, help="batch size (default: the recipe's)")
    parser.add_number(
        "--start-steps", usual.start_steps, "training steps of the initial guess alone"
    )
    parser.add_number("--steps", usual.steps, "training steps through unrolled solves")
    parser.add_number(
        "--horizon",
        usual.horizon,
        "evaluations per unrolled solve; later ones use Anderson's weights",
    )
    parser.add_argument(
        "--mixer",
        type=Literal["gram", "pooled", "none"],
        help="learned mixing weights: gram (from the Gram matrix of residuals), pooled (the "
        "paper's), or none (default: gram)",
    )
    parser.add_argument(
        "--budget", type=int, help="parameters of the initial guess (default: 3 % of the model's)"
    )
    parser.add_number("--seed", 0, "random seed")
    parser.add_argument(
        "--tune", action="store_true", help="train the run's learned solver further"
    )
    parser.add_argument(
        "--data",
        type=str,
        help="unlabelled inputs to train on instead of the run's training data: a folder of "
        "images, or whatever the run's task accepts; named data sets are searched in --data-dir",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the run's learned solver")
    parser.add_data_dir()
    parser.add_device(usual="cpu")
    return parser


def _how(arguments: Any) -> Distillation:
    check_least(arguments, batches=2, batch_size=1, budget=1)
    if arguments.tune:
        for name in ("mixer", "budget", "overwrite"):
            if getattr(arguments, name):
                raise UserError(
                    f"--{name} and --tune exclude each other: the existing learned solver keeps "
                    "its architecture"
                )
    try:
        return Distillation(
            start_steps=arguments.start_steps,
            steps=arguments.steps,
            horizon=arguments.horizon,
            mixer=None if arguments.mixer == "none" else arguments.mixer or "gram",
            budget=arguments.budget,
            seed=arguments.seed,
        )
    except ValueError as error:
        raise UserError(f"--{str(error).replace('_', '-', 1)}") from None


def _find_unlabeled(arguments: Any, folder: run.Folder) -> Iterator[Tensor] | None:
    """The inputs to train on, where they have no labels; None for inputs of a task's data."""
    if arguments.data is None or not folder.path.is_dir():
        return None
    recipe = folder.read_recipe()
    return recipe.task.read_inputs(
        folder.path,
        arguments.data,
        batches=arguments.batches,
        size=arguments.batch_size or recipe.rows,
        seed=arguments.seed,
    )


def _inputs(
    arguments: Any,
    loaded: run.Run,
    model: EquilibriumModel,
    unlabeled: Iterator[Tensor] | None,
) -> list[tuple[Any, ...]]:
    """The layer's inputs to train on, batch by batch."""
    if unlabeled is not None:
        return neural.inputs_from(model, unlabeled)
    batches, size = arguments.batches, arguments.batch_size or loaded.recipe.rows
    other = loaded.other is not None
    options: Any = {"batches": batches, "batch_size": size, "seed": arguments.seed, "other": other}
    try:
        return neural.inputs_of(model, loaded.data, **options)
    except ValueError as error:  # a batch that is larger than the data
        raise UserError(str(error)) from None


def _describe(how: Distillation, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """What is written beside the weights."""
    solver: Any = how.teacher
    teacher = None if solver is None else {"name": type(solver).__name__, **asdict(solver)}
    return {
        "distillation": {**asdict(how), "teacher": teacher},
        "samples": outcome.samples,
        "dropped": outcome.dropped,
        "seconds": seconds,
        "contest": {
            name: {"evals": each.mean, "converged": each.converged, "seconds": each.seconds}
            for name, each in outcome.all.items()
        },
    }


def _begin(arguments: Any, folder: run.Folder, loaded: run.Run) -> Learned | None:
    """The weights to continue from.

    Raises:
        UserError: the run has no equilibrium layer; it has a learned solver, but neither
            --overwrite nor --tune is given; or it has none to tune.
    """
    model = loaded.model
    if not isinstance(model, EquilibriumModel):
        raise UserError(
            f"{folder.path} is a run of an explicit network, {loaded.recipe.model.title}: there "
            "is no equilibrium to solve for"
        )
    if model.deq.coupled:
        raise UserError(
            f"a learned solver needs independent samples, but the rows of the layer of "
            f"{folder.path}, {loaded.recipe.model.title}, are coupled"
        )
    if arguments.tune:
        layer = neural.attach(folder, model).deq
        learned, layer.neural, layer.eval_solver = layer.neural, None, None
        return cast(Learned, learned)
    if neural.exists(folder) and not arguments.overwrite:
        raise UserError(
            f"{folder.path} already has a learned solver: train it further (--tune), or replace it "
            "(--overwrite)"
        )
    return None


def _show(outcome: Outcome, model: EquilibriumModel, console: Output) -> None:
    table = Table("solver", "evaluations", "converged", "time", title="Held-out batches")
    for name, each in outcome.all.items():
        table.add_row(name, f"{each.mean:.2f}", percent(each.converged), f"{each.seconds:.3f} s")
    console.print(table)
    learned = outcome.learned.learned
    assert learned is not None
    own = sum(p.numel() for p in learned.parameters())
    size = sum(p.numel() for p in model.parameters()) - (own if model.deq.neural is not None else 0)
    kept = "an initial guess and a mixer" if outcome.mixes else "an initial guess"
    console.print(
        f"Learned: {kept}, {own:,} parameters, {percent(own / size)} of the model's {size:,}.",
        highlight=False,
    )
