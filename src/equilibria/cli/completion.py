"""Print a script for the tab completion of a shell: commands, options, recipes, studies, and the
run folders in runs. Put it where the shell looks for it: for bash,
~/.local/share/bash-completion/completions/equilibria; for zsh, a file _equilibria in a folder of
$fpath; for fish, ~/.config/fish/completions/equilibria.fish. The script lists the options and
recipes of this version: print it again after an update.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import Literal

from equilibria.cli import main as entry
from equilibria.cli.keys import names_of
from equilibria.cli.parser import Parser
from equilibria.experiments import catalogue
from equilibria.train import recipe as recipes

RUNS = (
    "train",
    "evaluate",
    "doctor",
    "gradients",
    "predict",
    "flow",
    "generate",
    "export",
    "memory",
    "report",
)
"""Commands that take run folders."""

OPTION = re.compile(r"^  (?:-\w(?: [A-Z]+)?, )?(--[\w.-]+)(?: (\S.*?))?(?:  |$)", re.MULTILINE)
"""An option in the text of --help, and what it takes."""


@dataclass(frozen=True)
class Words:
    """What can follow a command."""

    command: str
    options: list[str]
    """Options that take a value."""
    flags: list[str]
    """Options that take none."""
    names: list[str]
    """Of recipes or studies."""

    @property
    def runs(self) -> bool:
        """Whether run folders can follow too."""
        return self.command in RUNS


def main(argv: Sequence[str]) -> None:
    """Run `equilibria completion` with the words `argv`."""
    parser = Parser("completion", __doc__, quiet="changes nothing here")
    parser.add_argument("shell", type=Literal["bash", "zsh", "fish"], help="bash, zsh or fish")
    arguments = parser.parse_args(list(argv))
    write = {"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell]
    print(write([words(command) for command in entry.COMMANDS]), end="")


def words(command: str) -> Words:
    """Return what can follow a command, as its --help has it."""
    with suppress(SystemExit), redirect_stdout(io.StringIO()) as shown:
        entry.main([command, "--help"])
    found = dict(OPTION.findall(shown.getvalue()))
    keys: list[str] = []
    if command in ("train", "initialise"):
        loaded = map(recipes.load, recipes.available())
        choices = recipes.choices()
        keys = sorted({f"--{key}" for each in loaded for key in names_of(each, choices)})
    names = {
        "completion": ["bash", "zsh", "fish"],
        "reproduce": list(catalogue.names()),
        "bench": [n.removeprefix("bench/") for n in catalogue.names() if n.startswith("bench/")],
        **dict.fromkeys(("train", "initialise", "recipes"), recipes.available()),
    }
    return Words(
        command=command,
        options=[*(option for option, takes in found.items() if takes), *keys],
        flags=[*(option for option, takes in found.items() if not takes), "--debug"],
        names=names.get(command, []),
    )


def bash(commands: Sequence[Words]) -> str:
    """Return the script for bash."""
    cases = "\n".join(
        f"    {each.command})\n"
        f"        options={shlex.quote(' '.join(each.options))}\n"
        f"        flags={shlex.quote(' '.join(each.flags))}\n"
        f"        names={shlex.quote(' '.join(each.names))}\n"
        f"        runs={'yes' * each.runs} ;;"
        for each in commands
    )
    return f"""# Tab completion of equilibria, printed by `equilibria completion bash`.
_equilibria() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} run
    local options= flags= names= runs=
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        flags='--help --version' names={shlex.quote(" ".join(each.command for each in commands))}
        options= runs=
    elif [[ $before == = || $before == --* && " $flags " != *" $before "* ]]; then
        return  # a value: the shell completes a file
    fi
    if [[ $cur == -* ]]; then
        names="$options $flags"
    elif [[ $runs ]]; then
        for run in runs/*/recipe.yaml; do
            [[ -e $run ]] && names+=" ${{run%/recipe.yaml}}"
        done
    fi
    mapfile -t COMPREPLY < <(compgen -W "$names" -- "$cur")
}}
complete -o default -F _equilibria equilibria
"""


def zsh(commands: Sequence[Words]) -> str:
    """Return the script for zsh."""
    cases = "\n".join(
        f"    {each.command})\n"
        f"        options=({' '.join(each.options)})\n"
        f"        flags=({' '.join(each.flags)})\n"
        f"        names=({' '.join(each.names)})\n"
        f"        runs={'yes' * each.runs} ;;"
        for each in commands
    )
    return f"""#compdef equilibria
# Tab completion of equilibria, printed by `equilibria completion zsh`.
_equilibria() {{
    local -a options flags names
    local before=${{words[CURRENT-1]}} runs=
    case ${{words[2]}} in
{cases}
    esac
    if (( CURRENT == 2 )); then
        compadd -- --help --version {" ".join(each.command for each in commands)}
    elif [[ $before == --* && ${{flags[(Ie)$before]}} -eq 0 ]]; then
        _files
    elif [[ ${{words[CURRENT]}} == -* ]]; then
        compadd -- $options $flags
    else
        [[ -n $runs ]] && names+=(runs/*/recipe.yaml(N:h))
        compadd -- $names
        _files
    fi
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _equilibria "$@"
else
    compdef _equilibria equilibria
fi
"""


def fish(commands: Sequence[Words]) -> str:
    """Return the script for fish."""
    runs = '(for run in runs/*/recipe.yaml; string replace /recipe.yaml "" $run; end)'
    lines = ["# Tab completion of equilibria, printed by `equilibria completion fish`."]
    for each in commands:
        text = entry.COMMANDS[each.command].replace('"', "")
        begin = "complete -c equilibria -f -n __fish_use_subcommand"
        lines.append(f'{begin} -a {each.command} -d "{text}"')
        begin = f'complete -c equilibria -n "__fish_seen_subcommand_from {each.command}"'
        lines += [f"{begin} -l {option[2:]} -r" for option in each.options]
        lines += [f"{begin} -l {flag[2:]}" for flag in each.flags]
        names = [*each.names, *([runs] if each.runs else [])]
        if names:
            lines.append(f"{begin} -a '{' '.join(names)}'")
    return "\n".join([*lines, ""])
