"""The entry point: finds the command, runs it, and turns every failure into one message."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from equilibria import __version__
from equilibria.run.cli.status import DONE, ERROR, HUNG_UP, INTERRUPTED, MEANINGS, SAVED, TERMINATED
from equilibria.words import nearest, printable

_TEXTS = {
    "train": "train a recipe and write a run folder",
    "initialize": "recommend initial weights for a recipe: ensemble and scale",
    "evaluate": "evaluate a run on its test data: metrics, evaluations, statuses",
    "doctor": "examine a run: convergence, uniqueness, gradient, use of depth",
    "depth": "measure what a run's answers gain from further evaluations",
    "distill": "train a solver for a run's own equilibrium layer",
    "gradients": "compare exact and inexact gradients on a run",
    "export": "write a trained model as a file for ONNX Runtime or torch.export",
    "memory": "measure the memory of a training step of a run against depth",
    "report": "write one page with plots from one or more runs",
    "reproduce": "run experiments from the papers, or list them",
    "bench": "benchmark solvers and gradients against torchdeq and SciPy",
    "recipes": "list the recipes, or show one",
    "completion": "print a script for the tab completion of bash, zsh or fish",
}

COMMANDS = {name: (text, f"equilibria.run.cli.{name}") for name, text in _TEXTS.items()}
"""The commands for any application: one line for --help, and the module that has `main`."""

BRITISH = {"initialise": "initialize", "distil": "distill"}
"""Other spellings of commands, which are accepted."""

BEFORE_APPLICATIONS = "gradients"
"""The command after which --help lists those of applications."""

HELP = """usage: equilibria COMMAND ...

Train and examine deep equilibrium networks.

commands:
{commands}

equilibria COMMAND --help describes a command. With every command
  --quiet        prints only errors, and the file or folder with the result
  --debug        shows where an error came from
  --import FILE  runs a Python file or module first, which may register tasks,
                 models and data sets of your own, or hold the solvers that a
                 recipe or a run folder names
In options, hyphens and underscores are alike: --batch-size, --batch_size.

exit status:
{statuses}

Start with: equilibria train digits"""


PATIENCE = 2.0
"""Seconds for which a process leaves it to the first to say why they end: a launcher that sees one
end stops the others at once."""


def commands() -> dict[str, tuple[str, str]]:
    """Return all commands, those of applications among them: one line for --help, and the module.

    A command that an application calls by a name of `COMMANDS` is left out with a warning.
    """
    from equilibria.run import registry

    found: dict[str, tuple[str, str]] = {}
    for name, command in COMMANDS.items():
        found[name] = command
        if name == BEFORE_APPLICATIONS:
            added = registry.find("commands")
            for taken in added.keys() & COMMANDS.keys():
                owner = added[taken][1]
                warnings.warn(
                    f"the command '{taken}' of {owner} is left out: equilibria has that name",
                    stacklevel=2,
                )
            found |= {key: value for key, value in added.items() if key not in COMMANDS}
    return found


class Ended(BaseException):
    """A signal came that ends the process; like KeyboardInterrupt, this is no error."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` and return its exit status; see `equilibria.run.cli.status`."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words or os.environ.get("EQUILIBRIA_DEBUG", "") not in ("", "0")
    words = [word for word in words if word != "--debug"]
    warnings.showwarning = _ignore if "--quiet" in words else _warn
    if words[:1] == ["--quiet"]:
        words = [*words[1:], *words[:1]] if words[1:] else []
    command, *rest = words or ["--help"]
    called = command = BRITISH.get(command, command)
    try:
        try:
            if any(word.startswith("--import") for word in words):
                from equilibria.run.cli import options

                command, *rest = options.add_imports([command, *rest]) or ["--help"]
            with _signals():
                return _run(command, rest)
        finally:
            _flush()
    except KeyboardInterrupt:
        return _end(_program(called), "interrupted", INTERRUPTED)
    except Ended as ended:
        return _end(_program(called), f"ended by {ended}", ended.exit_status)
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has seen enough; output that is still buffered
        # must not fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        from equilibria.run.cli import errors  # what it imports takes as long as the rest of --help

        if debug:
            import traceback

            traceback.print_exc()
        message, everywhere = errors.explain(command, error), errors.shared(error)
        status = getattr(error, "exit_status", ERROR)
        return _end(_program(called), message, status, everywhere=everywhere)


def _program(command: str) -> str:
    """Return what the user has called, where `command` is the first word."""
    known = command in COMMANDS
    with suppress(Exception):  # what is wrong with an application has been an error of its own
        known = known or command in commands()
    return f"equilibria {command}" if known else "equilibria"


def _run(command: str, words: list[str]) -> int:
    if "--version" in (command, *words):
        from equilibria.solve import name_kernel

        print(f"equilibria {__version__}, {name_kernel()}")
        return DONE
    if command in ("-h", "--help"):
        listing = "\n".join(f"  {name:12}{text}" for name, (text, _) in commands().items())
        statuses = "\n".join(f"  {status:<5}{text}" for status, text in MEANINGS.items())
        print(HELP.format(commands=listing, statuses=statuses))
        return DONE
    found = COMMANDS.get(command) or commands().get(command)
    if found is None:
        hint = nearest(command, commands())
        return _end("equilibria", f"there is no command '{command}'{hint}", ERROR)
    # Read when torch is loaded: its profiler would log when it starts and stops; and where other
    # programs want the cores, threads of libgomp that spin while they wait slow everything down.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    status: int | None = importlib.import_module(found[1]).main(words)
    return status or DONE


@contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `Ended` in a block, where they would end the process unsaid."""

    options = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() != options:  # a process that was forked ends as it would have
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise Ended(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")):
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(program: str, message: str, status: int, *, everywhere: bool = True) -> int:
    """Say why a command has ended, and return its status.

    Args:
        program: what the user has called.
        message: the reason.
        status: of the process; 75, 129, 130 and 143 are no errors.
        everywhere: all processes of a run have the same message, so the first says it for all.
    """
    rank = os.environ.get("RANK", "0") if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    if everywhere and os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(PATIENCE)
        return status
    error = "" if status in (SAVED, HUNG_UP, INTERRUPTED, TERMINATED) else "error: "
    process = "" if everywhere or not rank else f"process {rank}: "
    with suppress(OSError):  # the terminal may be gone: the status is not
        print(printable(f"{program}: {process}{error}{message}"), file=sys.stderr)
    return status


def _flush() -> None:
    """Write what is buffered, unless something more important is on its way out."""
    failing = sys.exc_info()[1] is not None
    try:
        sys.stdout.flush()
    except OSError:
        if not failing:
            raise


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning as one line, without its location in the source."""
    from equilibria.run.cli.option_words import as_options

    print(printable(f"warning: {as_options(str(message))}"), file=sys.stderr)


def _ignore(*_: object, **__: object) -> None:
    """Show no warning."""


def _open_streams() -> None:
    """Replace standard streams that are closed by the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # in this order, each gets its own number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def entry() -> NoReturn:
    """Run the command line of this process and exit with its status."""
    _open_streams()
    status = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # Gloo's threads outlive the process group, and one that drops a tensor while the
        # interpreter shuts down aborts the process.
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    entry()
