"""Keys of a recipe as the options that set them, in what a command prints."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_ROOTS = "task|model|solver|eval_solver|adjoint|regularizer|correction|initialization|optimizer"
_KEY = rf"(?<![\w./\\'\"-])(?:{_ROOTS}|schedule|neural|checkpoint)(?:\.[a-z_]+)+(?![\w(/])"
_VALUE = r"(?!(?:that|what|a|another|as)\b)([\w.+-]*\w)"
_SET = re.compile(rf"\b([Ss]et|and|or) (?P<key>{_KEY}) to {_VALUE}")
_NAMED = re.compile(rf"()(?P<key>{_KEY}): (\d[\w.+-]*|true\b|false\b|null\b|auto\b|[A-Z]\w+)")
_ALONE = re.compile(rf"()(?P<key>{_KEY})(?!:)")


def as_options(text: str) -> str:
    """Return advice in which keys of a recipe, as `task.size`, are options, as `--task.size`.

    "set task.normalize to false" becomes "give --task.normalize false". A key in quotes, or that
    begins what is said of it ("solver.rtol: expected a number"), stays: it may be of a file.
    """
    if "equilibria.run.recipe" not in sys.modules:
        return text  # what is said then is not of a recipe

    def option(form: str) -> Callable[[re.Match[str]], str]:
        def write(found: re.Match[str]) -> str:
            key = found["key"]
            if not _keys().issuperset(key.split(".")[1:]):  # a file's name, say
                return found[0]
            verb = {"set": "give", "Set": "Give"}.get(found[1], found[1])
            return form.format(verb, key, *found.groups()[2:])

        return write

    text = _SET.sub(option("{0} --{1} {2}"), text)
    text = _NAMED.sub(option("--{1} {2}"), text)
    return _ALONE.sub(option("--{1}"), text)


def _keys() -> frozenset[str]:
    """The names of all fields that a recipe or something imported for it has."""
    from equilibria.run import recipe as recipes

    known = (recipes.Recipe, *recipes.choices().list_imported())
    return frozenset(["name"]).union(*(inspect.signature(each).parameters for each in known))


def list_options(line: str) -> str:
    """Return a line of a recipe, `adjoint: {name: Phantom, steps: 3}`, as options."""
    import yaml

    return " ".join(_options("", yaml.safe_load(line)))


def _options(prefix: str, tree: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _options(f"{prefix}{name}.", value)
        else:
            yield f"--{prefix}{name} {to_yaml(value)}"


def to_yaml(value: Any) -> str:
    """Return a leaf of a recipe as YAML has it."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
