"""Dataclasses from YAML and from the command line, and back.

A *choice* is a field whose type is a dataclass with named descendants: `solver: Solver` takes
`{name: Anderson, history: 5}`, or `{name: "module:Class"}` of a user's own, see `plugins`. A *leaf*
is any other field. Each leaf has a dotted key, such as `solver.history`, that is also its option on
the command line; jsonargparse checks its value, and reads its help from the class.
"""

import dataclasses
import functools
import linecache
import math
import re
import traceback
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from equilibria.run import plugins
from equilibria.run.choices import Allowed, Choices
from equilibria.words import nearest

_Class = TypeVar("_Class")
_LARGEST = 2**32 - 1
"""The largest whole number of a recipe, as of a seed; nothing is counted that far."""

_LONGEST = 1000
"""Characters of the longest string that stands for a number, a word of a few, or a list."""


BRITISH = {
    "initialization": "initialisation",
    "optimizer": "optimiser",
    "regularizer": "regulariser",
    "normalize": "normalise",
    "standardize": "standardise",
    "color": "colour",
    "Initialization": "Initialisation",
    "language_modeling": "language_modelling",
}
"""Keys, and names of classes, with their British spellings, which are read too."""

AMERICAN = {british: american for american, british in BRITISH.items()}


class ConfigError(ValueError):
    """An invalid key or value of a recipe; the message names the nearest valid one."""


def build(
    cls: type[_Class],
    tree: Mapping[str, Any],
    choices: Choices,
    argv: Sequence[str] = (),
    *,
    source: str = "recipe",
) -> _Class:
    """Build `cls` from a nested mapping, overridden by options such as `--solver.history 3`.

    An option `--solver.name Broyden` switches the class. Fields that the old and the new class
    share keep their values: a switch from Anderson to Broyden keeps the tolerance. A default of the
    old class is replaced by that of the new one. `null` removes an optional class. Where there is
    only one class, any of its options chooses it: `--regularizer.gamma .1` needs no name.

    Args:
        cls: a dataclass; its fields' defaults stand for what `tree` and `argv` leave out.
        tree: nested mapping, as YAML gives it.
        choices: classes that a choice may name.
        argv: command line options for leaves, `--key value` or `--key=value`.
        source: what `tree` is, for messages.

    Raises:
        ConfigError: an unknown key, a value of a wrong type, or one that the class rejects.
    """
    options = admit(argv)
    tree = _resolve(cls, tree, choices, options)
    choices = choices.and_these(plugins.LOADED)
    hints = _hints(cls, tree, choices)
    values = dict(_flatten(tree, hints))
    for key in values.keys() - hints:
        raise ConfigError(f"{source} has an unknown key '{key}'" + nearest(key, hints))
    for key in options.keys() - hints:
        if f"{key}.name" in hints:
            raise ConfigError(
                f"'--{key}' has keys of its own: choose it with --{key}.name, or, if it is "
                f"optional, remove it with --{key}.name null"
            )
        raise ConfigError(f"unknown option '--{key}'" + nearest(key, hints))
    values |= _check_leaves(values, hints)
    for key, value in values.items():
        if isinstance(value, int) and abs(value) > _LARGEST:
            given = f"{value:,}" if value.bit_length() <= 64 else "a far larger one"
            raise ConfigError(f"{key}: expected a whole number up to {_LARGEST:,}, got {given}")
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{key}: expected a number, got nan")
    return _construct(cls, _nest(values), choices)


def admit(argv: Sequence[str]) -> dict[str, str]:
    """Return options by their keys; the modules of classes that they name are imported.

    What the user names there, files that are read from then on may name too.

    Raises:
        ConfigError: a word is not an option, or a module cannot be imported.
    """
    options = dict(pairs(argv))
    for key, value in options.items():
        if key.endswith(".name") and plugins.is_path(value):
            with as_chosen(key):
                plugins.import_module_of(value)
    return options


def _check_leaves(values: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves that are not plainly what they should be, as jsonargparse reads them.

    jsonargparse reads strings as YAML, and without the limits of `yaml_text`.
    """
    found: dict[str, Any] = {}
    unread: dict[str, Any] = {}
    for key, value in values.items():
        if (leaf := (str(hints[key]), repr(value))) in _READ:
            found[key] = _READ[leaf]
        elif not _plain(value, hints[key]):
            unread[key] = value
    if not unread:
        return found
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    for key, value in unread.items():
        if isinstance(value, str) and (len(value) > _LONGEST or "&" in value):
            raise ConfigError(_explain_type(key, f"{value[:60]}...", hints[key]))
        parser.add_argument(f"--{key}", type=hints[key])
    try:
        checked = parser.parse_object(unread)
    except ArgumentError as error:
        raise ConfigError(_explain(parser, unread, hints) or str(error)) from None
    for key, value in unread.items():
        leaf = checked[key]
        found[key] = leaf.as_dict() if isinstance(leaf, Namespace) else leaf
        if isinstance(leaf, str | int | float | tuple | None):  # of no list that may change
            _READ[str(hints[key]), repr(value)] = leaf
    return found


_READ: dict[tuple[str, str], Any] = {}
"""What jsonargparse has made of leaves, by their types and what they are.

It tries the members of a union in their order, which types ignore when they are compared.
"""


def _plain(value: Any, hint: Any) -> bool:
    """Whether a leaf is what it should be as it stands, which spares a recipe most of its time."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if union else (hint,)
    if isinstance(value, str):
        return value != "null" and hint in (str, str | None)
    kinds = {*members} - {type(None)}
    if value is None:
        return type(None) in members
    return len(kinds) == 1 and type(value) in kinds & {bool, int, float}


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of the leaves under dotted keys."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *branches, leaf = key.split(".")
        inner = tree
        for name in branches:
            inner = inner.setdefault(name, {})
        inner[leaf] = value
    return tree


def pairs(argv: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The keys and values of options, `--key value` or `--key=value`; hyphens are underscores.

    Raises:
        ConfigError: a word is not an option, or an option has no value.
    """
    words = iter(argv)
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise ConfigError(f"expected an option such as --seed 1, got '{word}'")
        if not equals and (value := next(words, "--")).startswith("--"):
            raise ConfigError(f"--{key} needs a value")
        yield key.replace("-", "_"), value


@contextmanager
def as_chosen(key: str = "") -> Iterator[None]:
    """Raise a ValueError of the block as a ConfigError: a user's choice is what it rejects.

    Only errors that a `raise` statement raised are meant: any other is a mistake in the code.

    Args:
        key: of the choice, for the message.

    Raises:
        ConfigError: the block raised a ValueError or a TypeError.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError) or not _raised(error):
            raise
        raise ConfigError(f"{key}: {_in_yaml(error)}" if key else _in_yaml(error)) from error


def _raised(error: Exception) -> bool:
    """Whether a statement of Python raised an error, as far as its source is at hand."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    text = linecache.getline(frame.f_code.co_filename, line).lstrip()
    return not text or text.startswith("raise ")


def _in_yaml(error: Exception) -> str:
    """A message of a Python class in the words of a recipe: `eq.Broyden()` is `Broyden` there."""
    text = re.sub(r"\beq\.(\w+)\(\)", r"\1", str(error))
    text = re.sub(r"\buse solver=(\w+)", r"choose --solver.name \1", text)
    return re.sub(r"\bNone\b", "null", text)


def dump(value: Any, choices: Choices) -> Any:
    """Return the nested mapping that `build` turns into `value`, with every default filled in."""
    if not dataclasses.is_dataclass(value):
        return list(value) if isinstance(value, tuple) else value
    fields = dataclasses.fields(value)
    found = {_key(field): dump(getattr(value, field.name), choices) for field in fields}
    name = choices.name_of(type(value))
    if name is None and isinstance(value, plugins.BASES):
        with as_chosen():
            name = plugins.path_of(type(value))
    return found if name is None else {"name": name, **found}


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a dump by their dotted keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


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


def walk(
    cls: type, tree: Mapping[str, Any], choices: Choices, prefix: str = ""
) -> Iterator[tuple[str, type, dict[str, Allowed]]]:
    """Each class that `tree` names, after the prefix of its keys and before its choices.

    A choice is a field, with the classes that it may hold by name.
    """
    branches = branches_of(cls, choices)
    yield prefix, cls, branches
    for name, allowed in branches.items():
        if branch := tree[name]:
            yield from walk(allowed[branch["name"]], branch, choices, f"{prefix}{name}.")


def _hints(cls: type, tree: Mapping[str, Any], choices: Choices) -> dict[str, Any]:
    """The type of each leaf by its key, under the classes that `tree` names."""
    found: dict[str, Any] = {}
    for prefix, each, branches in walk(cls, tree, choices):
        for name, hint in fields_of(each).items():
            key = f"{prefix}{name}"
            found |= {f"{key}.name": str | None} if name in branches else {key: hint}
    return found


@functools.cache
def fields_of(cls: type) -> Mapping[str, Any]:
    """The fields of a dataclass with their types."""
    hints = typing.get_type_hints(cls)
    return {_key(field): hints[field.name] for field in dataclasses.fields(cls)}


def _key(field: dataclasses.Field[Any]) -> str:
    """The key of a field: its name, less the underscore that tells `async_` from Python's word."""
    return field.name.removesuffix("_")


def branches_of(cls: type, choices: Choices) -> dict[str, Allowed]:
    """The fields of `cls` that are choices, each with the classes that it may hold, by name."""
    found = {field: choices.classes_for(_bases(hint)) for field, hint in fields_of(cls).items()}
    return {field: allowed for field, allowed in found.items() if allowed}


def _bases(hint: Any) -> tuple[type, ...]:
    """The classes of which a field may hold an instance."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if union else (hint,)
    return tuple(m for m in members if isinstance(m, type) and m is not type(None))


def defaults_of(cls: type, choices: Choices) -> dict[str, Any]:
    """The defaults of a dataclass, as in a dump; without the fields that have none."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.default_factory is not dataclasses.MISSING:
            found[_key(field)] = dump(field.default_factory(), choices)
        elif field.default is not dataclasses.MISSING:
            found[_key(field)] = dump(field.default, choices)
    return found


def _resolve(
    cls: type,
    tree: Mapping[str, Any],
    choices: Choices,
    options: dict[str, str],
    prefix: str = "",
) -> dict[str, Any]:
    """Return `tree` under `options`, with a name, or None, for each choice; see `build`."""
    keys = {name: f"{prefix}{name}" for name in fields_of(cls)}
    tree = _spell(keys, tree, options)
    result = {**tree, **{name: options[key] for name, key in keys.items() if key in options}}
    defaults = defaults_of(cls, choices)
    for name, allowed in branches_of(cls, choices).items():
        key, default = keys[name], defaults.get(name)
        first, *others = allowed
        asked = options.get(f"{key}.name")
        if not (asked or others) and any(option.startswith(f"{key}.") for option in options):
            asked = first
        branch = tree.get(name, default)
        if asked == "null" or (branch is None and asked is None):
            result[name] = None
            continue
        if not isinstance(branch, Mapping | None):
            raise ConfigError(f"{key}: expected a mapping such as {{name: {first}}}, got {branch}")
        branch = dict(branch or {})
        before = branch.get("name") or (default and default["name"]) or (None if others else first)
        chosen = asked or before
        if chosen not in allowed:
            chosen = AMERICAN.get(str(chosen), chosen)
        if chosen is None:
            raise ConfigError(f"{key}: needs a name, one of {', '.join(allowed)}")
        switched = chosen != before
        if plugins.is_path(chosen):
            chosen, allowed = _find_own(key, chosen, fields_of(cls)[name], allowed)
        if chosen not in allowed:
            optional = type(None) in typing.get_args(fields_of(cls)[name])
            other = nearest(str(chosen), [*allowed, *(["null"] if optional else [])])
            module, dot, last = str(chosen).rpartition(".")
            if dot and plugins.bases_of(_bases(fields_of(cls)[name])):
                other = f"; a class of your own is named {module}:{last}"
            raise ConfigError(f"{key}: no '{chosen}'{other}")
        if switched and (before in allowed or plugins.is_path(before)):
            branch = _in_common(branch, allowed.get(str(before)), allowed[chosen], choices)
        branch = _merge(default or {"name": chosen}, {**branch, "name": chosen})
        result[name] = _resolve(allowed[chosen], branch, choices, options, f"{key}.")
    return result


def _spell(
    keys: Mapping[str, str], tree: Mapping[str, Any], options: dict[str, str]
) -> Mapping[str, Any]:
    """Return `tree` with the fields' own names in place of British spellings, as `options` are.

    Args:
        keys: the dotted key of each field of a class.
        tree: what is given for the class.
        options: all options by their dotted keys.
    """
    for name, key in keys.items():
        other = BRITISH.get(name, name)
        if other in keys:
            continue
        if other in tree and name not in tree:
            tree = {name if each == other else each: value for each, value in tree.items()}
        british = f"{key.removesuffix(name)}{other}"
        for option in [each for each in options if f"{each}.".startswith(f"{british}.")]:
            american = key + option.removeprefix(british)
            if american in options:
                raise ConfigError(
                    f"--{option} and --{american} are two spellings of one option: give one of them"
                )
            options[american] = options.pop(option)
    return tree


def _find_own(key: str, path: str, hint: Any, allowed: Allowed) -> tuple[str, Allowed]:
    """The name of the class at an import path, and what the field may hold with it."""
    if not (bases := plugins.bases_of(_bases(hint))):
        return path, allowed
    with as_chosen(key):
        found = plugins.find(path, bases)
        if (known := allowed.name_of(found)) is not None:
            return known, allowed
        name = plugins.path_of(found)
    plugins.LOADED[name] = found
    return name, allowed.with_class(name, found)


def _in_common(
    branch: Mapping[str, Any], old: type | None, new: type, choices: Choices
) -> dict[str, Any]:
    """The values of `branch` that a switch of class keeps; see `build`.

    Without the old class, which has not been imported, its defaults are not known.
    """
    before, now = defaults_of(old, choices) if old else {}, defaults_of(new, choices)
    kept = {key: value for key, value in branch.items() if key in fields_of(new)}
    for key, value in branch.items():
        # A shape is that of the data, whatever the class.
        if key in before and value == before[key] != now.get(key) and not isinstance(value, list):
            kept.pop(key, None)
    return kept


def _merge(default: Mapping[str, Any], branch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `branch` with the values of `default` where it is of the same class and has none."""
    if branch.get("name", default["name"]) != default["name"]:
        return branch
    inner = {
        key: _merge(default[key], value)
        for key, value in branch.items()
        if isinstance(value, Mapping) and isinstance(default.get(key), Mapping)
    }
    return {**default, **branch, **inner}


def _flatten(
    tree: Mapping[str, Any], hints: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """The leaves of `tree` by their dotted keys."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and path not in hints:
            yield from _flatten(value, hints, f"{path}.")
        else:
            yield f"{path}.name" if f"{path}.name" in hints else path, value


def _explain(parser: ArgumentParser, values: Mapping[str, Any], hints: Mapping[str, Any]) -> str:
    """Return in one line which value the parser rejects and what it expects; "" if none."""
    for key, value in values.items():
        try:
            parser.parse_object({key: value})
        except ArgumentError:
            hint, words = hints[key], typing.get_args(hints[key])
            if typing.get_origin(hint) is typing.Literal:
                return f"{key}: no '{value}'" + nearest(str(value), map(str, words))
            return _explain_type(key, value, hint)
    return ""


def _explain_type(key: str, value: Any, hint: Any) -> str:
    return f"{key}: expected {_in_words(hint)}, got {value!r}"


def _in_words(hint: Any) -> str:
    """What a value of a type is, for someone who writes YAML."""
    members, origin = typing.get_args(hint), typing.get_origin(hint)
    if type(None) in members:
        return " or ".join([*(_in_words(m) for m in members if m is not type(None)), "null"])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_in_words, members))
    if origin is typing.Literal:
        return " or ".join(map(str, members))
    if origin is dict and members:
        return f"a mapping, each {_in_words(members[1])}"
    if origin is tuple and members:
        return f"a list, each {_in_words(members[0])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return words.get(hint, str(getattr(hint, "__name__", hint)))


def _construct(
    cls: type[_Class], tree: Mapping[str, Any], choices: Choices, prefix: str = ""
) -> _Class:
    values = {key: value for key, value in tree.items() if key != "name"}
    for name in fields_of(cls).keys() - {*values, *defaults_of(cls, choices)}:
        raise ConfigError(f"{prefix}{name}: is missing and has no default")
    for name, allowed in branches_of(cls, choices).items():
        key, branch = f"{prefix}{name}", values[name]
        chosen = branch["name"]
        if chosen is None and type(None) not in typing.get_args(fields_of(cls)[name]):
            raise ConfigError(f"{key}: is missing; one of {', '.join(allowed)}")
        values[name] = chosen and _construct(allowed[chosen], branch, choices, f"{key}.")
    described: Any = cls
    words = {_key(field): field.name for field in dataclasses.fields(described)}
    with as_chosen(prefix[:-1]):
        return cls(**{words[key]: value for key, value in values.items()})
