"""Recipes in YAML that are damaged, ambiguous, or made to exhaust the machine."""

import os

import pytest

from applications import present
from equilibria.run import recipe as recipes
from equilibria.run import yaml_text
from equilibria.run.cli.main import main
from equilibria.run.config import ConfigError
from equilibria.run.run import Folder, RunError

NESTED = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]\n"
    for below, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{below}'] * 10)}]}}\n"
    for below, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (NESTED, "line 5: more than 10,000 values, those of aliases counted"),
        (MERGED, "line 5: more than 10,000 values"),
        ("a: &a [1, *a]", "line 1: an alias within the value that it stands for"),
        ("a: " + "[" * 100_000, "line 1: nested more than 32 deep"),
        ("a: " + "[" * 33 + "]" * 33, "line 1: nested more than 32 deep"),
        ("".join(f"{' ' * k}a:\n" for k in range(40)), "line 32: nested more than 32 deep"),
        ("a: [" + "1, " * 20_000 + "]", "line 1: more than 10,000 values"),
        ("a: " + "x" * (1 << 18), "larger than 256 KiB"),
        ("seed: 1\nepochs: 2\nseed: 3\n", "line 3: the key 'seed' is there already, on line 1"),
        ("model: {name: a, name: b}", "line 1: the key 'name' is there already, on line 1"),
        ("a: *b", "undefined alias"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: 2001-13-45", "not YAML: month must be in 1..12"),
        ("a: " + "9" * 5000, "not YAML: Exceeds the limit"),
        ("a: [1", "not YAML: while parsing a flow sequence"),
        ("a: 1\n---\nb: 1\n", "not YAML: expected a single document"),
        ("a: \0", "not YAML"),
        ("- 1\n", "must be a mapping"),
        ("", "must be a mapping"),
    ],
    ids=lambda text: text[:20],
)
def test_a_text_that_is_damaged_ambiguous_or_a_bomb_is_refused_in_a_line(text, what):
    with pytest.raises(ConfigError) as caught:
        yaml_text.parse(text.encode())
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ordinary_yaml_is_read_with_aliases_and_merged_keys():
    text = "a: &a {x: 1e-3, y: 2}\nb: {<<: *a, y: 3}\nc: *a\nd: 1.5E+2\n1: one\n"
    assert yaml_text.parse(text.encode()) == {
        "a": {"x": 1e-3, "y": 2},
        "b": {"x": 1e-3, "y": 3},
        "c": {"x": 1e-3, "y": 2},
        "d": 150.0,
        1: "one",
    }
    assert yaml_text.parse("\ufeffa: é".encode()) == {"a": "é"}


def test_a_nesting_of_the_maximum_depth_is_read():
    assert yaml_text.parse(b"a: " + b"[" * 31 + b"]" * 31)


def test_the_message_begins_with_the_path(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("seed: 1\nseed: 2\n")
    with pytest.raises(ConfigError) as caught:
        recipes.load(str(path))
    assert str(caught.value) == f"{path}: line 2: the key 'seed' is there already, on line 1"
    path.write_bytes(b"seed: \xff")
    with pytest.raises(ConfigError, match=r"own\.yaml: it is not UTF-8 text"):
        recipes.load(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_pipe_a_folder_or_a_device_is_not_opened_as_a_recipe(tmp_path, make):
    path = tmp_path / "own.yaml"
    make(path)
    with pytest.raises(ConfigError, match=r"own\.yaml: it cannot be read: it is a .*, not a reg"):
        recipes.load(str(path))


def test_a_strangers_run_folder_is_read_within_the_same_limits(tmp_path, tree, capsys):
    folder = Folder(tmp_path / "run")
    folder.create(recipes.parse(tree))
    folder.recipe.write_text(folder.recipe.read_text() + "seed: 3\n")
    with pytest.raises(RunError, match=r"recipe\.yaml is damaged: line \d+: the key 'seed' is"):
        folder.read_recipe()
    folder.recipe.write_text(NESTED)
    for command in ("evaluate", "report"):
        assert main([command, str(folder.path)]) != 0
        assert "more than 10,000 values" in " ".join(capsys.readouterr().err.split())


INLINE = "[&a [1, 2, 3, 4, 5, 6, 7, 8, 9]" + "".join(
    f", &{name} [{', '.join([f'*{below}'] * 9)}]"
    for below, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("bomb", [INLINE + "]", "[" * 20_000 + "]" * 20_000], ids=["alias", "deep"])
def test_yaml_in_a_text_of_a_recipe_is_not_read(tree, bomb):
    tree["description"] = bomb
    assert recipes.parse(tree).description == bomb
    for key in ("epochs", "clip", "precision"):
        with pytest.raises(ConfigError, match=f"{key}: expected"):
            recipes.parse({**tree, key: bomb})


def test_a_text_is_taken_as_it_is_and_null_is_still_none(tree):
    words = ("[x]: 1.txt", "7", "true", "- a", "", "1e-3")
    for word in words:
        assert recipes.parse(tree, ["--description", word]).description == word
    if not present("language"):
        return
    language = {
        "task": {"name": "language_modeling", "file": "a.txt"},
        "model": {"name": "deq-transformer"},
    }
    assert recipes.parse(language, ["--task.data", "ptb", "--task.file", "null"]).task.file is None
