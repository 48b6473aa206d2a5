"""Tokens a second and memory of language models of WikiText-103's size, on made-up text.

The text has WikiText-103's 267,735 words, drawn by Zipf's law: what a word costs depends on how
frequent it is (adaptive embedding and softmax), and on nothing else. Nothing is downloaded. The
weights are new ones, whose solves are shorter than those of a trained network, so steps are
measured with solves of a fixed number of evaluations too. Each network's steps are interleaved with
those of one stack, so that the ratio of the two does not depend on what else the machine did.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import torch

from equilibria.nn.using import in_eval_mode
from equilibria.run import evaluation, memory
from equilibria.run import recipe as recipes
from equilibria.run.bench import count
from equilibria.run.recipe import Recipe
from equilibria.run.studies.identity import decides
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import Pivot, first
from equilibria.run.trainer import Trainer
from equilibria.run.trees import to_device
from equilibria.solve import SolveWarning
from equilibria.zoo.language.task.language import LanguageModeling, LanguageTask
from papers.measures import counterpart
from papers.published import BAI_2019

RECIPE = "lm-wt103-paper"
VOCABULARY, TOKENS = 267_735, 1_000_000
ROUNDS, WARM_UP = 10, 3
STACK = "tied-18"  # as many layers as in the paper
PRECISIONS = ("bf16", "float32")
EVALS, LAYERS = (12, 30), (12, 18)


def corpus(size: int, tokens: int) -> Any:
    """Draw `tokens` words of `size`, word r with a probability like 1 / (r + 2.7)."""
    generator = torch.Generator().manual_seed(0)
    mass = (1.0 / (torch.arange(size, dtype=torch.float64) + 2.7)).cumsum(0)
    drawn = torch.rand(tokens, generator=generator, dtype=torch.float64) * mass[-1]
    text = torch.searchsorted(mass, drawn).clamp_(max=size - 1)
    return SimpleNamespace(
        vocabulary=SimpleNamespace(size=size),
        name="zipf",
        checksum="made up, seed 0",
        splits={"train": text, "valid": text, "test": text},
    )


def networks(precision: str) -> dict[str, Recipe]:
    """What is measured, by name: the DEQ as it is, with fixed solves, and stacks of its cell."""
    base: Any = replace(recipes.load(RECIPE, ["--precision", precision]), pretrain=None)
    found: dict[str, Recipe] = {"deq": base}
    for evals in EVALS:
        exact: dict[str, Any] = {"rtol": 0.0, "max_evals": evals}
        solver = replace(base.solver, **exact, patience=None)
        adjoint = replace(base.adjoint, linear=replace(base.adjoint.linear, **exact))
        found[f"deq-{evals}"] = replace(base, solver=solver, eval_solver=None, adjoint=adjoint)
    for layers in LAYERS:
        for suffix, kept in (("", False), ("-checkpointed", True)):
            stack = counterpart.explicit(base, layers=layers, checkpoint=kept)
            found[f"tied-{layers}{suffix}"] = stack
    return found


def warm(recipe: Recipe, task: LanguageTask) -> Trainer:
    """A trainer that has taken its first steps."""
    trainer = Trainer(recipe, task, evaluation.accelerator(recipe.precision))
    for _ in range(WARM_UP):
        trainer.train_step()
    return trainer


def reader(trainer: Trainer) -> Callable[[], None]:
    """A call that reads one segment, again and again, without gradients."""
    batch = to_device(trainer.batch(), trainer.accelerator.device)

    def read() -> None:
        quiet = in_eval_mode(trainer.model), torch.no_grad()
        with quiet[0], quiet[1], trainer.accelerator.autocast():
            trainer.model(batch.inputs)

    read()
    return read


def interleave(recipe: Recipe, stack: Recipe | None, task: LanguageTask) -> dict[str, Any]:
    """Memory of a step of a network, then its times, interleaved with those of a stack."""
    trainer = warm(recipe, task)
    device = next(trainer.model.parameters()).device
    peak = memory.peak_bytes(trainer.train_step, device)
    trainers = {"own": trainer} | ({} if stack is None else {"stack": warm(stack, task)})
    training = count.interleave(
        {n: t.train_step for n, t in trainers.items()}, device, rounds=ROUNDS
    )
    reading = count.interleave({n: reader(t) for n, t in trainers.items()}, device, rounds=ROUNDS)
    size = trainer.batch().inputs.numel()
    evals = trainer.tally.summary(task)["forward"]["evals"]
    times = {"training": training, "reading": reading}
    ratios = {f"{name}_ratio": each["own"] / each["stack"] for name, each in times.items() if stack}
    return {
        **{name: size / each["own"] for name, each in times.items()},
        **ratios,
        "step_ms": 1e3 * training["own"],
        "bytes": peak,
        "evals": None if evals is None else evals["mean"],
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }


def measure(context: Context) -> dict[str, Any]:
    """Figures of a network; without the ratios where there is no room for both, or `lacking`."""
    known = networks(str(context.factors["precision"]))
    recipe = known[str(context.factors["network"])]
    task = LanguageTask(cast(LanguageModeling, recipe.task), corpus(VOCABULARY, TOKENS))
    lacking = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # fixed solves end above their tolerance of 0
        for stack in (known[STACK], None):
            gc.collect()
            torch.cuda.empty_cache()
            try:
                return interleave(recipe, stack, task)
            except torch.cuda.OutOfMemoryError as error:
                lacking = str(error).splitlines()[0]
    return {"lacking": lacking}


def points(_: str) -> list[Point]:
    sizes = {"vocabulary": VOCABULARY, "tokens": TOKENS, "rounds": ROUNDS}
    return [
        Point(
            factors={"precision": precision, "network": name},
            measures=[measure],
            settings={"recipe": decides(recipe), "stack": decides(known[STACK]), **sizes},
            minutes=1.5,
        )
        for precision in PRECISIONS
        for known in [networks(precision)]
        for name, recipe in known.items()
    ]


STUDY = Study(
    paper=BAI_2019,
    item="Table 4",
    title="Throughput at WikiText-103's size",
    description=f"Tokens a second of {RECIPE} and of stacks of its cell.",
    points=points,
    views=[
        Pivot(
            title="Throughput",
            index={"precision": "precision", "network": "network"},
            values={
                "tokens a second, training": "training",
                "reading": "reading",
                "ms a step": "step_ms",
                f"a step, {STACK} being 1": "training_ratio",
                "reading, likewise": "reading_ratio",
                "GiB of a step, all of it": first("bytes", 2.0**-30),
                "evaluations, mean": "evals",
                "parameters, millions": first("parameters", 1e-6),
                "": "lacking",
            },
            note=f"Made-up text of {VOCABULARY} words; medians of {ROUNDS}, each network "
            f"interleaved with {STACK}, weight-tied layers of the cell; no ratio where there is no "
            "room for both. GiB: the peak of a step less what was there before, of the whole "
            "network: embedding, softmax and gradients included, which the papers' figures and "
            "those of equilibria's runs leave out.",
        )
    ],
)
