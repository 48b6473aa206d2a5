"""Tokens a second and memory of language models of WikiText-103's size, on made-up text.

``python benchmarks/gpu/throughput.py --budget 9`` measures for nine minutes and keeps what it has;
the same line goes on. The text has WikiText-103's 267,735 words, drawn by Zipf's law: what a word
costs depends on how frequent it is (adaptive embedding and softmax), and on nothing else. Nothing
is downloaded. The weights are new ones, whose solves are shorter than those of a trained network,
so steps are measured with solves of a fixed number of evaluations too. Each network's steps are
timed in turns with those of one stack, so that the ratio of the two does not depend on what else
the machine did meanwhile.
"""

import argparse
import gc
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console

from equilibria.bench.clock import interleaved
from equilibria.bench.record import Table
from equilibria.cli.bench import print_table
from equilibria.experiments import counterpart
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.experiment import Experiment, Page
from equilibria.experiments.runner import execute, publish
from equilibria.solve import Implicit, SolveWarning
from equilibria.tasks.language import LanguageModelling, LanguageTask
from equilibria.train import evaluation
from equilibria.train import recipe as recipes
from equilibria.train.recipe import Recipe
from equilibria.train.trainer import Trainer

ROOT = Path(__file__).parents[2]
VOCABULARY = 267_735
TOKENS = 1_000_000
TURNS = 10
WARM = 3
STACK = 18
"""Layers of the stack that every network is timed in turns with, as many as in the paper."""
GIB = 2**30


@dataclass(frozen=True)
class Words:
    """A vocabulary of so many words."""

    size: int

    def save(self, path: Path) -> None:
        """There are no words to save."""


@dataclass(frozen=True)
class Corpus:
    """Made-up text: words drawn independently, word r with a probability like 1 / (r + 2.7)."""

    vocabulary: Words
    name: str = "zipf"
    checksum: str = "made up, seed 0"
    splits: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, size: int, tokens: int) -> "Corpus":
        """Draw `tokens` words of `size`."""
        generator = torch.Generator().manual_seed(0)
        mass = (1.0 / (torch.arange(size, dtype=torch.float64) + 2.7)).cumsum(0)
        drawn = torch.rand(tokens, generator=generator, dtype=torch.float64) * mass[-1]
        text = torch.searchsorted(mass, drawn).clamp_(max=size - 1)
        return cls(Words(size), splits={"train": text, "valid": text, "test": text})


def networks(base: Recipe) -> dict[str, Recipe]:
    """What is measured, by name: the DEQ as it is, with fixed solves, and stacks of its cell."""

    def fixed(evals: int) -> Recipe:
        adjoint = cast(Implicit, base.adjoint)
        exact: dict[str, Any] = {"rtol": 0.0, "max_evals": evals}
        return replace(
            base,
            solver=replace(cast(Any, base.solver), **exact, patience=None),
            eval_solver=None,
            adjoint=replace(adjoint, linear=replace(cast(Any, adjoint.linear), **exact)),
        )

    base = replace(base, pretrain=None)
    found = {"deq": base}
    found |= {f"deq-{evals}": fixed(evals) for evals in (12, 30)}
    for layers in (12, 18):
        found[f"tied-{layers}"] = counterpart.explicit(base, layers=layers)
        found[f"tied-{layers}-checkpointed"] = counterpart.explicit(
            base, layers=layers, checkpoint=True
        )
    return found


def quietly(
    measure: Callable[[Place], dict[str, Any]],
) -> Callable[[Place], dict[str, Any]]:
    """The same, without the warnings: fixed solves end above their tolerance of 0."""

    def run(place: Place) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SolveWarning)
            return measure(place)

    return run


def warm(recipe: Recipe, task: LanguageTask) -> Trainer:
    """A trainer that has taken its first steps."""
    trainer = Trainer(recipe, task, evaluation.accelerator(recipe.precision))
    for _ in range(WARM):
        trainer.train_step()
    return trainer


def peak(trainer: Trainer) -> int | None:
    """The allocator's peak in a few steps less what was there before; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM):
        trainer.train_step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held


def reader(trainer: Trainer) -> Callable[[], object]:
    """Reads one segment, again and again, without gradients."""
    batch = evaluation.to_device(trainer.batch(), trainer.accelerator)
    carry = trainer.carry

    def read() -> None:
        with (
            evaluation.evaluating(trainer.model),
            torch.no_grad(),
            trainer.accelerator.autocast(),
        ):
            trainer.model(batch.inputs, carry=carry)

    for _ in range(WARM):
        read()
    return read


def in_turns(
    recipe: Recipe, stack: Recipe, task: LanguageTask, *, paired: bool = True
) -> dict[str, Any]:
    """Memory of the network alone, then its times and those of the stack, step by step in turns.

    Args:
        recipe: of the network.
        stack: of what it is compared with.
        task: on which text.
        paired: also time the stack.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainer = warm(recipe, task)
    bytes_of_a_step = peak(trainer)
    trainers = {"own": trainer} | ({"stack": warm(stack, task)} if paired else {})
    training = interleaved(
        {name: each.train_step for name, each in trainers.items()}, device, turns=TURNS
    )
    reading = interleaved(
        {name: reader(each) for name, each in trainers.items()}, device, turns=TURNS
    )
    size = trainer.batch().inputs.numel()
    forward = trainer.tally.summary(task.figures)["forward"]
    return {
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "training": size / training["own"],
        "reading": size / reading["own"],
        "step_ms": 1e3 * training["own"],
        "training_ratio": training["own"] / training["stack"] if paired else None,
        "reading_ratio": reading["own"] / reading["stack"] if paired else None,
        "peak": bytes_of_a_step,
        "evals": None if forward["evals"] is None else forward["evals"]["mean"],
    }


def measured(
    recipe: Recipe, stack: Recipe, vocabulary: int, tokens: int
) -> Callable[[Place], dict[str, Any]]:
    """The case's work: steps of training and segments read, in turns with the stack's."""

    def run(place: Place) -> dict[str, Any]:
        task = LanguageTask(
            cast(LanguageModelling, recipe.task), cast(Any, Corpus.of(vocabulary, tokens))
        )
        lacking = ""
        for paired in (True, False):  # where there is no room for both, alone
            if torch.cuda.is_available():
                gc.collect()
                torch.cuda.empty_cache()
            try:
                return in_turns(recipe, stack, task, paired=paired)
            except torch.cuda.OutOfMemoryError as error:
                lacking = str(error).splitlines()[0]
        return {"lacking": lacking}

    return run


def experiment(
    name: str, options: Sequence[str], precision: str, vocabulary: int, tokens: int
) -> Experiment:
    """All networks of a recipe as cases of one experiment."""
    base = recipes.load(name, [*options, "--precision", precision])
    stack = networks(base)[f"tied-{STACK}"]

    def cases(_: str) -> list[Case]:
        return [
            Case(
                key=key,
                description=f"{TURNS} steps of {key}, in turns with {STACK} layers",
                minutes=1.5,
                run=quietly(measured(recipe, stack, vocabulary, tokens)),
                settings={
                    "recipe": recipes.dump(recipe),
                    "vocabulary": vocabulary,
                    "tokens": tokens,
                    "turns": TURNS,
                    "stack": STACK,
                },
            )
            for key, recipe in networks(base).items()
        ]

    def show(done: Results) -> Page:
        rows: list[list[Any]] = []
        for key in networks(base):
            found = done.get(key)
            if found is None:
                rows.append([key, "not run", *[None] * 7])
                continue
            value = found.value
            if "lacking" in value:
                rows.append([key, "out of memory", *[None] * 7])
                continue
            most = value["peak"]
            rows.append(
                [
                    key,
                    value["training"],
                    value["reading"],
                    value["step_ms"],
                    value["training_ratio"],
                    value["reading_ratio"],
                    None if most is None else most / GIB,
                    value["evals"],
                    value["parameters"] / 1e6,
                ]
            )
        columns = [
            *("network", "tokens a second, training", "reading", "ms a step"),
            *(f"a step, tied-{STACK} being 1", "reading, likewise"),
            *("GiB of a step, all of it", "evaluations, mean", "parameters, millions"),
        ]
        note = (
            f"Made-up text of {vocabulary} words, batch {base.batch_size}, {base.precision}; "
            f"medians of {TURNS}, each network in turns with {STACK} weight-tied layers of the "
            "cell; no ratio where there is no room for both. GiB: the allocator's peak in a step "
            "less what was there before, of the whole network: embedding, softmax and gradients "
            "included, which the papers' figures and those of equilibria's runs leave out."
        )
        return Page([Table(title="Throughput", columns=columns, rows=rows, note=note)])

    return Experiment(
        name=f"gpu/throughput-{precision}",
        paper="Bai et al. 2019",
        subject="Table 4",
        description=f"Tokens a second of {name} and of stacks of its cell.",
        cases=cases,
        show=show,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="lm-wt103-paper", help="of a DEQ (lm-wt103-paper)")
    parser.add_argument("--precision", choices=["float32", "bf16"], default="bf16")
    parser.add_argument("--budget", type=float, default=9.0, help="minutes of this call (9)")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="number of words")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="length of the text")
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="folder for the results")
    args, options = parser.parse_known_args(argv)
    words = sys.argv[1:] if argv is None else list(argv)
    command = " ".join(["python benchmarks/gpu/throughput.py", *words])
    console = Console(width=190)
    one = experiment(args.recipe, options, args.precision, args.vocabulary, args.tokens)
    outcome = execute(
        one,
        out=args.out,
        console=console,
        command=command,
        deadline=time.monotonic() + 60 * args.budget,
    )
    tables, paths = publish(one, outcome, args.out, command)
    for table in tables:
        print_table(table, console)
    for key, reason in outcome.missing.items():
        console.print(f"not run: {key}: {reason}", markup=False)
    console.print(f"Written to {' and '.join(map(str, paths))}.", markup=False)
    if outcome.failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
