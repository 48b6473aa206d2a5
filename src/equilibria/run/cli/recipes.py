"""List the recipes that come with equilibria, or show one with every default filled in.

A recipe is a YAML file: copy one, change it, and give its path to `equilibria train`.
"""

from __future__ import annotations

from collections.abc import Sequence

from equilibria.run import recipe as recipes
from equilibria.run.cli.output import Output, names_table
from equilibria.run.cli.parser import Parser


def main(argv: Sequence[str]) -> None:
    """Run `equilibria recipes` with the words `argv`."""
    parser = Parser("recipes", __doc__, quiet="print only names")
    parser.add_argument(
        "recipe", type=str, nargs="?", help="recipe to show; without it, all are listed"
    )
    arguments = parser.parse_args(list(argv))
    if arguments.recipe is not None:
        print(recipes.to_yaml(recipes.load(arguments.recipe)), end="")
        return
    names = recipes.available()
    if arguments.quiet:
        print("\n".join(names))
        return
    console = Output()
    table = names_table(console, "recipe", "what it trains")
    for name in names:
        table.add_row(name, _describe(name))
    console.print(table)


def _describe(name: str) -> str:
    """What a recipe trains, or why it cannot: it may name what an absent application has."""
    try:
        return recipes.load(name).description
    except ValueError as error:
        return f"cannot be used: {error}"
