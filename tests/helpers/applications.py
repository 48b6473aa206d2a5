"""Which applications there are: a test that needs one says so, and is skipped without it."""

from importlib.resources import files

import pytest

from equilibria import zoo


def present(*names: str) -> bool:
    return {*names} <= {*zoo.APPLICATIONS}


def needs(*names: str) -> pytest.MarkDecorator:
    """Marks tests, and their cases, outside of the folders of applications that they use."""
    return pytest.mark.skipif(not present(*names), reason=f"needs {', '.join(names)} of the zoo")


def recipes_of(name: str) -> list[str]:
    """The recipes that an application ships."""
    folder = files(f"equilibria.zoo.{name}") / "recipes"
    return sorted(each.name.removesuffix(".yaml") for each in folder.iterdir())
