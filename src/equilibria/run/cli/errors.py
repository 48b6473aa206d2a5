"""What the command line says of an error: whose it is, and what to do."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import equilibria
from equilibria.run.cli.option_words import as_options
from equilibria.words import is_out_of_memory

LESS = {
    "train": "lower --batch-size or --eval-batch-size, or split each batch with --accumulate",
    "doctor": "lower --samples",
    "gradients": "lower --samples",
    "initialize": "lower --samples",
}
"""What takes less memory, by command of the frame; that of an application says `LESS_MEMORY`."""


def expected(error: BaseException) -> bool:
    """Return whether an error is of one of equilibria's own classes, or of one that derives from
    them: their messages are for users."""
    return any(cls.__module__.partition(".")[0] == "equilibria" for cls in type(error).__mro__)


def shared(error: BaseException) -> bool:
    """Return whether the first process can say an error for all: not that a process is gone."""
    return expected(error) and not getattr(error, "local", False)


def explain(command: str, error: BaseException) -> str:
    """Return one message for the user about an error that ended a command.

    Messages of equilibria's own errors stand for themselves. An error of any other class is put
    down to what the machine lacks (memory, another process, a package, a file), to the user's own
    file if it passed through one, and otherwise to a bug.

    Args:
        command: that raised it.
        error: as it was caught.
    """
    if expected(error):
        return as_options(str(error))
    name, text = type(error).__name__, " ".join(str(error).split())
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if _several() and isinstance(error, RuntimeError | OSError) and _unreachable(f"{name}: {text}"):
        return (
            "another process of this run has ended or was killed; the last checkpoint, if there "
            "is one, is in the run folder: continue with --resume"
        )
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        near = re.split(r"[\n\"']", error.object[: error.end])[-1]
        after = re.split(r"[\n\"']", error.object[error.end :])[0]
        return f"the name {near}{after} is not UTF-8: rename the file or folder"
    if is_out_of_memory(error):
        tried = re.search(r"tried to allocate ([\d.]+ ?\w+)", text, re.I)
        asked = f" ({tried[1]} more were asked for)" if tried else ""
        return f"out of memory{asked}: {_less(command)}"
    if line := _own_line(error):
        return f"{line}: {name}: {text}"
    if isinstance(error, ModuleNotFoundError) and (lacking := _explain_missing(command, error)):
        return lacking
    if isinstance(error, RecursionError) and any(Path(f).parent.name == "json" for f in files):
        return "a JSON file is nested too deeply to be read"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{name}: {text} (a bug in equilibria; --debug shows where)"


def _less(command: str) -> str:
    """What takes less memory with a command that has run."""
    from equilibria.run.cli.main import commands

    _, module = commands().get(command, ("", ""))
    usual = LESS.get(command, "free some, or try --device cpu")
    return getattr(sys.modules.get(module), "LESS_MEMORY", usual)


def _own_line(error: BaseException) -> str:
    """The innermost line of a user's own Python file that an error passed through; "" if none."""
    library = Path(equilibria.__file__).parent, Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        packaged = {"site-packages", "dist-packages"} & {*file.parts}
        if file.is_file() and not packaged and not any(map(file.is_relative_to, library)):
            return f"{file}, line {frame.lineno}"
    return ""


def _explain_missing(command: str, error: ModuleNotFoundError) -> str:
    """Which package is not installed; "" for a module of equilibria itself."""
    if advice := advise_install(command):
        return advice
    package = (error.name or "equilibria").partition(".")[0]
    if package == "equilibria":
        return ""
    if error.name != package and find_spec(package) is not None:
        return f"the package '{package}' has no module '{error.name}'"
    return f"the package '{package}' is not installed"


def _unreachable(text: str) -> bool:
    """Whether torch.distributed says that another process is gone."""
    from equilibria.run.processes import UNREACHABLE

    return UNREACHABLE.search(text) is not None


def _several() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


# --- extras ---------------------------------------------------------------------------------------

OF_COMMANDS = {
    "reproduce": "reproduce",
    "bench": "bench",
    "export": "export",
    "completion": "completion",
}
"""The extra that a command needs; the others need `cli`, which these contain."""


def find_missing(extra: str) -> list[str]:
    """Return the packages of an extra of equilibria that are not installed."""
    required = (r for own in metadata.distributions(name="equilibria") for r in own.requires or ())
    names = (re.split(r"[^\w.-]", r)[0] for r in required if re.search(rf"== *.{extra}\b", r))
    return [name for name in names if not any(metadata.distributions(name=name))]


def advise_install(command: str) -> str:
    """Return in one line what `command` lacks and how to install it; "" if nothing is missing."""
    extra = OF_COMMANDS.get(command, "cli")
    needs = f"equilibria {command}" if command in OF_COMMANDS else "the command line"
    absent = ", ".join(find_missing(extra))
    line = f"{needs} needs packages that are not installed ({absent}): {_install(extra)}"
    return line if absent else ""


def _install(extra: str) -> str:
    """How to install an extra: of the checkout that this file is in, or of the package."""
    checkout = Path(__file__).parents[4]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e '{checkout}[{extra}]'"
    return f"pip install 'equilibria[{extra}]', or in a clone pip install '.[{extra}]'"
