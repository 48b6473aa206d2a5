"""Measure what the tests notice: change one expression of the source at a time, run its tests.

    python tests/mutants.py cover MAP                     # which tests run which lines
    python tests/mutants.py draw MUTANTS --count 200      # a seeded draw over all packages
    python tests/mutants.py draw MUTANTS --under src/equilibria/solve/loop.py    # or over these
    python tests/mutants.py run MAP MUTANTS RESULTS       # killed, survived or timed out
    python tests/mutants.py compare BEFORE AFTER          # what was killed before and is not now

Run the first three in a checkout whose tests pass; mutants are made in clones of its commit. A
mutant names its file, the text of its line and the replacement, so that a draw from one commit can
be run at a later one; one whose line has gone since is reported as such. The tests of a mutant are
those that run its line, and all tests of a file in which a shared fixture runs it; where only child
processes run it, those that run any line of its file. Several minutes for each step; `run`
continues where it was interrupted. `cover MAP tests/solve` runs only the tests there.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/equilibria")
FIRST = 40  # tests of a mutant that run before the rest: the quickest

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}


# --- which tests run which lines ------------------------------------------------------------------


def cover(target: Path, marker: str, tests: list[str]) -> None:
    """Run tests once under coverage; write {"seconds": {id: ...}, "lines": {file: ...}, ...}."""
    from coverage import CoverageData

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {
            **os.environ,
            "COVERAGE_FILE": str(folder / "data"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "src"),
        }
        command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "logical"]
        command += ["--cov=equilibria", "--cov-context=test", "--cov-report="]
        command += [f"--junitxml={folder / 'junit.xml'}", "-m", marker, *tests]
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        data = CoverageData(str(folder / "data"))
        data.read()
        seconds: dict[str, float] = {}  # junit names a test by its module, pytest by its file
        for case in xml.parse(folder / "junit.xml").iter("testcase"):
            module = (case.get("classname") or "").replace(".", "/")
            seconds[f"{module}.py::{case.get('name')}"] = float(case.get("time") or 0)
        lines: dict[str, dict[str, list[str]]] = {}
        for file in sorted(data.measured_files()):
            if not file.startswith(str(ROOT / PACKAGE)):  # a test's own
                continue
            found = data.contexts_by_lineno(file)
            tests = {str(line): sorted(filter(None, names)) for line, names in found.items()}
            lines[str(Path(file).relative_to(ROOT))] = {k: v for k, v in tests.items() if v}
    names = sorted({name for file in lines.values() for some in file.values() for name in some})
    index = {name: number for number, name in enumerate(names)}
    compact = {
        file: {line: [index[name] for name in some] for line, some in found.items()}
        for file, found in lines.items()
    }
    target.write_text(json.dumps({"seconds": seconds, "contexts": names, "lines": compact}))
    print(f"{len(names)} contexts, {sum(map(len, lines.values()))} lines: {target}")


class Coverage:
    """What `cover` wrote."""

    def __init__(self, path: Path) -> None:
        read = json.loads(path.read_text())
        self.seconds: dict[str, float] = read["seconds"]
        self.contexts: list[str] = read["contexts"]
        self.lines: dict[str, dict[str, list[int]]] = read["lines"]
        self.of_file: dict[str, set[str]] = {}
        for context in self.contexts:
            test = context.rpartition("|")[0]
            self.of_file.setdefault(test.partition("::")[0], set()).add(test)

    def tests(self, file: str, lines: list[int]) -> list[str]:
        """The tests that run one of these lines, the quickest first."""
        found: set[str] = set()
        of_file = self.lines.get(file, {})
        for numbers in [of_file[str(n)] for n in lines if str(n) in of_file] or of_file.values():
            for number in numbers:
                test, _, phase = self.contexts[number].rpartition("|")
                found |= {test} if phase == "run" else self.of_file[test.partition("::")[0]]
        return sorted(found, key=lambda test: (self.seconds.get(test, 1.0), test))


# --- mutants --------------------------------------------------------------------------------------


def replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Ways to change this node: what is done, and the node that takes its place."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            changed = ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators)
            yield "comparison", changed
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            yield "operator", ast.BinOp(node.left, OPERATORS[type(op)](), node.right)
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and/or", ast.BoolOp(other, node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "not/minus", node.operand
        case ast.Constant(value=bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield (
                "constant",
                ast.Constant(node.value + 1 if node.value in (0, 1) else node.value * 2),
            )
        case ast.Expr(value=ast.Call() | ast.Yield()):
            yield "statement", ast.Pass()
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return", ast.Return(ast.Constant(None))


def sites(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.stmt, str, ast.AST]]:
    """What can be changed inside of functions: node, its statement, kind, replacement."""

    def walk(node: ast.AST, statement: ast.stmt | None) -> Iterator:
        if isinstance(node, ast.JoinedStr | ast.Raise):
            return  # the words of a message
        if isinstance(node, ast.stmt):
            statement = node
        if statement is not None:
            for kind, changed in replacements(node):
                yield node, statement, kind, changed
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            if field == "args" and isinstance(node, ast.FunctionDef | ast.Lambda):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, statement)

    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for child in node.body:
                if not isinstance(child, ast.FunctionDef | ast.ClassDef):
                    yield from walk(child, None)


def draw(count: int, seed: int, under: list[Path]) -> list[dict]:
    """Draw mutants, from each package as many as its share of what can be changed under paths."""
    rooms: dict[str, list[dict]] = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        if not any(path.is_relative_to(each) for each in under):
            continue
        file = str(path.relative_to(ROOT))
        text = path.read_bytes()
        rows = text.splitlines(keepends=True)
        starts = list(itertools.accumulate(map(len, rows), initial=0))
        seen = set()
        for node, statement, kind, changed in sites(ast.parse(text)):
            first = starts[node.lineno - 1] + node.col_offset
            last = starts[node.end_lineno - 1] + node.end_col_offset
            lines = sorted({node.lineno, statement.lineno})
            if (first, last, kind) in seen:
                continue
            seen.add((first, last, kind))
            new = ast.unparse(ast.fix_missing_locations(changed))
            new = f"({new})" if isinstance(changed, ast.expr) else new
            room = path.relative_to(ROOT / PACKAGE).parts[0]
            rooms.setdefault(room, []).append(
                {
                    "file": file,
                    "lines": lines,
                    "kind": kind,
                    "row": rows[node.lineno - 1].decode().strip(),
                    "old": text[first:last].decode(),
                    "new": new,
                    "column": len(rows[node.lineno - 1][: node.col_offset].decode().lstrip()),
                }
            )
    generator = random.Random(seed)
    total = sum(len(found) for found in rooms.values())
    drawn = []
    for room in sorted(rooms):
        share = max(3 if len(rooms[room]) > 20 else 1, round(count * len(rooms[room]) / total))
        drawn += generator.sample(rooms[room], min(share, len(rooms[room])))
    generator.shuffle(drawn)
    drawn = drawn[:count]
    for number, mutant in enumerate(drawn):
        mutant["number"] = number
    return drawn


def locate(mutant: dict, text: str) -> tuple[int, int] | None:
    """The line of a mutant (from 1) and the place of what it replaces; None if it has gone."""
    rows = text.splitlines(keepends=True)
    near = sorted(range(len(rows)), key=lambda at: abs(at + 1 - mutant["lines"][-1]))
    for at in near:
        if rows[at].strip() == mutant["row"]:
            indent = len(rows[at]) - len(rows[at].lstrip())
            place = sum(map(len, rows[:at])) + indent + mutant["column"]
            if text.startswith(mutant["old"], place):
                return at + 1, place
    return None


# --- running them ---------------------------------------------------------------------------------


def passes(folder: Path, tests: list[str], seconds: float) -> str:
    """Run tests in a copy of the checkout: "survived", "killed" or "timed out"."""
    names = folder / "tests.txt"
    names.write_text("\n".join(tests))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder / "src")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # of a mutant of the same second and size
    environment.pop("EQUILIBRIA_DATA", None)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"@{names}"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "timed out"
    return {0: "survived", 5: "no tests"}.get(code, "killed")


def judge(mutant: dict, coverage: Coverage, folder: Path) -> dict:
    """Apply a mutant in a copy of the checkout, and run its tests there."""
    path = folder / mutant["file"]
    text = path.read_text() if path.exists() else ""
    found = locate(mutant, text)
    if found is None:
        return {**mutant, "result": "gone", "tests": 0}
    line, place = found
    shift = line - mutant["lines"][-1]
    tests = coverage.tests(mutant["file"], [at + shift for at in mutant["lines"]])
    path.write_text(text[:place] + mutant["new"] + text[place + len(mutant["old"]) :])
    try:
        result = "survived" if tests else "no tests"
        for some in (tests[:FIRST], tests[FIRST:]):
            if some and result == "survived":
                usual = sum(coverage.seconds.get(test, 1.0) for test in some)
                result = passes(folder, some, 90 + 4 * usual)
    finally:
        path.write_text(text)
    return {**mutant, "result": result, "tests": len(tests)}


def run(coverage: Coverage, mutants: list[dict], target: Path, workers: int) -> None:
    """Judge all mutants that `target` does not list yet; append one line of JSON for each."""
    known = set()
    if target.exists():
        known = {json.loads(line)["number"] for line in target.read_text().splitlines()}
    waiting = iter([mutant for mutant in mutants if mutant["number"] not in known])

    def work(_: int) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "checkout"
            subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
            for mutant in waiting:
                row = judge(mutant, coverage, folder)
                with target.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{row['number']:4} {row['result']:9} {row['tests']:5} tests  {row['file']}")

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))


def compare(before: Path, after: Path) -> int:
    """Print how many mutants each run killed, and those killed before that survive now."""
    rows = [
        {row["number"]: row for row in map(json.loads, path.read_text().splitlines())}
        for path in (before, after)
    ]
    for path, found in zip((before, after), rows, strict=True):
        results = [row["result"] for row in found.values()]
        counts = {result: results.count(result) for result in sorted(set(results))}
        print(f"{path}: {len(results)} mutants, {counts}")
    ended = ("killed", "timed out")
    lost = [
        row
        for number, row in sorted(rows[1].items())
        if row["result"] not in ended and rows[0].get(number, {}).get("result") in ended
    ]
    for row in lost:
        print(
            f"\n{row['number']} {row['result']}: {row['file']}:{row['lines'][-1]} ({row['kind']})"
        )
        print(f"  {row['row']}\n  {row['old']!r} -> {row['new']!r}")
    return len(lost)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, paths in {
        "cover": ["map"],
        "draw": ["mutants"],
        "run": ["map", "mutants", "results"],
        "compare": ["before", "after"],
    }.items():
        command = commands.add_parser(name)
        for path in paths:
            command.add_argument(path, type=lambda word: Path(word).absolute())
    commands.choices["cover"].add_argument("-m", default="not data", help="pytest's -m")
    commands.choices["cover"].add_argument("tests", nargs="*", help="all, if none is named")
    commands.choices["draw"].add_argument("--count", type=int, default=200)
    commands.choices["draw"].add_argument("--seed", type=int, default=0)
    commands.choices["draw"].add_argument(
        "--under",
        nargs="+",
        type=lambda word: ROOT / word,
        default=[ROOT],
        metavar="PATH",
        help="files and folders of the checkout to draw from",
    )
    commands.choices["run"].add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.command == "cover":
        cover(given.map, given.m, given.tests)
    elif given.command == "draw":
        mutants = draw(given.count, given.seed, given.under)
        given.mutants.write_text(json.dumps(mutants, indent=1))
        print(f"{len(mutants)} mutants: {given.mutants}")
    elif given.command == "run":
        mutants = json.loads(given.mutants.read_text())
        run(Coverage(given.map), mutants, given.results, given.workers)
    else:
        return 1 if compare(given.before, given.after) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
