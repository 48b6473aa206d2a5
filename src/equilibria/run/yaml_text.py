"""YAML of a recipe, from a file that nobody vouches for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from equilibria.run.config import ConfigError
from equilibria.run.data.storage import open_file

SIZE = 1 << 18
"""Maximum number of bytes of a file."""

DEPTH = 32
"""Maximum depth of nesting."""

VALUES = 10_000
"""Maximum number of values, each alias counted as all that it stands for."""


def read(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        ConfigError: the file cannot be read, or `parse` refuses its content; the message begins
            with the path.
    """
    try:
        with open_file(path) as file:
            return parse(file.read(SIZE + 1))
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror or error}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(content: bytes) -> dict[str, Any]:
    """Return the mapping that a text in YAML describes.

    Unlike PyYAML itself, it reads 1e-3 as a number, as YAML 1.2 and Python do.

    Raises:
        ConfigError: the text is not UTF-8, not YAML, not a mapping, has a key twice, or exceeds
            `SIZE`, `DEPTH` or `VALUES`; the message names the line where there is one.
    """
    if len(content) > SIZE:
        raise ConfigError(f"it is larger than {SIZE // 1024} KiB, too large for a recipe")
    loader = None
    try:
        loader = _Loader(content.decode())
        tree = loader.get_single_data()
    except ConfigError:
        raise
    except UnicodeDecodeError as error:
        raise ConfigError(f"it is not UTF-8 text: {error}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML raises a plain ValueError for a date or a number that Python does not have.
        raise ConfigError(f"it is not YAML: {' '.join(str(error).split())}") from None
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(tree, dict):
        raise ConfigError("it must be a mapping of keys to values; see `equilibria recipes`")
    return tree


class _Loader(yaml.SafeLoader):
    """Composes a document within limits, and without a key that hides another."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        line = self.peek_event().start_mark.line + 1
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if node not in self._sizes:  # it stands within what it repeats
                raise ConfigError(f"line {line}: an alias within the value that it stands for")
            return node
        if self._depth == DEPTH:
            raise ConfigError(f"line {line}: nested more than {DEPTH} deep")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            _check_keys(node)
            children = [each for pair in node.value for each in pair]
        size = 1 + sum(self._sizes[each] for each in children)
        if max(size, len(self._sizes)) > VALUES:
            raise ConfigError(f"line {line}: more than {VALUES:,} values, those of aliases counted")
        if node is not None:
            self._sizes[node] = size
        return node


def _check_keys(node: yaml.MappingNode) -> None:
    """Raise ConfigError if a key stands twice: YAML itself would let the last one win."""
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                word, first = repr(key.value[:60]), lines[name]
                raise ConfigError(f"line {line}: the key {word} is there already, on line {first}")
            lines[name] = line


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)
