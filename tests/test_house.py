"""The house stands: imports run down only, the core stays light, every page says what it is."""

import ast
import functools
import graphlib
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "equilibria"
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}

# The public names of `equilibria` itself: they show the rooms up to the third floor.
FLOORS = {
    "cli": 6,
    "experiments": 5,
    "bench": 5,
    "export": 5,
    "predict": 5,
    "train": 4,
    "tasks": 4,
    "": 3.5,
    "models": 3,
    "stability": 3,
    "theory": 3,
    "learned": 3,
    "nn": 2,
    "solve": 1,
    "data": 1,
    "report": 1,
    "draws": 0,
    "metric": 0,
    "precision": 0,
    "files": 0,
    "own": 0,
    "checks": 0,
    "words": 0,
}

# --- what imports what ---------------------------------------------------------------------------


def resolve(name: str) -> str:
    """The module that a dotted name is in: itself, or the one that defines its last part."""
    return name if name in MODULES or not name.startswith("equilibria.") else parent(name)


def parent(name: str) -> str:
    return resolve(name.rpartition(".")[0])


def nodes(tree: ast.AST, late: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every statement, and whether it runs later than its module is imported, or never."""
    late |= isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types_alone(tree)
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield node, late
            yield from nodes(node, late)


def imports(module: str) -> tuple[tuple[str, bool], ...]:
    """The modules that `module` imports, and whether this happens as it is itself imported."""
    return read(module)[1]


@functools.cache
def read(module: str) -> tuple[str | None, tuple[tuple[str, bool], ...]]:
    """What a module says of itself, and its `imports`; trees of all would fill the memory."""
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
            if not source.startswith("equilibria"):
                names = [source]
        else:
            continue
        found += [(resolve(name), not late) for name in names]
    return ast.get_docstring(tree), tuple(found)


def is_for_types_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def room(module: str) -> str:
    """``solve`` of ``equilibria.solve.loop``; the package itself is the room ``""``."""
    return [*module.split("."), ""][1]


def inner(module: str) -> list[tuple[str, bool]]:
    """What `module` imports of this package."""
    return sorted({(name, now) for name, now in imports(module) if name.startswith("equilibria")})


PLACED = [module for module in MODULES if module not in ("equilibria", "equilibria.__main__")]


def test_the_reader_of_imports_sees_them() -> None:
    assert ("equilibria.data.errors", True) in inner("equilibria.data.idx")
    assert ("equilibria.data.idx", True) in inner("equilibria.data.mnist")
    assert "sklearn.datasets" in {
        name for name, now in imports("equilibria.data.digits") if not now
    }


def test_every_module_is_on_a_floor() -> None:
    homeless = [m for m in PLACED if room(m) not in FLOORS and imports(m)]
    assert not homeless, f"in no known room: {homeless}"


def test_no_import_runs_up_a_floor() -> None:
    def floor(module: str) -> float:
        return FLOORS.get(room(module), 0)

    up = [(m, name) for m in PLACED for name, _ in inner(m) if floor(name) > floor(m)]
    assert not up, f"modules, and what they import from a higher floor: {up}"


def test_the_rooms_of_the_first_floor_do_not_know_each_other() -> None:
    known = {
        (room(module), room(name))
        for module in PLACED
        for name, _ in inner(module)
        if FLOORS.get(room(module)) == 1
    }
    assert {pair for pair in known if pair[0] != pair[1] and FLOORS[pair[1]]} == set()


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
        for name, _ in imports(module)
        if name.partition(".")[0] not in allowed
    }
    assert others == set()


def test_other_rooms_import_the_public_names_of_solve() -> None:
    inner = {
        (module, node.module)
        for module, path in MODULES.items()
        if room(module) != "solve"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equilibria.solve.")
    }
    assert inner == set()


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


def test_recipes_are_shipped() -> None:
    shipped = sorted(path.stem for path in (SOURCE / "recipes").glob("*.yaml"))
    families = [name for name in shipped if name.startswith(("lm-", "mdeq-"))]
    assert [name for name in shipped if name not in families] == [
        *("adding", "camvid", "chains", "cityscapes-large-paper", "cityscapes-small-paper"),
        *("cityscapes-xl-paper", "copy-memory", "cora", "cox2"),
        *("digits", "digits-jr", "dsa19"),
        *("film", "film-gpu"),
        *("flow-chairs-gpu", "flow-kitti-gpu", "flow-layers", "flow-layers-gpu"),
        *("flow-layers-raft", "flow-sintel-gpu", "flow-things-gpu"),
        *("google12", "google30", "graphs", "har2"),
        *("image", "image-gpu"),
        *("mnist", "mnist-dense", "mnist-dense-gpu"),
        *("nodes", "noisy-cifar10", "noisy-mnist", "order"),
        *("permuted-mnist", "pixel-mnist", "ppi-paper", "proteins"),
        *("segment-folder", "sequences", "shape", "shape-gpu", "shapes"),
        *("sound", "sound-gpu"),
        *("yelp5",),
    ]
    words = {"lm-ptb", "lm-ptb-gpu", "lm-ptb-trellisnet-paper", "lm-text", "lm-wt103"}
    pictures = {"mdeq-cifar10-16", "mdeq-mnist-16", "mdeq-cifar10-gpu", "mdeq-cifar10-tiny-paper"}
    assert words | pictures <= {*families}


def test_no_file_names_the_folder_it_was_written_in() -> None:
    texts = [
        path
        for pattern in ("*.md", "*.toml", "src/**/*.py", "src/**/*.yaml", "docs/*.md", "tests/**/*")
        for path in ROOT.glob(pattern)
        if path.is_file() and path.suffix != ".pyc"
    ]
    assert texts
    assert [path for path in texts if f"{ROOT}/" in path.read_text()] == []
