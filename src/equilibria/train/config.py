"""Dataclasses from YAML and from the command line, and back.

A *choice* is a field whose type is a dataclass with named descendants: `solver: Solver` takes
`{name: Anderson, history: 5}`. A *leaf* is any other field. Each leaf has a dotted key, such as
`solver.history`, that is also its option on the command line; jsonargparse checks its type.
"""

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jsonargparse import ArgumentError, ArgumentParser, Namespace

_Class = TypeVar("_Class")
Choices = Mapping[str, type]
"""Every class that a recipe may name, by its name there."""


class ConfigError(ValueError):
    """A key or a value that a recipe cannot have; the message names the nearest right one."""


def nearest(word: str, words: Iterable[str]) -> str:
    """Return '; did you mean ...?' for the nearest of `words`, or else all of them."""
    known = sorted(words)
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if not match:  # a key is often right but for its place: `history` for `solver.history`
        match = [key for key in known if key.rpartition(".")[2] == word.rpartition(".")[2]][:1]
    if match:
        return f"; did you mean '{match[0]}'?"
    return f"; there are: {', '.join(known)}"


def build(
    cls: type[_Class],
    tree: Mapping[str, Any],
    choices: Choices,
    argv: Sequence[str] = (),
    *,
    source: str = "recipe",
) -> _Class:
    """Build `cls` from a nested mapping, overridden by options such as `--solver.history 3`.

    Args:
        cls: a dataclass; its fields' defaults stand for what `tree` and `argv` leave out.
        tree: nested mapping, as YAML gives it.
        choices: classes that a choice may name.
        argv: command line options for leaves, `--key value` or `--key=value`.
        source: what `tree` is, for messages.

    Raises:
        ConfigError: an unknown key, a value of a wrong type, or one that the class refuses.
    """
    tree = switch(tree, argv, cls, choices)
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    types_: dict[str, Any] = {}
    add_arguments(parser, cls, tree, choices, leaves=types_)
    flat = dict(_flatten(tree, types_))
    for key in flat:
        if key not in types_:
            raise ConfigError(f"{source} has an unknown key '{key}'" + nearest(key, types_))
    for option in argv:
        key = option.removeprefix("--").partition("=")[0]
        if option.startswith("--") and f"{key}.name" in types_:
            raise ConfigError(
                f"'--{key}' has keys of its own: choose it with --{key}.name, or take it away with "
                f"--{key}.name null where a recipe may be without"
            )
        if option.startswith("--") and key not in types_:
            raise ConfigError(f"unknown option '--{key}'" + nearest(key, types_))
    try:
        parser.set_defaults(_checked(parser, flat))
        namespace = parser.parse_args(list(argv))
    except ArgumentError as error:
        raise ConfigError(_explain(str(error), types_)) from None
    return _construct(cls, namespace, choices, "")


def dump(instance: Any, choices: Choices) -> dict[str, Any]:
    """Return the nested mapping that `build` turns into `instance`, every default spelt out."""
    names = {cls: name for name, cls in choices.items()}
    tree: dict[str, Any] = {}
    if type(instance) in names:
        tree["name"] = names[type(instance)]
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if dataclasses.is_dataclass(value):
            value = dump(value, choices)
        tree[field.name] = list(value) if isinstance(value, tuple) else value
    return tree


def differences(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return a line for each key at which two dumps differ: 'key: this, that'."""
    lines: list[str] = []
    for key in dict.fromkeys([*one, *other]):
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a} there, {b} here")
    return lines


def add_arguments(
    parser: Any,
    cls: type,
    tree: Mapping[str, Any],
    choices: Choices,
    *,
    prefix: str = "",
    default: Any = None,
    leaves: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Give `parser` an option for each leaf of `cls`, under the classes that `tree` chooses.

    Args:
        parser: a jsonargparse parser, or a group of one, that gets the options.
        cls: a dataclass.
        tree: nested mapping of values; only its choices' names matter here.
        choices: classes that a choice may name.
        prefix: what stands before each key, ending in a dot.
        default: an instance of `cls` whose values are the defaults, in place of the class's own.
        leaves: is filled with the type of each leaf by its key; returned.

    Raises:
        ConfigError: `tree` names an unknown class or gives a value where a mapping should be.
    """
    leaves = {} if leaves is None else leaves
    hints = typing.get_type_hints(cls)
    texts = _documentation(cls)
    for field in dataclasses.fields(cls):
        key = prefix + field.name
        value = _default(field) if default is None else getattr(default, field.name)
        options = _options(hints[field.name], choices)
        if not options:
            leaves[key] = hints[field.name]
            required = value is dataclasses.MISSING
            parser.add_argument(
                f"--{key}",
                type=hints[field.name],
                default=None if required else value,
                help=texts.get(field.name, " "),
            )
            continue
        chosen = _chosen(tree, field.name, value, options, choices, key)
        leaves[f"{key}.name"] = typing.Literal[tuple(options)]
        parser.add_argument(
            f"--{key}.name",
            type=str | None,
            default=chosen,
            help=f"{texts.get(field.name, '')} One of {', '.join(options)}.".strip(),
        )
        if chosen is not None:
            same = isinstance(value, options[chosen]) and type(value) is options[chosen]
            branch = tree.get(field.name)
            add_arguments(
                parser,
                options[chosen],
                branch if isinstance(branch, Mapping) else {},
                choices,
                prefix=f"{key}.",
                default=value if same else None,
                leaves=leaves,
            )
    return leaves


def _options(hint: Any, choices: Choices) -> dict[str, type]:
    """Return the classes that a field of type `hint` may hold, by name; none for a leaf."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if union else (hint,)
    bases = tuple(m for m in members if isinstance(m, type) and m is not type(None))
    return {name: cls for name, cls in choices.items() if bases and issubclass(cls, bases)}


def _defaults(cls: type) -> dict[str, Any]:
    return {field.name: _default(field) for field in dataclasses.fields(cls)}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _chosen(
    tree: Mapping[str, Any],
    name: str,
    value: Any,
    options: Mapping[str, type],
    choices: Choices,
    key: str,
) -> str | None:
    """Return the name that `tree` or else the default `value` gives to a choice."""
    names = {cls: word for word, cls in choices.items()}
    fallback = names.get(type(value))
    if name not in tree:
        return fallback
    branch = tree[name]
    if branch is None:
        return None
    if not isinstance(branch, Mapping):
        example = next(iter(options))
        raise ConfigError(f"{key}: expected a mapping such as {{name: {example}}}, got {branch!r}")
    chosen = branch.get("name", fallback)
    if chosen is None and len(options) == 1:
        (chosen,) = options
    if chosen is None:
        raise ConfigError(f"{key}: needs a name, one of {', '.join(options)}")
    if chosen not in options:
        raise ConfigError(f"{key}: no '{chosen}'" + nearest(str(chosen), options))
    return str(chosen)


def switch(
    tree: Mapping[str, Any], argv: Sequence[str], cls: type, choices: Choices
) -> Mapping[str, Any]:
    """Return `tree` with the classes that `--….name` options choose.

    What the old and the new class have in common keeps its value: a switch from Anderson to
    Broyden keeps the tolerance. A default of the old class gives way to that of the new one: a
    switch from AlternatingAnderson to Anderson does not keep the period. `null` takes a class away
    where there may be none. Where there is but one class, an option of it chooses it.
    """
    result: dict[str, Any] = {**tree, **_implied(tree, argv, cls, choices)}
    words = list(argv)
    for index, word in enumerate(words):
        match = re.fullmatch(r"--([\w.]+)\.name(?:=(.*))?", word)
        if match is None:
            continue
        last = words[index + 1] if index + 1 < len(words) else ""
        name = match[2] if match[2] is not None else last
        node = result
        *path, end = match[1].split(".")
        if name == "null":
            for part in path:
                node = node[part] = dict(node.get(part) or {})
            node[end] = None
            continue
        for part in (*path, end):
            inner = node.get(part)
            node[part] = dict(inner) if isinstance(inner, Mapping) else {}
            node = node[part]
        if name in choices and node.get("name") not in (None, name):
            before = _defaults(choices[node["name"]]) if node["name"] in choices else {}
            now = _defaults(choices[name])
            for key, value in [*node.items()]:
                if key not in now or (key in before and value == before[key] != now[key]):
                    del node[key]
        node["name"] = name
    return result


def _implied(
    tree: Mapping[str, Any], argv: Sequence[str], cls: type, choices: Choices
) -> dict[str, Any]:
    """The classes that are the only ones of their field and of which there is an option.

    `--regulariser.gamma .1` and `--initialisation.scale 2` can mean but one thing, so they switch
    on what the recipe leaves out or has as null; of a field with several classes an option cannot
    say which, and a name is asked for. An option `--regulariser.name null` beside it wins.
    """
    asked = {word.removeprefix("--").partition(".")[0] for word in argv if word.startswith("--")}
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(cls).items():
        options = _options(hint, choices)
        if name in asked and len(options) == 1 and not tree.get(name):
            found[name] = {"name": next(iter(options))}
    return found


def _flatten(
    tree: Mapping[str, Any], leaves: Mapping[str, Any], prefix: str = ""
) -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and path not in leaves:
            yield from _flatten(value, leaves, f"{path}.")
        elif value is None and f"{path}.name" in leaves:
            yield f"{path}.name", None
        else:
            yield path, value


def _checked(parser: ArgumentParser, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return `flat` with its types checked and converted, which `set_defaults` does not do."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        node = tree
        *path, last = key.split(".")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    namespace = parser.parse_object(tree)
    return {key: namespace[key] for key in flat}


def _explain(message: str, leaves: Mapping[str, Any]) -> str:
    """Return jsonargparse's `message` in one line: the key, what it expects and what it got."""
    key = re.search(r'key "([^"]+)"', message)
    value = re.search(r"(?:Got|Given) value: (.*)", message)
    if key is None or value is None or key[1] not in leaves:
        return " ".join(message.split())
    hint = leaves[key[1]]
    words = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    if words:
        return f"{key[1]}: no '{value[1]}'" + nearest(value[1], map(str, words))
    expected = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return f"{key[1]}: expected {expected}, got {value[1]!r}"


def _construct(cls: type[_Class], namespace: Namespace, choices: Choices, prefix: str) -> _Class:
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        options = _options(hints[field.name], choices)
        value = namespace[field.name]
        if options:
            inner = f"{prefix}{field.name}."
            name = value["name"]
            if name is None and type(None) not in typing.get_args(hints[field.name]):
                raise ConfigError(f"{prefix}{field.name}: is missing; one of {', '.join(options)}")
            value = None if name is None else _construct(options[name], value, choices, inner)
        elif value is None and _default(field) is dataclasses.MISSING:
            raise ConfigError(f"{prefix}{field.name}: is missing and has no default")
        values[field.name] = tuple(value) if isinstance(value, list) else value
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        place = prefix.removesuffix(".")
        raise ConfigError(f"{place}: {error}" if place else str(error)) from None


def _documentation(cls: type) -> dict[str, str]:
    """Return the text of each field from 'Args:' or 'Attributes:' in the class's docstring."""
    texts: dict[str, str] = {}
    for ancestor in reversed(cls.__mro__):
        name = ""
        text = inspect.cleandoc(ancestor.__doc__ or "")
        for line in re.split(r"\n(?:Args|Attributes):\n", text, maxsplit=1)[-1].splitlines():
            match = re.match(r" {4}(\w+)(?: \([^)]*\))?: (.*)", line)
            if match:
                name, texts[match[1]] = match[1], match[2].strip()
            elif name and line.startswith(" " * 8):
                texts[name] += " " + line.strip()
            elif line and not line.startswith(" "):
                break
    return {key: text.replace("%", "%%") for key, text in texts.items()}
