"""--data, --data-dir and --task.data: each says what it is, and which one the others are."""

import docstring_parser
import pytest

from equilibria.run.cli.main import main
from equilibria.run.registry import find, resolve

OWN = ["train digits", "evaluate", "initialise digits", "distil"]
"""Commands that take data of one's own."""

NAMED = ["doctor", "gradients", "memory", "export"]
"""Commands that only look for the data of a run."""


def help_of(words, capsys, monkeypatch):
    """What --help says of each option, in one line each."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main([*words.split(), "--help"])
    lines, found, last = capsys.readouterr().out.splitlines(), dict[str, str](), ""
    for line in lines:
        word = line.split()[0].rstrip(",") if line.split() else ""
        if word.startswith("--") and line.startswith("  --"):
            last = word
            found[last] = " ".join(line.split()[1:])
        elif last and line.startswith("    "):
            found[last] += " " + " ".join(line.split())
        else:
            last = ""
    return found


@pytest.mark.parametrize("words", OWN)
def test_each_of_the_options_names_the_other(words, capsys, monkeypatch):
    said = help_of(words, capsys, monkeypatch)
    assert "--data-dir" in said["--data"]
    assert said["--data-dir"].endswith("data of your own: --data")


@pytest.mark.parametrize("words", NAMED)
def test_where_there_is_no_data_it_is_not_advised(words, capsys, monkeypatch):
    said = help_of(words, capsys, monkeypatch)
    assert "--data" not in said and "--data" not in said["--data-dir"].split()
    assert "of a run that have moved" in said["--data-dir"]


@pytest.mark.parametrize("key", ["--task.data", "--task.file"])
@pytest.mark.parametrize("command", ["train", "initialize"])
def test_the_option_and_the_key_exclude_each_other(command, key, capsys):
    assert main([command, "lm-text", "--data", "a.txt", key, "b.txt"]) == 1
    assert f"--data and {key} were both given: leave one out" in capsys.readouterr().err


def test_the_key_of_each_task_names_the_option():
    shown = set()
    for name, place in find("tasks").items():
        config = resolve(place)
        if not config.__module__.startswith("equilibria."):
            continue  # another test's
        for each in docstring_parser.parse(config.__doc__ or "").params:
            if each.arg_name in ("data", "file"):
                assert "--data " in (each.description or ""), (name, each.arg_name)
                shown.add(each.arg_name)
    assert shown == {"data", "file"}
