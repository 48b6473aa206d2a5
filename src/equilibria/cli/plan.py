"""Compute, without access to the GPUs, which batch of a recipe fits on them and how fast it trains.

Nothing of the model's size is allocated: a training step is traced on tensors with shapes but no
data. Every figure is labelled computed, measured, given or assumed. Every key of the recipe is also
an option, as for `train`. Data sets of known size (WikiText, Penn Treebank, CIFAR, MNIST, ImageNet)
are not read; other data are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial

from rich import box
from rich.table import Table

from equilibria.cli.output import Output
from equilibria.cli.parser import Parser, UserError, named_data
from equilibria.train import device as devices
from equilibria.train import recipe as recipes
from equilibria.train.config import as_chosen
from equilibria.train.hardware import GPUS
from equilibria.train.plan import MFU, Figure, Plan, plan
from equilibria.train.plan_measure import measure

UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def main(argv: Sequence[str]) -> None:
    """Run `equilibria plan` with the words `argv`."""
    parser = _parser()
    own, overrides = parser.split(argv)
    arguments = parser.parse_args(own)
    if arguments.gpus < 1 or arguments.per_machine < 1:
        option = "--gpus" if arguments.gpus < 1 else "--per-machine"
        given = min(arguments.gpus, arguments.per_machine)
        raise UserError(f"{option} must be 1 or more; got {given}")
    memory = size(arguments.memory)
    if arguments.mfu is not None and not 0 < arguments.mfu <= 1:
        raise UserError(f"--mfu is a fraction of the peak, in (0, 1]; got {arguments.mfu:g}")
    evals = arguments.evals or []
    if len(evals) > 2 or any(count <= 0 for count in evals):
        raise UserError(
            "--evals takes the evaluations of a forward solve and the products of a backward one, "
            f"both positive; got {' '.join(map('{:g}'.format, evals))}"
        )
    if arguments.measure is not None and arguments.measure < 1:
        raise UserError(f"--measure must be 1 sample or more; got {arguments.measure}")
    recipe = recipes.load(arguments.recipe, overrides)
    if arguments.data is not None:
        named = named_data(arguments.data, recipe.task)
        recipe = recipes.load(arguments.recipe, [*overrides, *named])
    here = None
    if arguments.measure is not None:
        device = devices.device(arguments.device)
        here = partial(measure, rows=arguments.measure, device=device)
    console = Output(quiet=arguments.quiet, width=110)
    with console.status("Tracing a training step ..."), as_chosen():
        found = plan(
            recipe,
            gpus=arguments.gpus,
            memory=memory,
            parallel=arguments.parallel or recipe.parallel,
            per_machine=recipe.shard or arguments.per_machine,
            gpu=arguments.gpu,
            mfu=arguments.mfu,
            evals=evals[0] if evals else None,
            products=evals[1] if len(evals) > 1 else None,
            measure=here,
            data_dir=arguments.data_dir,
        )
    if arguments.json:
        print(json.dumps(found.json(), indent=2))
    elif arguments.quiet:
        print(found.step.rows)
    else:
        show(console, arguments.recipe, found)


def _parser() -> Parser:
    parser = Parser(
        "plan",
        __doc__,
        usage="equilibria plan RECIPE [options] [--KEY VALUE ...]",
        quiet="print only the number of samples or streams that fit on a GPU",
    )
    parser.add_argument(
        "recipe", type=str, help="name of a recipe (see `equilibria recipes`), or a YAML file"
    )
    parser.add_argument(
        "--gpus", type=int, default=1, help="number of GPUs, over all machines (default: 1)"
    )
    parser.add_argument(
        "--memory",
        type=str,
        default="80GB",
        help="memory of each GPU: 80GB, 24GiB, ... (default: 80GB)",
    )
    parser.add_argument(
        "--parallel",
        type=str,
        metavar="WAY",
        help="ddp: everything on every GPU; fsdp: parameters, gradients and optimiser state "
        "sharded over all GPUs; hsdp: over those of a machine (default: the recipe's, or ddp)",
    )
    parser.add_argument(
        "--per-machine", type=int, default=8, help="GPUs per machine, for hsdp (default: 8)"
    )
    parser.add_argument(
        "--gpu",
        type=str,
        default="A100",
        metavar="NAME",
        help=f"GPU whose peak to assume: {', '.join(GPUS)} (default: A100)",
    )
    parser.add_argument(
        "--mfu",
        type=float,
        metavar="SHARE",
        help="fraction of the peak that a step reaches (default: as measured on a GPU by "
        f"--measure, otherwise assumed to be {MFU:g})",
    )
    parser.add_argument(
        "--evals",
        type=float,
        nargs="+",
        metavar="COUNT",
        help="evaluations per forward solve, then products per backward solve, as seen in a run "
        "(default: the solvers' limits)",
    )
    parser.add_argument(
        "--measure",
        type=int,
        metavar="ROWS",
        help="also time a step with this many samples or streams on this machine, part by part, "
        "and measure its memory",
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument(
        "--data", type=str, help="text file, folder of images, or name of a data set"
    )
    parser.add_data_dir()
    parser.add_device()
    return parser


def size(text: str) -> float:
    """Return the number of bytes that a text such as 80GB, 24GiB or 500M stands for.

    Raises:
        UserError: it is not a number of bytes.
    """
    found = re.fullmatch(r"\s*([\d.]+)\s*([kKMGT]?)(i?)B?\s*", text)
    try:
        if found is None or (found[3] and not found[2]):
            raise ValueError
        count = float(found[1])
    except ValueError:
        raise UserError(
            f"--memory must be a number of bytes, such as 80GB or 24GiB; got '{text}'"
        ) from None
    unit = found[2] if found[2] != "K" else "k"
    factor = BINARY[f"{unit.upper()}i"] if found[3] else UNITS[unit]
    if not 0 < count * factor < 1e18:
        raise UserError(f"--memory must be more than 0 and less than 10^18 bytes; got '{text}'")
    return count * factor


def show(console: Output, name: str, found: Plan) -> None:
    """Print a plan as a table."""
    way = f"{found.parallel}, {found.gpus} GPU{'s' if found.gpus > 1 else ''}"
    each = f"segments of {found.reads.units} tokens, " if found.reads.streams else ""
    about = f"{name}: {way}, {found.recipe.precision}; {each}{found.reads.origin}"
    console.print(about, markup=False, highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("how", no_wrap=True)
    table.add_column("note")
    for figure in found.figures():
        table.add_row(figure.name, written(figure), figure.origin, figure.note)
    console.print(table)
    for note in found.notes:
        console.print(f"Note: {note}", markup=False, highlight=False, soft_wrap=True)


def written(figure: Figure) -> str:
    """Return a figure's number with its unit."""
    value, unit = figure.value, figure.unit
    if unit in ("", "|z|") or unit.endswith("s/s"):
        number = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
        return f"{number} {unit}".rstrip()
    if unit == "s":
        return f"{value:.3g} s"
    factor, prefix = next(((f, p) for f, p in SCALES if abs(value) >= f), (1.0, ""))
    return f"{value / factor:.3g} {prefix}{unit}"
