"""The keys of a recipe in --help, all of which are options."""

from __future__ import annotations

import re
import shutil
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import docstring_parser

from equilibria.run import config
from equilibria.run.choices import Choices
from equilibria.run.cli.option_words import to_yaml
from equilibria.run.cli.parser import Parser


def describe(parser: Parser, title: str, instance: Any, choices: Choices) -> None:
    """Show the keys of a recipe in the help of a parser.

    An optional class that is the only one of its kind is shown with its keys though the recipe has
    none. Of the other classes that the recipe might name, only the keys are listed.

    Args:
        parser: of the command.
        title: of the group of options.
        instance: the recipe.
        choices: classes that a recipe may name.
    """
    group = parser.add_argument_group(title)
    cls, tree = type(instance), config.dump(instance, choices)
    full = _with_only_ones(cls, tree, choices)
    own, values = dict(config.leaves(tree)), dict(config.leaves(full))
    for prefix, each, branches in config.walk(cls, full, choices):
        texts = _texts(each)
        for name, hint in config.fields_of(each).items():
            text, key, metavar = texts.get(name, ""), f"{prefix}{name}", _metavar(hint)
            if name in branches:
                key, metavar = f"{key}.name", "NAME"
                values[key] = own.get(key)  # null, if there is none or only its keys are shown
                names = ", ".join(branches[name])
                one = len(branches[name]) == 1
                text += " Any of its keys chooses it." if one else f" One of {names}."
            default = f" (default: {to_yaml(values[key])})" if key in values else ""
            group.add_argument(f"--{key}", metavar=metavar, help=f"{text}{default}")
    parser.more = _other(cls, full, choices)


def names_of(instance: Any, choices: Choices) -> list[str]:
    """Return the keys that `describe` shows of a recipe."""
    cls = type(instance)
    full = _with_only_ones(cls, config.dump(instance, choices), choices)
    return [
        f"{prefix}{name}{'.name' * (name in branches)}"
        for prefix, each, branches in config.walk(cls, full, choices)
        for name in config.fields_of(each)
    ]


def _texts(cls: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of its fields, each in one line."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        for param in docstring_parser.parse(each.__doc__ or "").params:
            text = " ".join((param.description or "").split())
            found[param.arg_name.removesuffix("_")] = re.sub(r"\bNone\b", "null", text)
    return found


def _with_only_ones(cls: type, tree: Mapping[str, Any], choices: Choices) -> dict[str, Any]:
    """A dump in which each choice that is null has the defaults of its class, if there is one."""
    full = dict(tree)
    for name, allowed in config.branches_of(cls, choices).items():
        if full.get(name) is None and len(allowed) == 1:
            ((only, each),) = allowed.items()
            full[name] = {"name": only, **config.defaults_of(each, choices)}
        if full.get(name):
            full[name] = _with_only_ones(allowed[full[name]["name"]], full[name], choices)
    return full


def _metavar(hint: Any) -> str:
    """What a key takes, in a word."""
    members = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        words = ",".join(map(str, members))
        return words if len(members) == 1 else f"{{{words}}}"
    if type(None) in members:
        kinds = [_metavar(each) for each in members if each is not type(None)]
        return "|".join([*kinds, "null"])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return "|".join(map(_metavar, members))
    names = {bool: "{true,false}", int: "INT", float: "FLOAT", str: "TEXT"}
    shapes = {tuple: "LIST", list: "LIST", dict: "MAPPING"}
    return names.get(hint, shapes.get(typing.get_origin(hint), "VALUE"))


def _other(cls: type, tree: Mapping[str, Any], choices: Choices) -> str:
    """The classes that the recipe does not name, by where they may be chosen.

    Their keys are listed, too, unless that would import another application.
    """
    places: dict[tuple[str, type | None], list[str]] = {}
    chosen: set[str | None] = set()
    for prefix, _, branches in config.walk(cls, tree, choices):
        for field, allowed in branches.items():
            taken = _at(tree, f"{prefix}{field}")
            chosen.add(taken)
            imported = allowed.list_imported()
            for name in allowed:
                if name != taken:
                    key = name, imported.get(name)
                    places.setdefault(key, []).append(f"{prefix}{field}")
    # Classes that only another class may hold, such as the cell of a recurrent network.
    for (_, each), keys in list(places.items()):
        if each is None:
            continue
        for field, allowed in config.branches_of(each, choices).items():
            imported = allowed.list_imported()
            for name in allowed:
                if (name, imported.get(name)) not in places and name not in chosen:
                    places[name, imported.get(name)] = [f"{key}.{field}" for key in keys]
    width = shutil.get_terminal_size().columns - 2
    lines = ["other classes, chosen with --KEY.name, and their keys:"]
    for keys in dict.fromkeys(map(tuple, places.values())):
        lines += _wrap(", ".join(keys), width, "  ")
        here = [key for key, named in places.items() if tuple(named) == keys]
        for name, each in here:
            if each is not None:
                branches = config.branches_of(each, choices)
                names = [f"{n}.name" if n in branches else n for n in config.fields_of(each)]
                lines += _wrap(f"{name}: {', '.join(names) or 'none'}", width, "    ")
        if foreign := [name for name, each in here if each is None]:
            text = f"{', '.join(foreign)}: keys with --{keys[0]}.name NAME --help"
            lines += _wrap(text, width, "    ")
    return "\n".join(lines) if places else ""


def _at(tree: Mapping[str, Any], key: str) -> str | None:
    """The name of the class that a tree has under a dotted key."""
    branch: Any = tree
    for part in key.split("."):
        branch = branch and branch.get(part)
    return branch and branch["name"]


def _wrap(text: str, width: int, indent: str) -> Sequence[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_on_hyphens=False,
        break_long_words=False,
    )
