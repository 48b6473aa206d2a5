"""Which packages of an extra are not installed."""

import re
from importlib import metadata
from pathlib import Path

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


def advice(command: str) -> str:
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
