"""Print the measures of the house: how much code there is, and how it hangs together.

    python tests/house/measure.py              # all measures
    python tests/house/measure.py lines walk   # some of them
    python tests/house/measure.py participles --list

| measure | what it counts |
|---|---|
| lines | code lines, files and classes by room, without blank lines, comments and docstrings |
| budgets | code lines and files beside what the design allows once files have been merged |
| walk | files of the package that a solve and its backward pass through |
| calls | Python calls of the package before the first f, and between two evaluations |
| imports | imports, from another room, of a module below a room's front (`equilibria.ROOM`) |
| public | names in the `__all__` of the packages |
| twice | class names that are defined more than once |
| participles | functions named by a participle; those that return a bool are left out |
| small | files with a single definition and fewer than 60 lines; files with fewer than 60 lines |
| longest | the longest functions and classes, in lines with their prose |
| pairs | pairs of places that share six or more lines, alike or alike but for names and values |
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import keyword
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "equilibria"
PAPERS = ROOT / "papers"
CORE = ("solve", "nn", "learned", "theory", "stability")
SMALL = 60  # lines
SHARED = 6  # lines that make a pair of places
COMMON = 8  # places in which a run may stand before it is an idiom and no longer counted
TOKENS = 40  # that a run has at least
BUDGETS = {"solve": 4_000, "core": 11_500, "src and papers": 47_000, "tests": 35_000, "files": 400}
"""Code lines, and files in src."""

# Verbs and nouns that end like participles, and participles that do not.
NO_PARTICIPLES = {
    *("bring", "embed", "exceed", "feed", "need", "ping", "proceed", "read", "red", "seed", "shed"),
    *("speed", "spread", "string", "weed", "wing", "thing", "bed", "shred", "ring", "padding"),
    *("heading", "setting", "training", "warning", "encoding", "mapping", "sampling"),
}
IRREGULAR = {
    *("built", "bought", "begun", "borne", "broken", "brought", "caught", "chosen", "cut", "done"),
    *("drawn", "driven", "fed", "felt", "fitted", "forgotten", "found", "frozen", "given", "gone"),
    *("grown", "heard", "held", "hidden", "kept", "known", "laid", "left", "lent", "lost", "made"),
    *("meant", "met", "paid", "put", "said", "seen", "sent", "shown", "split", "spent", "spoken"),
    *("stood", "stored", "taken", "taught", "told", "torn", "thought", "thrown", "understood"),
    *("won", "worn", "woven", "written", "wrote", "went", "stuck", "struck", "spelt", "learnt"),
}


def files(root: Path = SOURCE) -> list[Path]:
    return sorted(root.rglob("*.py"))


def room(path: Path) -> str:
    """The folder of the package in which a file is, and of an application: "zoo/flow"; the package
    itself for its own files."""
    parts = path.relative_to(SOURCE).parts[:-1]
    return "/".join(parts[: 2 if parts[:1] == ("zoo",) else 1]) or "equilibria"


# --- lines ----------------------------------------------------------------------------------------


def count(path: Path) -> tuple[int, int]:
    """Code lines and prose lines (docstrings and comments) of a file; a line can be both."""
    text = path.read_text()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            strings = node.body[:1]
        elif isinstance(node, ast.Expr):  # a string below an attribute documents it
            strings = [node]
        else:
            continue
        for item in strings:
            value = item.value if isinstance(item, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstrings |= {*range(item.lineno, (item.end_lineno or item.lineno) + 1)}
    code: set[int] = set()
    comments: set[int] = set()
    skipped = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in skipped:
            code |= {*range(token.start[0], token.end[0] + 1)}
    rows = text.splitlines()
    written = {number for number, row in enumerate(rows, 1) if row.strip()}
    return len((code - docstrings) & written), len((docstrings | comments) & written)


def lines() -> dict[str, Any]:
    """Code lines of each room, of the core, of the source and of the tests."""
    code: Counter[str] = Counter()
    prose: Counter[str] = Counter()
    number: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    for path in files():
        counted = count(path)
        classes[room(path)] += path.read_text().count("\nclass ")
        code[room(path)] += counted[0]
        prose[room(path)] += counted[1]
        number[room(path)] += 1
    rows = {
        name: f"{code[name]:,} in {number[name]} files, {classes[name]} classes"
        for name, _ in code.most_common()
    }
    core = sum(code[name] for name in CORE)
    total = sum(code.values())
    papers, tests = (
        [count(path)[0] for path in files(ROOT / name)] for name in ("papers", "tests")
    )
    return {
        **rows,
        "core": f"{core:,}",
        "src": f"{total:,} in {sum(number.values())} files",
        "share of docstrings and comments": f"{sum(prose.values()) / total:.3f} lines a code line",
        "papers": f"{sum(papers):,} in {len(papers)} files",
        "tests": f"{sum(tests):,} in {len(tests)} files",
    }


def budgets() -> dict[str, Any]:
    """Code lines, and files in src, beside their budgets."""

    def size(*folders: Path) -> int:
        return sum(count(path)[0] for folder in folders for path in files(folder))

    found = {
        "solve": size(SOURCE / "solve"),
        "core": size(*(SOURCE / name for name in CORE)),
        "src and papers": size(SOURCE, PAPERS),
        "tests": size(ROOT / "tests"),
        "files": len(files()),
    }
    return {name: f"{value:,} of {BUDGETS[name]:,}" for name, value in found.items()}


# --- a solve --------------------------------------------------------------------------------------


def solve(watch: Any, solver: str | None = None) -> None:
    """A solve of a layer and its backward, under sys.setprofile(watch).

    Args:
        watch: the profiler.
        solver: class of it, for a solve without gradients; None: the default, and its backward.
    """
    import torch

    import equilibria as eq

    torch.manual_seed(0)
    w = (0.5 * torch.linalg.qr(torch.randn(8, 8))[0]).requires_grad_()
    x = torch.randn(4, 8)

    def f(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(z @ w) + x

    def run() -> None:
        if solver is None:
            eq.fixed_point(f, torch.zeros_like(x), x).value.sum().backward()
        else:
            with torch.no_grad():
                eq.fixed_point(f, torch.zeros_like(x), x, solver=getattr(eq, solver)())

    run()  # imports happen here
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)


def own(frame: Any) -> bool:
    return frame.f_code.co_filename.startswith(f"{SOURCE}/")


def walk() -> dict[str, Any]:
    """The files of the package in which a function is called by a solve and its backward."""
    passed: set[str] = set()

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and own(frame):
            passed.add(str(Path(frame.f_code.co_filename).relative_to(SOURCE)))

    solve(watch)
    return {"files": len(passed), "names": sorted(passed)}


def calls() -> dict[str, Any]:
    """Calls of the package's own functions before the first f, and between two evaluations."""
    found: dict[str, Any] = {}
    for solver in (None, "Picard", "Anderson"):
        name = solver or "default, with its backward"
        before, *between, after = calls_of(solver)
        found[f"{name}: before the first f"] = before
        found[f"{name}: between two evaluations, median"] = sorted(between)[len(between) // 2]
        found[f"{name}: after the last"] = after
    return found


def calls_of(solver: str | None) -> list[int]:
    """Own calls before each evaluation, and after the last."""
    numbers = [0]

    def watch(frame: Any, event: str, _: Any) -> None:
        if event != "call":
            return
        if frame.f_code.co_name == "f" and frame.f_code.co_filename == __file__:
            numbers.append(0)
        elif own(frame):
            numbers[-1] += 1

    solve(watch, solver)
    return numbers


# --- names and imports ----------------------------------------------------------------------------


def imports() -> dict[str, Any]:
    """Imports of `equilibria.ROOM.MODULE` from outside ROOM, by the room that is imported."""
    modules = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in files()
    }
    inner: Counter[str] = Counter()
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else node.module for name in names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in set(names):
                parts = name.split(".")
                if parts[0] == "equilibria" and len(parts) > 2 and parts[1] != room(path):
                    inner[parts[1]] += 1
    return {**dict(inner.most_common()), "all": sum(inner.values())}


def public() -> dict[str, Any]:
    """Names in `__all__`, of the package and of its rooms."""
    found = {}
    for path in [SOURCE / "__init__.py", *sorted(SOURCE.glob("*/__init__.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found[room(path)] = len(ast.literal_eval(node.value))
    return {**found, "all": sum(found.values())}


def definitions(kind: type | tuple[type, ...], *roots: Path) -> Iterator[tuple[Path, Any]]:
    for path in itertools.chain(*map(files, roots or (SOURCE,))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kind):
                yield path, node


def twice() -> dict[str, Any]:
    """Names of classes that stand in more than one file, or twice in one."""
    number = Counter(node.name for _, node in definitions(ast.ClassDef))
    repeated = {name: times for name, times in number.most_common() if times > 1}
    return {"names": len(repeated), "classes": sum(repeated.values()), "which": repeated}


def is_participle(name: str) -> bool:
    """Whether the first word of a function's name is a participle or a past tense."""
    word = name.strip("_").partition("_")[0]
    if word in NO_PARTICIPLES or not word:
        return False
    return word in IRREGULAR or (len(word) > 4 and word.endswith(("ed", "ing")))


def participles() -> dict[str, Any]:
    """Functions and methods that are named by a participle, in the papers too; a predicate may have
    an adjective."""
    found = []
    for path, node in definitions((ast.FunctionDef, ast.AsyncFunctionDef), SOURCE, PAPERS):
        boolean = node.returns is not None and ast.unparse(node.returns) == "bool"
        if is_participle(node.name) and not boolean:
            found.append(f"{path.relative_to(ROOT)}: {node.name}")
    return {"functions": len(found), "names": found}


def small() -> dict[str, Any]:
    """Files below SMALL lines other than `__init__.py`, and those with one function or class."""
    found, single = [], []
    for path in files():
        text = path.read_text()
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        number = sum(isinstance(node, kinds) for node in ast.parse(text).body)
        if path.name != "__init__.py" and len(text.splitlines()) < SMALL:
            found.append(str(path.relative_to(SOURCE)))
            single += found[-1:] if number == 1 else []
    return {"files": len(found), "of one definition": len(single), "names": found}


def longest() -> dict[str, Any]:
    """The five longest functions and classes."""
    rows: dict[str, Any] = {}
    for what, kind in (("function", ast.FunctionDef), ("class", ast.ClassDef)):
        sizes = [
            (node.end_lineno - node.lineno + 1, f"{path.relative_to(SOURCE)}: {node.name}")
            for path, node in definitions(kind)
        ]
        for size, name in sorted(sizes, reverse=True)[:5]:
            rows[f"{what} {name}"] = size
    return rows


# --- copies ---------------------------------------------------------------------------------------


Shape = list[str]  # tokens of a line; names begin with "n "


def shapes(path: Path) -> list[Shape]:
    """The tokens of each line that says something: strings and numbers are one letter; imports,
    comments, docstrings and lone punctuation are left out."""
    text = path.read_text()
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if constant or isinstance(node, ast.Import | ast.ImportFrom):
            skipped |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    rows: dict[int, Shape] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            rows[token.start[0]].append(f"n {token.string}")
        elif token.type in (tokenize.STRING, tokenize.NUMBER):
            rows[token.start[0]].append("s" if token.type == tokenize.STRING else "0")
        elif token.type in (tokenize.NAME, tokenize.OP):
            rows[token.start[0]].append(token.string)
    return [
        parts
        for number, parts in sorted(rows.items())
        if number not in skipped and any(part[0].isalnum() for part in parts)
    ]


def same_names(run: list[Shape]) -> tuple[str, ...]:
    """A run with its names replaced by the order in which they first occur: equal for two runs that
    differ by a consistent renaming alone."""
    names: dict[str, str] = {}
    return tuple(
        names.setdefault(part, f"n{len(names)}") if part.startswith("n ") else part
        for row in run
        for part in row
    )


def pairs() -> dict[str, Any]:
    """Pairs of files of src, papers and tests (or of places of one) that share a run of SHARED
    lines, alike but for a consistent renaming and for values.

    A run that is short of TOKENS, as fields of a class or entries of a list are, or that stands in
    more than COMMON places, is an idiom and not counted.
    """
    places: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path in [*files(), *files(PAPERS), *files(ROOT / "tests")]:
        rows = shapes(path)
        for start in range(len(rows) - SHARED + 1):
            run = rows[start : start + SHARED]
            if sum(map(len, run)) >= TOKENS:
                places[same_names(run)].append((path, start))
    starts: dict[tuple[Path, Path], set[tuple[int, int]]] = defaultdict(set)
    for where in places.values():
        if 1 < len(where) <= COMMON:
            for (one, i), (other, j) in itertools.combinations(where, 2):
                if one != other or abs(i - j) >= SHARED:
                    starts[one, other].add((i, j))
    number: Counter[str] = Counter()
    for (one, other), found in starts.items():
        first = [(i, j) for i, j in found if (i - 1, j - 1) not in found]
        number[f"{one.relative_to(ROOT)} ~ {other.relative_to(ROOT)}"] = len(first)
    return {
        "pairs": len(number),
        "shared runs": sum(number.values()),
        "which": dict(number.most_common()),
    }


MEASURES = {
    measure.__name__: measure
    for measure in (
        *(lines, budgets, walk, calls, imports, public, twice, participles, small, longest, pairs),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=", ".join(MEASURES))
    parser.add_argument("--list", action="store_true", help="print the names too")
    given = parser.parse_args()
    if unknown := [name for name in given.measures if name not in MEASURES]:
        parser.error(f"no measure is called {unknown[0]!r}; choose from {', '.join(MEASURES)}")
    for name in given.measures or MEASURES:
        print(f"\n{name}")
        for key, value in MEASURES[name]().items():
            if isinstance(value, list | dict):
                if given.list:
                    print(*(f"    {each}" for each in value), sep="\n")
            else:
                print(f"  {key}: {value}")


if __name__ == "__main__":
    main()
