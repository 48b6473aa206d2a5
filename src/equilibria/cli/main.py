"""The entry point: finds the command, runs it, and turns every failure into one message."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import NoReturn

from equilibria import __version__

COMMANDS = {
    "train": "train a recipe and write a run folder",
    "initialise": "recommend initial weights: ensemble and scale, predicted and measured",
    "evaluate": "evaluate a run on its test data: metrics, evaluations and statuses",
    "doctor": "examine a run: does it converge, to one answer, with the right gradient?",
    "generate": "continue a prompt with a trained language model",
    "memory": "measure the memory of a training step of a run against depth",
    "report": "write one page with plots from one or more runs",
    "reproduce": "run experiments from the papers, or list them",
    "bench": "benchmark solvers and gradients against torchdeq and SciPy",
    "recipes": "list the recipes, or show one",
}

HELP = """usage: equilibria COMMAND ...

Train and examine deep equilibrium networks.

commands:
{commands}

equilibria COMMAND --help describes a command. With every command, --debug shows where an error
came from, and --import FILE runs a Python file first, which may register tasks, models and data
sets of your own.
Start with: equilibria train digits"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` and return its exit status: 0, or 1 after an error message."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words or os.environ.get("EQUILIBRIA_DEBUG", "") not in ("", "0")
    command, *rest = [word for word in words if word != "--debug"] or ["--help"]
    program = f"equilibria {command}" if command in COMMANDS else "equilibria"
    try:
        try:
            if any(word.startswith("--import") for word in words):
                from equilibria.cli import own

                command, *rest = own.imported([command, *rest]) or ["--help"]
            return _run(command, rest)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _fail(program, "interrupted", status=130)
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has seen enough; output that is still buffered
        # must not fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _fail(program, _message(command, error), status=getattr(error, "exit_status", 1))


def _run(command: str, words: list[str]) -> int:
    if command in ("-h", "--help"):
        listing = "\n".join(f"  {name:11}{text}" for name, text in COMMANDS.items())
        print(HELP.format(commands=listing))
        return 0
    if command == "--version":
        print(f"equilibria {__version__}")
        return 0
    if command not in COMMANDS:
        from equilibria.train.config import nearest

        return _fail("equilibria", f"there is no command '{command}'" + nearest(command, COMMANDS))
    warnings.showwarning = _warn
    # Read when torch is loaded: its profiler would log when it starts and stops; and where other
    # programs want the cores, threads of libgomp that spin while they wait slow everything down.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    status: int | None = importlib.import_module(f"equilibria.cli.{command}").main(words)
    return status or 0


def _message(command: str, error: Exception) -> str:
    """Return the error's own message where it is meant for the user, else with its type."""
    ours = type(error).__module__.startswith("equilibria.")
    if ours or isinstance(error, ValueError | TypeError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        from equilibria.cli import extras

        if advice := extras.advice(command):
            return advice
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error} (a bug in equilibria; --debug shows where)"


def _fail(program: str, message: str, *, status: int = 1) -> int:
    print(f"{program}: error: {message}", file=sys.stderr)
    return status


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning as one line, without its location in the source."""
    print(f"warning: {message}", file=sys.stderr)


def entry() -> NoReturn:
    """Run the command line of this process and exit with its status."""
    status = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # Gloo's threads outlive the process group, and one that drops a tensor while the
        # interpreter shuts down aborts the process.
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    entry()
