"""How the command line begins and ends: without its packages, and with a reader that has left."""

import os
import re
import subprocess
import sys
import zipfile

import pytest

from equilibria.run.cli import errors
from equilibria.run.cli.main import commands, main
from equilibria.run.registry import find


def python(*words, path=None):
    """What another interpreter ends with, which works and imports from `path` too."""
    found = os.pathsep.join([*map(str, [path] * bool(path)), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": found},
        cwd=path,
        capture_output=True,
        text=True,
    )
    assert words[0] != "-c" or done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("command", commands())
def test_a_command_without_its_extra_names_it_in_one_line(command, capsys, monkeypatch):
    real = errors.metadata.distributions
    absent = {"accelerate", "scikit-learn", "pandas"}
    monkeypatch.setattr(
        errors.metadata, "distributions", lambda name: () if name in absent else real(name=name)
    )
    for module in ("equilibria.run.config", commands()[command][1]):
        monkeypatch.setitem(sys.modules, module, None)  # as where one of its packages is not there
    assert main([command, "--help"]) == 1
    out, error = capsys.readouterr()
    extra = command if command in ("reproduce", "bench", "export", "completion") else "cli"
    packages = ["accelerate", *["pandas"] * (extra in ("reproduce", "bench")), "scikit-learn"]
    (listed,) = re.findall(r"not installed \((.*?)\)", error)
    assert {*packages} <= {*listed.split(", ")}  # further ones of `export` may be absent too
    assert f"[{extra}]'" in error and "pip install -e '/" in error  # of this checkout
    assert len(error.splitlines()) == 1 and not out


@pytest.mark.parametrize("argv", [["--help"], ["evaluate", "--help"], ["recipes"]], ids=" ".join)
def test_a_reader_that_has_seen_enough_is_no_error(argv):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "equilibria", *argv]
    run = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert run.stderr == ""
    assert run.returncode in (0, 1)  # argparse itself takes a closed pipe for printed


OWN = """
from dataclasses import dataclass
from equilibria.run import tasks
from equilibria.zoo.vision.task.classification import ImageClassification

@dataclass(frozen=True, kw_only=True)
class Mine(ImageClassification):
    shade: float = 0.5

tasks.register("mine", Mine)
"""


def test_a_file_of_ones_own_registers_what_a_recipe_names(tmp_path, capsys, fails, monkeypatch):
    monkeypatch.setitem(find("tasks"), "mine", None)  # which is undone
    monkeypatch.delitem(find("tasks"), "mine")
    (tmp_path / "own.py").write_text(OWN)
    recipe = ["digits", "--task.name", "mine", "--task.shade", "0.25"]
    assert "no 'mine'" in fails("train", *recipe, "--help")
    with pytest.raises(SystemExit):
        main(["--import", str(tmp_path / "own.py"), "train", *recipe, "--help"])
    assert "--task.shade" in capsys.readouterr().out


def test_outside_a_checkout_both_ways_to_install_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(errors, "find_missing", lambda extra: ["rich"])
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "a" / "b" / "c" / "d" / "errors.py"))
    advice = errors.advise_install("bench")
    assert advice.endswith("pip install 'equilibria[bench]', or in a clone pip install '.[bench]'")


def test_help_loads_no_torch_and_a_command_of_the_frame_no_application():
    start = "import sys, zipfile; from equilibria.run.cli.main import main; "
    light = 'assert main(["--help"]) == 0 and not {"torch", "importlib.metadata"} & {*sys.modules}'
    python("-c", start + light)
    bare = (
        'sys.modules["equilibria.run.registry"] = sys.modules["equilibria.run.cli.recipes"] = None;'
        'assert main(["recipes"]) == 1'
    )
    done = python("-c", start + bare)
    assert "equilibria.run.cli.recipes" in done.stderr and "registry" not in done.stderr


APPLICATION = """
from equilibria.run.cli.options import ConfigOptions
from equilibria.run.registry import Application

APPLICATION = Application(
    package=__name__,
    commands={"rain": ("tell whether it will rain", "weather"), "train": ("never", "nowhere")},
    options={"evaluate.weather": "weather:Weather"},
)
LESS_MEMORY = "wait for the sun"

def main(words):
    if words:
        raise MemoryError
    print("yes")

class Weather(ConfigOptions):
    def add_to(self, parser):
        parser.add_argument("--sky", type=str, help="how it looks")

    def changes_of(self, arguments, recipe):
        return {}
"""


def install(files, name, folder):
    """Install a distribution whose package `name` is an application, from a wheel, by pip."""
    about, wheel = f"{name}-1.dist-info", folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {
            **files,
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/entry_points.txt": f"[equilibria.applications]\n{name} = {name}\n",
            f"{about}/RECORD": "",
        }.items():
            archive.writestr(path, text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(folder), str(wheel)], check=True)


OWN_FRONT = """
from equilibria.run.registry import Application

APPLICATION = Application(
    package=__name__,
    models={"plain": ".parts:PlainConfig"},
    data={"equilibria.run.data.dataset:Dataset": {"stripes": ".parts:STRIPES"}},
    tasks={"striped": ".parts:Striped"},
)
"""

OWN_PARTS = """
from dataclasses import dataclass

import torch
from torch import nn

from equilibria.nn import DEQ
from equilibria.run.data import Dataset, Split
from equilibria.run.models import ClassifierConfig, EquilibriumModel
from equilibria.zoo.io.remote import Entry, Remote
from equilibria.zoo.vision.task.classification import ImageClassification


@dataclass(frozen=True, kw_only=True)
class PlainConfig(ClassifierConfig):
    shape: tuple[int, ...] = (1, 8, 8)
    classes: int = 2

    def build(self, **layer):
        return Plain(**layer)


class Plain(EquilibriumModel):
    def __init__(self, **layer):
        super().__init__()
        self.embed, self.head = nn.Linear(64, 8), nn.Linear(8, 2)
        self.deq = DEQ(lambda z, u: torch.tanh(0.5 * z + u), **layer)

    def inject(self, x):
        return (self.embed(x.flatten(1)),)

    def readout(self, z):
        return self.head(z)


def read(files):
    draw = torch.Generator().manual_seed(0)

    def split(count):
        rows = torch.rand(count, 8, 1, generator=draw).expand(-1, 8, 8)
        targets = torch.arange(count) % 2
        images = torch.where(targets.view(-1, 1, 1) == 0, rows, rows.mT)
        return Split(images.unsqueeze(1), targets)

    return Dataset.of(files, {"train": split(40), "test": split(20)}, ("rows", "columns"))


STRIPES = Entry(
    name="stripes",
    title="Stripes",
    read=read,
    remotes=(Remote(files=(), addresses=("drawn",), license="CC0"),),
)


@dataclass(frozen=True, kw_only=True)
class Striped(ImageClassification):
    pass
"""

OWN_RECIPE = """
description: stripes by a plain layer
task: {name: striped, data: stripes}
model: {name: plain}
solver: {name: Picard}
adjoint: {name: Implicit}
optimizer: {name: Adam, lr: 0.01}
schedule: {name: Constant}
epochs: 1
batch_size: 20
"""


def test_another_distribution_adds_all_that_a_recipe_names(tmp_path):
    folder = "striped_deq"
    package = {
        f"{folder}/__init__.py": OWN_FRONT,
        f"{folder}/parts.py": OWN_PARTS,
        f"{folder}/recipes/stripes-plain.yaml": OWN_RECIPE,
    }
    install(package, folder, tmp_path)
    for words in ("recipes", "train stripes-plain --out run", "evaluate run"):
        done = python("-m", "equilibria", *words.split(), path=tmp_path)
        assert done.returncode == 0, done.stderr
        assert words != "recipes" or "stripes-plain" in done.stdout


def test_another_distribution_adds_commands_and_options(tmp_path):
    install({"weather.py": APPLICATION}, "weather", tmp_path)

    def run(*words):
        done = python("-m", "equilibria", *words, path=tmp_path)
        return done.stdout + done.stderr

    listed = run("--help")
    assert "  rain        tell whether it will rain" in listed and "never" not in listed
    taken = "the command 'train' of nowhere is left out: equilibria has that name\n"
    assert run("rain") == f"yes\nwarning: {taken}"
    assert run("rain", "--quiet") == "equilibria rain: error: out of memory: wait for the sun\n"
    assert "did you mean 'rain'?" in run("rainn")
    shown = run("evaluate", "--help")
    assert "--sky" in shown and "--memory" in shown and "--scales" in shown


BROKEN = {
    "raises": ("raise OSError('rusty')", "is left out: OSError: rusty"),
    "is none": ("APPLICATION = 3", "is left out: TypeError: the entry point"),
    "takes a name": (
        "from equilibria.run.registry import Application\n"
        'APPLICATION = Application(package=__name__, models={"dense": ".gone:Config"})',
        "'dense' in models is that of equilibria.zoo.vision: broken, which uses the name too",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_application_takes_nothing_with_it(how, tmp_path):
    text, said = BROKEN[how]
    install({"broken.py": text}, "broken", tmp_path)
    code = (
        "from equilibria.run.cli.main import main\n"
        "from equilibria.run import recipe\n"
        "assert type(recipe.load('digits').model).__name__ == 'DenseConfig'\n"
        "assert main(['--help']) == 0\n"
    )
    assert said in python("-c", code, path=tmp_path).stderr
