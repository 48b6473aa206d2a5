"""The solver in place of a run's own: the option --solver."""

from __future__ import annotations

from collections.abc import Sequence

from equilibria.run import neural, plugins, run
from equilibria.run.cli.parser import Parser, UserError
from equilibria.run.config import as_chosen
from equilibria.run.models import EquilibriumModel
from equilibria.run.solvers import SOLVERS, changed
from equilibria.solve import Solver

LEARNED = "neural"


def add_solver(parser: Parser) -> None:
    """Give a command the option --solver."""
    parser.add_argument(
        "--solver",
        type=str,
        metavar="NAME",
        help=f"solve by {LEARNED}, which `equilibria distil` has learned for the run, or by "
        f"{', '.join(SOLVERS)}, or MODULE:CLASS of one's own (default: the run's own)",
    )


def resolve(given: str, known: Sequence[str] = SOLVERS) -> str:
    """Return a solver that the user has named as it is spelt; the module of his own is imported.

    Args:
        given: as he typed it.
        known: the names to choose from.

    Raises:
        UserError: there is no such solver.
        ConfigError: a solver of his own cannot be imported, or is none.
    """
    if plugins.is_path(given):
        with as_chosen("--solver"):
            plugins.import_module_of(given)
            plugins.find(given, (Solver,))
        return given
    names = {each.casefold(): each for each in known}
    if (found := names.get(given.casefold())) is None:
        raise UserError(
            f"--solver must be one of {', '.join(known)}, or MODULE:CLASS; got '{given}'"
        )
    return found


def solve_by(name: str | None, loaded: run.Run) -> dict[str, str]:
    """Let a run's model solve by a named solver, under the limits of its own.

    Args:
        name: as the option says; None for no change.
        loaded: the run.

    Returns:
        What has changed, as the files of figures note it.

    Raises:
        UserError: there is no such solver, or the run's network has none.
        RunError: it is `neural`, and the run has none of its weights.
    """
    if name is None:
        return {}
    found = resolve(name, (LEARNED, *SOLVERS))
    model = loaded.model
    if not isinstance(model, EquilibriumModel):
        raise UserError(
            f"--solver is for equilibrium networks, and {loaded.folder} is the run of an explicit "
            f"one, {loaded.recipe.model.title}"
        )
    if found == LEARNED:
        neural.attach(run.Folder(loaded.folder), model)
    else:
        model.deq.eval_solver = changed(model.deq.eval_solver or model.deq.solver, found)
    return {"solver": found}
