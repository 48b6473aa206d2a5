"""Other methods for the equilibrium layers of a module, for as long as a block runs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn

from equilibria.nn.deq import DEQ
from equilibria.nn.frozen import walk_modules
from equilibria.nn.methods import Methods, Weights, check_methods, chosen
from equilibria.solve import Adjoint, Solver, check_returns

# --- modes ----------------------------------------------------------------------------------------

# Eval mode for as long as a block runs.


@contextmanager
def in_eval_mode(module: nn.Module) -> Generator[None]:
    """Put a module into eval mode for a block, and each of its parts back into its own mode.

    Args:
        module: the module; its parts may be in different modes.
    """
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for each, training in modes:
            each.training = training


# --- using ----------------------------------------------------------------------------------------


@contextmanager
def using(
    module: nn.Module,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
    eval_solver: Solver | None = None,
    neural: Weights | None = None,
    returns: str | None = None,
) -> Generator[None]:
    """Solve with other methods in every equilibrium layer of a module, within a `with` block.

    The layers are not changed: other threads, and forwards after the block, use the layers' own
    methods. A layer inside the cell of another is a part of that one's f and keeps its own too.
    Blocks nest; the inner one prevails. A forward that runs again in backward, as under
    `torch.utils.checkpoint`, needs its backward inside the block, else it runs by other methods.

    Args:
        module: a `DEQ`, or a module that holds some.
        solver: of the forward, in train and in eval mode; None for no change.
        adjoint: of the gradient; None for no change.
        eval_solver: of the forward in eval mode, in place of `solver`; None for no change.
        neural: weights of a `NeuralSolver`; None for no change.
        returns: which iterate a sample that did not converge returns, "best" or "last"; None for
            no change.

    Raises:
        TypeError: a solver or the adjoint is none, a solver is made for other cells, or `neural` is
            no learned solver's weights.
        ValueError: another `returns`.

    Example:
        >>> with eq.nn.using(model, solver=eq.Picard(max_evals=5)):
        ...     early = model(x)
    """
    if returns is not None:
        check_returns(returns)
    given = Methods(solver, eval_solver or solver, adjoint, neural, returns)
    methods = dict(chosen.get())
    for layer in layers(module).values():
        check_methods(layer.cell, given)
        before = methods.get(layer, Methods())
        methods[layer] = Methods(
            solver or before.solver,
            given.eval_solver or before.eval_solver,
            adjoint or before.adjoint,
            before.neural if neural is None else neural,
            returns or before.returns,
        )
    token = chosen.set(methods)
    try:
        yield
    finally:
        chosen.reset(token)


def layers(module: nn.Module) -> dict[str, DEQ]:
    """Return the equilibrium layers of a module by their paths, less those inside other cells."""
    found = {path: each for path, each in walk_modules(module) if isinstance(each, DEQ)}
    inner = {m for layer in found.values() for m in layer.modules() if m is not layer}
    return {path: layer for path, layer in found.items() if layer not in inner}
