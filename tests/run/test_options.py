"""Options, help and lists: as they are typed, on a terminal of 80 columns and in a pipe."""

import functools
import re
from dataclasses import replace

import docstring_parser
import pytest
import yaml

from equilibria import __version__
from equilibria.run import config
from equilibria.run import recipe as recipes
from equilibria.run.cli.main import commands, main
from equilibria.run.registry import find, find_imported, resolve
from equilibria.run.studies import catalog
from shared_runs import TINY


def printed(capsys, *argv):
    capsys.readouterr()
    try:
        assert main(argv) == 0
    except SystemExit as ended:
        assert ended.code == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("options")
    (path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return path


def test_hyphens_and_underscores_are_alike():
    found = recipes.load(
        "digits", ["--batch-size", "7", "--solver.max-evals=9", "--eval_batch-size=5"]
    )
    assert (found.batch_size, found.solver.max_evals, found.eval_batch_size) == (7, 9, 5)


@pytest.mark.parametrize(
    "words", [["--version"], ["train", "--version"], ["doctor", "a", "--version"]]
)
def test_the_version_is_told_wherever_it_is_asked_for(words, capsys):
    found = printed(capsys, *words)
    assert found.startswith(f"equilibria {__version__}, ")
    assert "fused operators" in found or "torch operations" in found


@pytest.mark.usefixtures("shallow", "unsaved")
def test_quiet_leaves_where_the_result_is(folder, capsys):
    run, recipe = str(folder / "run"), str(folder / "tiny.yaml")
    assert printed(capsys, "--quiet", "train", recipe, "--out", run) == f"{run}\n"
    assert printed(capsys, "evaluate", run, "--quiet") == f"{run}/evaluation.json\n"
    assert printed(capsys, "memory", run, "--quiet") == f"{run}/memory.json\n"
    out = str(folder / "initialise")
    sizes = ("--draws", "1", "--samples", "4", "--scales", ".5", "--ensembles", "goe")
    said = printed(capsys, "initialise", recipe, "--quiet", "--out", out, *sizes)
    assert said == f"{out}/initialise.json\n"
    assert main(["doctor", run, "--quiet", "--samples", "2", "--starts", "1"]) in (0, 3)
    assert capsys.readouterr() == (f"{run}/doctor.json\n", "")
    assert main(["report", run, "--quiet"]) == 0
    assert capsys.readouterr() == (f"{run}/report.html\n", "")


def test_quiet_leaves_names_of_a_list(capsys):
    assert printed(capsys, "recipes", "--quiet").split("\n")[:-1] == recipes.available()
    assert printed(capsys, "reproduce", "--quiet").split("\n")[:-1] == list(catalog.names())


@pytest.mark.parametrize("words", [(), *((name,) for name in commands()), ("train", "digits")])
def test_help_fits_80_columns_and_has_no_python_in_it(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = printed(capsys, *words, "--help")
    assert max(map(len, out.splitlines())) <= 80
    assert not re.search(r"%%|<function|<class|lambda>|\bNone\b|NoneType|\(type:", out)


def test_the_help_of_a_recipe_shows_what_could_be_chosen_in_place_of_null(capsys):
    out = printed(capsys, "train", "digits", "--help")
    for key in ("initialization.ensemble", "regularizer.gamma", "regularizer.controller.evals"):
        assert f"  --{key} " in out
    assert "--regularizer.name NAME" in out
    assert re.search(r"--solver.rtol FLOAT\|LIST\|MAPPING\s+relative tolerance", out)
    assert re.search(r"--regularizer.name.*?default: null", out, re.DOTALL)


def test_the_help_of_a_recipe_names_the_keys_of_every_class(capsys):
    out = printed(capsys, "train", "digits", "--help")
    chosen = {"image_classification", "dense", "Anderson", "Implicit", "GMRES"}
    more = out[out.index("other classes") :]
    found = {}
    for name, keys in re.findall(r"^    ([\w-]+): ((?:.|\n {8})*)", more, re.MULTILINE):
        found.setdefault(name, set()).update(re.split(r",\s+", keys.strip()))
    single = {"Initialization", "JacobianPenalty", "EvaluationBudget", "FixedPointCorrection"}
    single |= {"Alternating", "Checkpointing", "RandomPath"}
    shown = chosen | single | {"ShallowStart", "AdamW", "Cosine", "ForwardBackward"}
    foreign = set()
    for name, base, place in recipes.choices().entries:
        cls = find_imported(place)
        if cls is None and find_imported(base):  # of an application that the recipe does not need
            foreign.add(name)
        if cls is None or name in shown:
            continue
        names = {key.removesuffix(".name") for key in found[name]} - {"none"}
        assert names == set(config.fields_of(cls)), name
    listed = re.findall(r"^    ((?:.|\n {8})*?):\s+keys\s+with\s+--", more, re.MULTILINE)
    assert foreign <= {name for names in listed for name in re.split(r",\s+", names)}


@pytest.mark.parametrize("command", ["recipes", "reproduce"])
def test_names_in_a_list_are_whole(command, capsys, monkeypatch):
    # Every study with the points of one: the real grids are read in test_studies.py.
    few = catalog.find("digits/training").points("cpu")[:2]
    find, load = catalog.find, functools.cache(recipes.load)
    monkeypatch.setattr(catalog, "find", lambda name: replace(find(name), points=lambda _: few))
    monkeypatch.setattr(recipes, "load", load)
    names = recipes.available() if command == "recipes" else catalog.names()
    for columns in (None, "80", "60"):
        for name in ("COLUMNS", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        if columns:  # a terminal of this width
            monkeypatch.setenv("COLUMNS", columns)
            monkeypatch.setenv("FORCE_COLOR", "1")
        shown = re.sub(r"\x1b\[[\d;]*m", "", printed(capsys, command))
        assert set(names) <= set(shown.split()) and "…" not in shown
        table = shown.splitlines()[: len(names)]
        assert columns is None or max(map(len, table)) <= int(columns)


# --- --data, --data-dir and --task.data: each says what it is, and which one the others are -------


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
def test_the_option_and_the_key_exclude_each_other(command, key, fails):
    assert f"--data and {key} were both given: leave one out" in fails(
        command, "lm-text", "--data", "a.txt", key, "b.txt"
    )


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
