"""Keys of a recipe as the options that set them, in what a command prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["as_options", "options_of"]

_ROOTS = "task|model|solver|eval_solver|adjoint|regulariser|correction|initialisation|optimiser"
_FILES = r"(?!\.(?:safetensors|onnx|pt2|pth|json|yaml|py|svg|csv)\b)"
_KEY = rf"(?<![\w./'\"-])(?:{_ROOTS}|schedule|neural|checkpoint)(?:{_FILES}\.[a-z_]+)+(?![\w(/])"
_VALUE = r"(?!(?:that|what|a|another|as)\b)([\w.+-]*\w)"
_SET = re.compile(rf"\b([Ss]et|and|or) ({_KEY}) to {_VALUE}")
_NAMED = re.compile(rf"({_KEY}): (\d[\w.+-]*|true\b|false\b|null\b|auto\b|[A-Z]\w+)")
_ALONE = re.compile(rf"{_KEY}(?!:)")


def as_options(text: str) -> str:
    """Return advice in which keys of a recipe, as `task.size`, are options, as `--task.size`.

    "set task.normalise to false" becomes "give --task.normalise false". A key in quotes, or that
    begins what is said of it ("solver.rtol: expected a number"), stays: it may be of a file.
    """
    verbs = {"set": "give", "Set": "Give"}
    text = _SET.sub(lambda m: f"{verbs.get(m[1], m[1])} --{m[2]} {m[3]}", text)
    return _ALONE.sub(lambda m: f"--{m[0]}", _NAMED.sub(r"--\1 \2", text))


def options_of(line: str) -> str:
    """Return a line of a recipe, `adjoint: {name: Phantom, steps: 3}`, as options."""
    import yaml

    return " ".join(_options("", yaml.safe_load(line)))


def _options(prefix: str, tree: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _options(f"{prefix}{name}.", value)
        else:
            words = {None: "null", True: "true", False: "false"}
            plain = value is None or isinstance(value, bool)
            yield f"--{prefix}{name} {words[value] if plain else value}"
