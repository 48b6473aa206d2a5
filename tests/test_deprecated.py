"""An old name leads to the new one, and says so to whoever uses it."""

import types

import pytest

from equilibria import nn
from equilibria.deprecated import aliases, keyword


def test_an_old_name_is_the_new_one_and_warns_where_it_is_used() -> None:
    old = types.ModuleType("old")
    old.__getattr__ = aliases("old", {"Layer": "equilibria.nn.DEQ"})
    with pytest.warns(DeprecationWarning, match=r"old\.Layer.*equilibria\.nn\.DEQ") as warned:
        assert old.Layer is nn.DEQ
    assert warned[0].filename == __file__
    with pytest.raises(AttributeError, match="module 'old' has no attribute 'Lair'"):
        _ = old.Lair


def test_a_keyword_goes_by_its_old_name_too() -> None:
    @keyword("old", "new", lambda value: 10 * value)
    def function(new: int) -> int:
        return new

    assert function(new=1) == 1
    with pytest.warns(DeprecationWarning, match=r"function\(old=\.\.\.\).*use new") as warned:
        assert function(old=1) == 10  # pyright: ignore[reportCallIssue]
    assert warned[0].filename == __file__
    with pytest.raises(TypeError, match="both new and old"):
        function(old=1, new=2)  # pyright: ignore[reportCallIssue]
