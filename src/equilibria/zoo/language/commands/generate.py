"""Continue a prompt with a trained language model from a run folder. The text is printed word by
word, or character by character, as it is sampled; then, on standard error, what it cost and how
the solves ended. Only the run folder is needed, not the data.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from equilibria.run import neural, run
from equilibria.run.cli.options import add_solver, solve_by
from equilibria.run.cli.parser import Parser, UserError, check_least, check_seed
from equilibria.run.processes import device
from equilibria.run.recipe import Recipe
from equilibria.solve import Status
from equilibria.words import list_some, percent, plural, printable
from equilibria.zoo.io.vocabulary import tokenize
from equilibria.zoo.language.commands.context import change_memory, has_memory
from equilibria.zoo.language.data import Vocabulary
from equilibria.zoo.language.model.base import SequenceModel
from equilibria.zoo.language.model.generation import GeneratedToken, generate


def main(argv: Sequence[str]) -> None:
    """Run `equilibria generate` with the words `argv`."""
    parser = Parser("generate", __doc__, quiet="print only the text, and errors")
    parser.add_argument("run", type=str, help="run folder, for example runs/lm-text")
    parser.add_argument(
        "--prompt",
        type=str,
        default="",
        help="text to continue; without it the text begins on a new line",
    )
    parser.add_number("--length", 200, "words or characters to write")
    parser.add_number(
        "--temperature", 1.0, "below 1 takes fewer risks; 0 always takes the most probable"
    )
    parser.add_argument("--top-k", type=int, help="sample only from this many most probable tokens")
    parser.add_argument(
        "--top-p",
        type=float,
        help="sample only from the most probable tokens that together reach this probability",
    )
    parser.add_number("--seed", 0, "seed of the sampling")
    parser.add_argument(
        "--memory",
        type=int,
        help="how many tokens back a Transformer sees (default: the recipe's eval_memory, or the "
        "maximum in training)",
    )
    parser.add_argument(
        "--cold",
        action="store_true",
        help="start each solve from the layer's own start, not from an earlier equilibrium; with "
        "--solver neural each starts where the solver has learned to",
    )
    add_solver(parser)
    parser.add_device()
    arguments = parser.parse_args(list(argv))
    _check(arguments)
    where = device(arguments.device)
    loaded = load(Path(arguments.run), arguments.memory)
    solve_by(arguments.solver, loaded)
    model, vocabulary = cast(SequenceModel, loaded.model), vocabulary_of(loaded)
    prompt = read(vocabulary, arguments.prompt)
    steps = generate(
        model.to(where),
        prompt or [choose_first_token(vocabulary)],
        arguments.length,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        # The model cannot have learnt a token that the training text does not contain.
        excluded=[] if vocabulary.counts[vocabulary.unknown] else [vocabulary.unknown],
        warm=not arguments.cold and not neural.starts(model),
    )
    say(vocabulary.decode(prompt))
    last = prompt[-1] if prompt else choose_first_token(vocabulary)
    taken, clock = [], time.perf_counter()
    for step in steps:
        taken.append(step)
        say(vocabulary.decode([last, step.token])[len(vocabulary.decode([last])) :])
        last = step.token
    seconds = time.perf_counter() - clock
    say("\n")
    if not arguments.quiet:
        print(summary(taken, len(prompt) or 1, seconds), file=sys.stderr)


def _check(arguments: Any) -> None:
    """Raise UserError for an option that nothing can be chosen by."""
    check_seed(arguments.seed)
    check_least(arguments, length=1, top_k=1)
    if not 0 <= arguments.temperature < math.inf:
        raise UserError(f"--temperature must be 0 or more; got {arguments.temperature:g}")
    if arguments.top_p is not None and not 0 < arguments.top_p <= 1:
        raise UserError(f"--top-p must lie in (0, 1]; got {arguments.top_p:g}")


def load(path: Path, memory: int | None) -> run.Run:
    """Return the run in a folder, without its data, looking back `memory` tokens."""
    changes = choose_memory(run.Folder(path).read_recipe(), memory)
    return run.load(path, data=False, changes=changes)


def vocabulary_of(loaded: run.Run) -> Vocabulary:
    """Return which token is which word or character.

    Raises:
        UserError: the run is not one of a language model.
    """
    path = run.Folder(loaded.folder).vocabulary
    if not isinstance(loaded.model, SequenceModel) or not path.is_file():
        raise UserError(
            f"{loaded.folder} has no {path.name}: it is not a run of a language model (its task "
            f"is {type(loaded.recipe.task).__name__}), so it cannot generate text"
        )
    vocabulary = Vocabulary.load(path)
    if vocabulary.size != loaded.model.lexicon.vocabulary:
        raise UserError(
            f"{path} has {vocabulary.size} tokens and the model "
            f"{loaded.model.lexicon.vocabulary}: it is not the vocabulary of this run"
        )
    return vocabulary


def choose_memory(recipe: Recipe, memory: int | None) -> dict[str, int]:
    """Return how far a Transformer looks back, as a change of its config; empty for other models.

    Args:
        recipe: of the run.
        memory: tokens; None for the recipe's `eval_memory`, or as many as the last token of a
            segment saw in training.

    Raises:
        UserError: `memory` is below 1, or given for a model without a memory to set.
    """
    if memory is None and not has_memory(recipe):
        return {}
    config: Any = recipe.model
    if memory is None:
        length = getattr(recipe.task, "length", 1)
        memory = config.eval_memory or max(1, config.memory + length - 1)
    return change_memory(recipe, cast(int, memory), minimum=1)


def read(vocabulary: Vocabulary, prompt: str) -> list[int]:
    """Return the tokens of a prompt; warn of those that are not in the vocabulary."""
    tokens = vocabulary.encode(prompt)
    words = tokenize(prompt) if vocabulary.unit == "words" else list(prompt)
    named = vocabulary.tokens[vocabulary.unknown]
    pairs = zip(words, tokens, strict=True)
    unknown = dict.fromkeys(w for w, t in pairs if t == vocabulary.unknown and w != named)
    if unknown:
        shown = list_some([repr(word) for word in unknown], 8)
        lower = [word.lower() for word in unknown]
        known = [word for word in lower if vocabulary.number(word) != vocabulary.unknown]
        hint = f"; lower-case {known[0]!r} is in it" if known else ""
        warnings.warn(
            f"these {vocabulary.unit} are not in the model's vocabulary and are read as {named}: "
            f"{shown}{hint}",
            stacklevel=2,
        )
    return tokens


def choose_first_token(vocabulary: Vocabulary) -> int:
    """Return the token after which a text begins: the end of a line, or the most frequent one."""
    return 0 if vocabulary.end == vocabulary.unknown else vocabulary.end


def say(text: str) -> None:
    """Write to standard output at once; a character that it cannot encode becomes "?"."""
    encoding = sys.stdout.encoding or "utf-8"
    if sys.stdout.isatty():  # else the text is data
        text = printable(text, lines=True)
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def summary(steps: Sequence[GeneratedToken], prompt: int, seconds: float) -> str:
    """Return what the tokens cost and how the solves ended."""
    first, *rest = steps
    each = f"{1000 * seconds / len(steps):.1f} ms per token"
    if not first.evaluations:
        return f"{plural(len(steps), 'token')}, {each}; an explicit network, no solves"
    read = plural(sum(first.evaluations), "evaluation")
    lines = [f"prompt: {plural(prompt, 'token')}, {read}"]
    if rest:
        spent = sum(sum(step.evaluations) for step in rest)
        lines.append(f"then {spent / len(rest):.1f} evaluations per token, {each}")
    ended = Counter(status for step in steps for status in step.statuses)
    shares = [f"{s.name} {percent(ended[s] / ended.total())}" for s in Status if ended[s]]
    return "; ".join([*lines, f"solves: {', '.join(shares)}"])
