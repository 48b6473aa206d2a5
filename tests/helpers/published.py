"""What a recipe says of what is published."""

from typing import Any


def among(tree: Any, part: Any) -> Any:
    """The entries of a tree that a part of it names."""
    if isinstance(part, dict):
        return {key: among(tree[key], each) for key, each in part.items()}
    return list(tree) if isinstance(tree, tuple) else tree
