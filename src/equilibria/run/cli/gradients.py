"""Compare the gradients of all adjoints, inexact and exact, on a batch of a run: the cosine with
the exact gradient, of the layer's parameters and, sample by sample, of its inputs; the ratio of
lengths, time and memory. Recommends the cheapest whose cosine reaches the floor and whose length is
within a factor of two, as a line for the recipe. Where the gradient of the loss has vanished, as on
samples that the network is sure of, a random projection of its output is differentiated. Where
finite differences show that autograd has a derivative of the cell wrong, it is named, and nothing
is recommended. The figures are written to gradients.json in the run folder, with a plot in
gradients.svg; `equilibria report` shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from equilibria import files
from equilibria.run import examination as visit
from equilibria.run import run
from equilibria.run.cli.option_words import list_options
from equilibria.run.cli.output import Output, say
from equilibria.run.cli.parser import Parser, UserError, check_least
from equilibria.run.cli.status import DONE
from equilibria.run.processes import device
from equilibria.run.report.gradients import panels
from equilibria.run.report.svg import picture
from equilibria.run.weights import checksum
from equilibria.stability import Comparison
from equilibria.words import plural

FILE, FIGURE = "gradients.json", "gradients.svg"


def main(argv: Sequence[str]) -> int:
    """Run `equilibria gradients` with the words `argv` and return the exit status."""
    parser = Parser("gradients", __doc__)
    parser.add_argument("run", type=str, help="run folder, for example runs/digits")
    parser.add_argument(
        "--samples", type=int, help="samples of the batch (default: the recipe's batch_size)"
    )
    parser.add_argument(
        "--split", default="train", help="split they are taken from (default: train)"
    )
    parser.add_number("--floor", 0.99, "smallest cosine with the exact gradient to recommend")
    parser.add_number("--repeats", 5, "times that each step is timed")
    parser.add_data_dir()
    parser.add_device(usual="cpu")
    arguments = parser.parse_args(list(argv))
    check_least(arguments, samples=1, repeats=1)
    if not 0 < arguments.floor <= 1:
        raise UserError(f"--floor must be a cosine in (0, 1]; got {arguments.floor:g}")
    where = device(arguments.device)
    run.Folder(Path(arguments.run)).check_writable()
    loaded = run.load(arguments.run, data_dir=arguments.data_dir)
    console = Output(quiet=arguments.quiet)
    waiting = Output(stderr=True, quiet=arguments.quiet)
    with waiting.status(f"Comparing gradients of {loaded.folder} ..."):
        found = visit.compare(
            loaded,
            samples=arguments.samples,
            split=arguments.split,
            floor=arguments.floor,
            repeats=arguments.repeats,
            device=where,
        )
    show(found, console)
    path = loaded.folder / FILE
    weights, stored = checksum(run.Folder(loaded.folder).weights), found.json()
    files.write_text(loaded.folder / FIGURE, picture(panels(stored)))
    files.write_json(path, {"weights": weights, **stored})
    said = f"Written to {path}, with a plot in {FIGURE}. Next: equilibria report {loaded.folder}"
    console.finish(said, path)
    return DONE


def show(found: Comparison, console: Console) -> None:
    """Print the table and the recommendation."""
    table = Table(
        *("adjoint", "cosine", "worst", "length", "cost", "step, ms", "MiB"),
        title=f"Gradients of {plural(found.samples, 'sample')}, compared with the exact one",
    )
    best = found.recommended
    for row in found.rows:
        table.add_row(
            row.name,
            f"{row.cosine:.4f}",
            f"{row.sample_cosine:.3f}",
            f"{row.norm_ratio:.3f}",
            f"{row.cost:.1f}",
            f"{row.step_ms:.1f}",
            f"{row.bytes / 2**20:.2f}",
            style="bold green" if row is best else None,
        )
    table.columns[0].no_wrap = True
    console.print(table)
    console.print(
        "cosine: with the exact gradient, with respect to the layer's parameters. worst: the "
        "smallest of a sample, with respect to the layer's inputs. length: relative to the exact "
        "gradient. cost: evaluations of f and products with its Jacobian, besides the solve. In "
        "brackets: steps and damping.",
        markup=False,
    )
    say(console, f"{found.sentence}.")
    if (line := found.recipe_line) is not None:
        said = f"In the recipe: {line}\nAs options: {list_options(line)}"
        say(console, said)
