"""The house stands: rooms, floors, applications side by side, and what each command loads."""

import ast
import functools
import graphlib
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from applications import needs
from equilibria import zoo
from equilibria.run import registry

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "equilibria"
PAPERS = ROOT / "papers"
MODULES = {
    ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): path
    for base, folder in ((SOURCE.parent, SOURCE), (ROOT, PAPERS))
    for path in sorted(folder.rglob("*.py"))
}

FLOORS = {
    "papers": 8,
    "__main__": 7.5,
    "zoo": 7,
    "zoo.io": 6,
    "run": 5,
    "": 4.5,
    "stability": 4,
    "learned": 4,
    "theory": 3,
    "nn": 2,
    "solve": 1,
    **dict.fromkeys(("precision", "metric", "draws", "files"), 0.5),
    **dict.fromkeys(("checks", "words"), 0),
}
"""The rooms, and modules that stand beside them, by the floor that they are on: each knows those
below it. `equilibria` itself shows the rooms up to the fourth floor."""

APPLICATIONS = tuple(
    path.name for path in sorted((SOURCE / "zoo").iterdir()) if (path / "__init__.py").is_file()
)

# --- what imports what ---------------------------------------------------------------------------


def home(name: str) -> str:
    """The module that a dotted name is in: itself, or the one that defines its last part."""
    known = name in MODULES or not name.startswith(("equilibria.", "papers."))
    return name if known else home(name.rpartition(".")[0])


def nodes(tree: ast.AST, late: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every statement, and whether it runs later than its module is imported, or never."""
    late |= isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types_alone(tree)
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield node, late
            yield from nodes(node, late)


def is_for_types_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


@functools.cache
def read(module: str) -> tuple[str | None, tuple[tuple[str, bool], ...]]:
    """What a module says of itself; what it imports, and whether as it is itself imported."""
    tree = ast.parse(MODULES[module].read_text())
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    found = []
    for node, late in nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: 1 - node.level or None]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            names = [f"{source}.{alias.name}" for alias in node.names]
            if not source.startswith(("equilibria", "papers")):
                names = [source]
        else:
            continue
        found += [(home(name), not late) for name in names]
    return ast.get_docstring(tree), tuple(found)


def inner(module: str) -> list[tuple[str, bool]]:
    """What `module` imports of this project."""
    own = ("equilibria", "papers")
    return sorted({(name, now) for name, now in read(module)[1] if name.partition(".")[0] in own})


def room(module: str) -> str:
    """``solve`` of ``equilibria.solve.loop``, ``zoo.flow`` of what is in that application."""
    first, *rest = module.split(".")
    if first == "papers" or not rest:
        return first if first == "papers" else ""
    return ".".join(rest[:2]) if rest[0] == "zoo" else rest[0]


def floor(module: str) -> float:
    name = room(module)
    return FLOORS["zoo" if name not in FLOORS and name.startswith("zoo.") else name]


PLACED = [module for module in MODULES if module != "equilibria"]


def test_the_reader_of_imports_sees_them() -> None:
    assert ("equilibria.run.data.storage", True) in inner("equilibria.zoo.io.download")
    assert ("sklearn.datasets", False) in read("equilibria.zoo.vision.data.digits")[1]


def test_every_module_is_in_a_known_room() -> None:
    homes = {*FLOORS, *(f"zoo.{name}" for name in APPLICATIONS)}
    assert {room(module) for module in MODULES} <= homes


def test_no_import_runs_up_a_floor() -> None:
    up = [(m, name) for m in PLACED for name, _ in inner(m) if floor(name) > floor(m)]
    assert not up, f"modules, and what they import from a higher floor: {up}"


def test_no_application_imports_another() -> None:
    across = [
        (module, name)
        for module in PLACED
        for name, _ in inner(module)
        if floor(module) == floor(name) == FLOORS["zoo"]
        and room(module) != room(name)
        and room(name) != "zoo"
    ]
    assert not across, f"modules, and what they import of another application: {across}"


def test_no_string_names_another_application() -> None:
    """A place such as "equilibria.zoo.flow.gallery:GALLERY" is an import that nobody sees."""
    pattern = re.compile(rf"equilibria\.(zoo\.(?:{'|'.join(APPLICATIONS)}))\b")
    named = [
        (module, node.value)
        for module, path in MODULES.items()
        if room(module) != "papers"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in pattern.findall(node.value)
        if name not in ("zoo.io", room(module))
        or (name == "zoo.io" and floor(module) < FLOORS["zoo.io"])
    ]
    assert not named, f"modules, and the strings by which they know an application: {named}"


def test_no_rooms_import_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for module in PLACED:
        others = {room(name) for name, _ in inner(module)}
        graph.setdefault(room(module), set()).update(others - {room(module)})
    list(graphlib.TopologicalSorter(graph).static_order())


def test_no_modules_import_in_a_circle() -> None:
    # A package may name its own modules in its __init__; those reach it through its parts.
    graph = {
        module: {name for name, now in inner(module) if now and name != module}
        for module in MODULES
        if MODULES[module].name != "__init__.py"
    }
    list(graphlib.TopologicalSorter(graph).static_order())


def test_solve_imports_torch_alone() -> None:
    allowed = {"torch", "typing_extensions", "equilibria", *sys.stdlib_module_names}
    others = {
        (module, name)
        for module in MODULES
        if room(module) == "solve"
        for name, _ in read(module)[1]
        if name.partition(".")[0] not in allowed
    }
    assert others == set()


def test_other_rooms_import_the_public_names_of_solve() -> None:
    below = {
        (module, node.module)
        for module, path in MODULES.items()
        if room(module) != "solve"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equilibria.solve.")
    }
    assert below == set()


# --- applications --------------------------------------------------------------------------------


@pytest.mark.parametrize("application", registry.applications(), ids=lambda each: each.package)
def test_an_application_registers_what_is_in_its_folder(
    application: registry.Application,
) -> None:
    own = f"{application.package}."
    sections: tuple[Any, ...] = ("models", "data", "tasks", "classes", "galleries", "options")
    places = [place for name in sections for place in registry.places(application, name)]
    assert places
    for place in places:
        thing = registry.resolve(place)
        assert place.startswith(own), place
        if isinstance(thing, type):
            assert registry.place_of(thing) == place


def test_whatever_a_recipe_may_name_is_registered() -> None:
    """A model or a task without a line in its application's `__init__` would be found by nobody."""
    from equilibria.run.models import ModelConfig
    from equilibria.run.tasks import TaskConfig

    for module in MODULES:
        if room(module).startswith("zoo."):
            importlib.import_module(module)
    for base, section in ((ModelConfig, "models"), (TaskConfig, "tasks")):
        known = {registry.resolve(place) for place in registry.find(section).values()}
        waiting, lost = [base], []
        while waiting:
            cls = waiting.pop()
            waiting += cls.__subclasses__()
            own = cls.__module__.startswith("equilibria.zoo.")
            if own and not inspect.isabstract(cls) and not cls.__subclasses__():
                lost += [cls] if cls not in known else []
        assert not lost, f"{section} that no application registers: {lost}"


def loaded(*words: str) -> set[str]:
    """The modules of applications that a command loads, less the fronts that register them."""
    code = (
        "import sys\n"
        "from equilibria.run.cli.main import main\n"
        "try:\n"
        f"    status = main({list(words)})\n"
        "except SystemExit as end:\n"
        "    status = end.code\n"
        "assert not status, status\n"
        "print(*(name for name in sys.modules if name.startswith('equilibria.zoo.')))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = {*run.stdout.splitlines()[-1].split()}
    return {name for name in names if name.count(".") > 2}


def test_training_loads_no_other_application() -> None:
    options = ("--epochs", "1", "--epoch_steps", "1", "--model.width", "8", "--quiet")
    names = loaded("train", "digits", "--out", "run", *options)
    assert {room(name) for name in names} <= {"zoo.vision", "zoo.io"}


OPTIONS = {"zoo.vision", "zoo.language", "zoo.io"}
"""The applications that add options to `evaluate`: the modules with these, and no network."""


@pytest.mark.parametrize(
    ("words", "rooms"),
    [
        (["train", "digits", "--help"], {"zoo.vision", "zoo.io"}),
        pytest.param(["train", "cora", "--help"], {"zoo.graph", "zoo.io"}, marks=needs("graph")),
        pytest.param(["flow", "--help"], {"zoo.flow", "zoo.io"}, marks=needs("flow")),
        pytest.param(["encode", "--help"], {"zoo.signal", "zoo.io"}, marks=needs("signal")),
        (["doctor", "--help"], {"zoo.io"}),
        (["evaluate", "--help"], OPTIONS),
        (["--help"], set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_loads_no_other_application(words: list[str], rooms: set[str]) -> None:
    names = loaded(*words)
    assert {room(name) for name in names} <= rooms
    assert rooms is not OPTIONS or not any(".model." in name for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in zoo.APPLICATIONS if name != "vision"])
def test_an_application_can_be_deleted(name: str, tmp_path: Path) -> None:
    """Without its folder and its line, all that is left is imported, lists itself, and trains.

    Training is tried on digits, which vision has.
    """
    copy = tmp_path / "src" / "equilibria"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PAPERS, tmp_path / "papers", ignore=shutil.ignore_patterns("__pycache__"))
    places = {
        place
        for section in ("models", "data", "tasks", "commands")
        for place in registry.places(application_called(name), section)
    }
    shutil.rmtree(copy / "zoo" / name)
    front = copy / "zoo" / "__init__.py"
    text = front.read_text()
    front.write_text(re.sub(rf'"{name}",\s*', "", text))
    assert front.read_text() != text
    code = f"""
import importlib, pathlib, equilibria
from equilibria.run import recipe, registry
from equilibria.run.cli.main import commands, main
root = pathlib.Path(equilibria.__file__).parent
assert root == pathlib.Path({str(copy)!r})
for path in root.rglob("*.py"):
    parts = path.relative_to(root.parent).with_suffix("").parts
    if parts[-1] != "__main__":
        try:
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
        except ModuleNotFoundError as error:  # of an extra that is not installed
            assert error.name.partition(".")[0] != "equilibria", (path, error)
left = {{place for each in registry.applications() for section in ("models", "data", "tasks")
        for place in registry.places(each, section)}}
assert left and not left & {places!r}
for words in (["--help"], ["recipes"], ["reproduce"]):
    assert main(words) in (0, None), words
for command in commands():
    try:
        main([command, "--help"])
    except SystemExit as end:
        assert not end.code, command
assert main(["train", "digits", "--epochs", "1", "--epoch_steps", "1", "--quiet"]) == 0
"""
    path = os.pathsep.join([str(copy.parent), os.environ["PYTHONPATH"]])
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=True)


def application_called(name: str) -> registry.Application:
    return next(a for a in registry.applications() if a.package == f"equilibria.zoo.{name}")


# --- what `import equilibria` costs --------------------------------------------------------------


def test_the_core_imports_torch_and_its_dependencies_alone() -> None:
    code = (
        "import sys, torch, numpy, typing_extensions\n"
        "core = {*sys.modules}\n"
        "import equilibria\n"
        "print(*{name.partition('.')[0] for name in {*sys.modules} - core})\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*run.stdout.split()} - sys.stdlib_module_names == {"equilibria"}


# --- what stands in the files --------------------------------------------------------------------


def test_every_module_begins_with_what_it_is_about() -> None:
    assert [module for module in MODULES if not read(module)[0]] == []


def test_public_names_say_what_they_are() -> None:
    silent = []
    for module in (m for m in MODULES if MODULES[m].name == "__init__.py"):
        package = importlib.import_module(module)
        for name in getattr(package, "__all__", ()):
            thing = getattr(package, name)
            # A dataclass without a docstring gets its signature for one.
            if not inspect.getdoc(thing) or str(thing.__doc__).startswith(f"{name}("):
                silent.append((module, name))
    assert not silent, f"public names without a docstring: {silent}"


def test_no_file_names_the_folder_it_was_written_in() -> None:
    patterns = ("*.md", "*.toml", "src/**/*.py", "src/**/*.yaml", "docs/*.md", "tests/**/*")
    texts = [
        path
        for pattern in (*patterns, "papers/**/*.py", "papers/**/*.md")
        for path in ROOT.glob(pattern)
        if path.is_file() and path.suffix != ".pyc"
    ]
    assert texts
    assert [path for path in texts if f"{ROOT}/" in path.read_text()] == []
