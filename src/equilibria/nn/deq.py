"""The deep equilibrium layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from equilibria.nn.dropout import VariationalDropout
from equilibria.nn.frozen import Evaluation, Frozen, module_of, walk_modules
from equilibria.nn.methods import Methods, Weights, check_methods, chosen, find_weights
from equilibria.nn.remedies import (
    check_parts,
    check_warm,
    raise_with_remedy,
    refuse_cast,
    refuse_names,
    refuse_sharded,
)
from equilibria.solve import (
    Adjoint,
    Auto,
    Closure,
    Implicit,
    Shared,
    Solution,
    Solver,
    Starts,
    Unrolled,
    advance,
    boundary,
    check_returns,
    fixed_point,
    flatten,
    unflatten,
    warn_of_unsteady,
)


class DEQ(nn.Module):
    """A layer whose output is the fixed point of its cell, z* = cell(z*, *inputs, **keywords).

    Within one forward, and whenever its backward evaluates the cell again, the cell is one
    function: parameters and buffers are those of the forward, weights under `weight_norm`,
    `spectral_norm` or any other torch parametrisation are computed once, and every
    `VariationalDropout` has one mask.
    What a plain function closes over gets its gradient, and `parameters()` does not list it: make
    the cell a module if an optimiser is to find it there.

    Args:
        cell: module or callable, cell(z, *inputs, **keywords) -> z.
        solver: solver of the forward, `Auto()` by default.
        adjoint: how gradients are found, `Implicit()` by default.
        eval_solver: solver of the forward in eval mode; None for the same one.
        init: the start z0: None for zeros like the first input, or a callable of the inputs (those
            given by position), such as a module. The gradient of a fixed point does not reach its
            start (only that of `Unrolled` does): a learned initial guess is trained on its distance
            from the solution, for example by
            `(layer.init(*inputs) - sol.value.detach()).square().mean()`.
        drop_finished: samples that have finished leave the batch; see `fixed_point`.
        coupled: the cell mixes the rows of the batch, which are solved as one sample; a call may
            say which rows are which sample's. See `fixed_point`.
        throw: raise where a sample does not converge, forward or backward, unless a call says
            otherwise.
        returns: which iterate a sample that did not converge returns, "best" or "last"; see
            `fixed_point`.
        has_aux: the cell returns a pair, (z, aux); see `fixed_point`.

    Attributes:
        options: the keywords of a call that are the layer's own.
        neural: the weights of a `NeuralSolver`; None until `eq.distill` has trained some.

    Raises:
        TypeError: cell or init cannot be called; solver or adjoint is none, or a solver is made
            for other cells.
        ValueError: both `drop_finished` and `coupled`, or another `returns`; or a parameter of the
            cell that is given by name has the name of an option of the layer's call.

    Warns:
        UserWarning: a sub-module of the cell makes each evaluation another function (plain dropout,
            batch norm); the message names it and what to use instead.

    Source:
        Bai et al. 2019.

    Example:
        >>> layer = DEQ(cell, solver=Anderson(rtol=1e-3))
        >>> sol = layer(x)
        >>> sol.value.sum().backward()
    """

    __call__: Callable[..., Solution]

    def __init__(
        self,
        cell: Callable[..., Any],
        *,
        solver: Solver | None = None,
        adjoint: Adjoint | None = None,
        eval_solver: Solver | None = None,
        init: Callable[..., Any] | None = None,
        drop_finished: bool = False,
        coupled: bool = False,
        throw: bool = False,
        returns: str = "best",
        has_aux: bool = False,
    ) -> None:
        super().__init__()
        check_parts(cell, init, drop_finished and coupled)
        check_methods(cell, Methods(solver, eval_solver, adjoint))
        check_returns(returns)
        refuse_names(cell, self.options)
        self.cell = cell
        self.solver = Auto() if solver is None else solver
        self.adjoint = Implicit() if adjoint is None else adjoint
        self.eval_solver = eval_solver
        self.init = init
        self.drop_finished = drop_finished
        self.coupled = coupled
        self.throw = throw
        self.returns = returns
        self.has_aux = has_aux
        self.neural: Weights | None = None
        warn_of_unsteady("the cell", _walk_parts(cell))

    @boundary
    def forward(
        self,
        *inputs: Any,
        z0: Any = None,
        warm: Solution | None = None,
        states: Iterable[int] = (),
        trace: bool = False,
        throw: bool | None = None,
        coupled: bool | Tensor | None = None,
        starts: int | Starts | None = None,
        **keywords: Any,
    ) -> Solution:
        """Solve for the fixed point.

        Args:
            inputs: operands of the cell, tensors or trees with first axis the batch; what all
                samples share is wrapped in `shared`. Numbers, flags and None are passed on.
            keywords: further operands, which the cell takes by name. The names below are options of
                the layer.
            z0: start of this solve, or a function of the start that `init` gives, which returns
                one; without it `warm` gives the start, and without that `init`.
            warm: an earlier solution, whose adjoint also starts the backward.
            states: numbers of evaluations after which iterates are kept.
            trace: keep the residual after each evaluation.
            throw: raise where a sample does not converge; None: as the layer was told.
            coupled: `(rows,)` int64, the sample of each row of the state, or a bool; see
                `fixed_point`. None: as the layer was told.
            starts: a number of starts of each sample, or `Starts`; see `fixed_point`. All starts
                of a sample have its dropout masks.

        Returns:
            The `Solution`; its `value` is z*.

        Raises:
            ValueError: there is neither z0 nor `init`, and the first input is no tensor or tree of
                floating-point tensors, or zeros like it are no state of the cell.
            TypeError: the cell's weights are below float32, and autocast is off. And whatever
                `fixed_point` raises.
        """
        solver, adjoint, learned, returns = self._methods()
        if warm is not None:
            check_warm(warm, (*inputs, *keywords.values()))
        own = z0 is None and warm is None
        if callable(z0):
            z0 = z0(self.start(*inputs))
        if z0 is None:
            z0 = self.start(*inputs) if warm is None else warm.value
        elif warm is not None:
            # Only its adjoint is wanted; Unrolled has none, and there z0 has a gradient to keep.
            warm = None if isinstance(adjoint, Unrolled) else replace(warm, value=z0)
        if learned is not None:
            if own:
                z0 = learned.start(inputs, z0)
            solver = learned.bind(solver, started=own)
        return _solve(
            self,
            fixed_point,
            z0,
            inputs,
            keywords,
            guessed=own and self.init is None,
            solver=solver,
            adjoint=adjoint,
            throw=throw,
            coupled=coupled,
            drop_finished=self.drop_finished,
            trace=trace,
            states=states,
            warm=warm,
            returns=returns,
            starts=starts,
        )

    options: ClassVar[tuple[str, ...]] = tuple(inspect.signature(forward).parameters)[2:-1]

    @boundary
    def advance(
        self,
        z: Any,
        *inputs: Any,
        throw: bool | None = None,
        coupled: bool | Tensor | None = None,
        **keywords: Any,
    ) -> Solution:
        """Evaluate the cell once near the fixed point: y = cell(z, *inputs, **keywords).

        y is the next iterate, what a loss is taken of, and what its gradient goes through, which
        the layer's adjoint finds at z: a training step for the price of one evaluation, where `z`
        is the state that the same samples had reached a step ago. See `equilibria.solve.advance`.

        Args:
            z: the state, detached here.
            inputs, keywords: operands of the cell, as of a call.
            throw: raise where z is not within the solver's tolerance; None: as the layer was told.
            coupled: as of a call.

        Returns:
            A `Solution` whose `value` is y and whose `status`, `stats.residual` and
            `stats.overall` are those of z. The state for the next step is `value.detach()`.

        Raises:
            TypeError: the adjoint is `Phantom`, `Unrolled` or `Shine`. And whatever
                `equilibria.solve.advance` raises.

        Source:
            Bai 2022 (thesis), eq. 8.9 (which means theta of step t + 1) and 8.10.

        Example:
            >>> state = layer(x).value.detach()
            >>> for _ in range(steps):
            ...     sol = layer.advance(state, x)
            ...     loss(sol.value).backward()
            ...     optimiser.step()
            ...     state = sol.value.detach()
        """
        solver, adjoint, learned, _ = self._methods()
        if learned is not None:
            solver = learned.bind(solver, started=False)  # an advance needs its tolerances only
        return _solve(
            self,
            advance,
            z,
            inputs,
            keywords,
            solver=solver,
            adjoint=adjoint,
            throw=throw,
            coupled=coupled,
        )

    def extra_repr(self) -> str:
        shown = ["solver", "adjoint", "eval_solver", "drop_finished", "coupled", "throw", "has_aux"]
        shown += ["returns"] * (self.returns != "best")
        return "\n".join(f"{k}={getattr(self, k)!r}" for k in shown if getattr(self, k))

    def start(self, *inputs: Any) -> Any:
        """Return the state that a solve begins at: of `init`, or zeros like the first input.

        Args:
            inputs: operands of the cell, as of a call, that are given by position.

        Raises:
            ValueError: there is no `init`, and the first input is no tensor or tree of
                floating-point tensors.
        """
        if self.init is not None:
            operands = (x.value if isinstance(x, Shared) else x for x in inputs)
            leaves, spec = flatten(self.init(*operands))
            return unflatten([_widen(leaf) for leaf in leaves], spec)
        leaves, spec = flatten(inputs[0] if inputs else ())
        if not leaves or not all(isinstance(x, Tensor) and x.is_floating_point() for x in leaves):
            raise ValueError(
                "without init= the state starts as zeros like the first input by position, which "
                "must then be a floating-point tensor or a tree of such: give the layer init= or "
                "the call z0="
            )
        return unflatten([torch.zeros_like(_widen(x.detach())) for x in leaves], spec)

    def _methods(self) -> tuple[Solver, Adjoint, Weights | None, str]:
        """The solver and the adjoint in use, the weights that the solver is to be bound to, and
        which iterate is returned."""
        given = chosen.get().get(self, Methods())
        solver = given.solver or self.solver
        if not self.training:
            solver = given.eval_solver or self.eval_solver or solver
        neural = self.neural if given.neural is None else given.neural
        adjoint, returns = given.adjoint or self.adjoint, given.returns or self.returns
        return solver, adjoint, find_weights(solver, neural), returns


def _solve(
    layer: DEQ,
    by: Callable[..., Solution],
    z: Any,
    inputs: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    guessed: bool = False,
    solver: Solver,
    **how: Any,
) -> Solution:
    """Call `fixed_point` or `advance` with a layer's cell, in which all is frozen.

    Args:
        by: the function to call.
        z: the start, or where the cell is evaluated.
        inputs, keywords: operands of the cell.
        guessed: nobody has named a start.
        how: other options of the function; where `throw` or `coupled` is None, the layer's.
    """
    refuse_cast(layer)
    owner = module_of(layer.cell)
    if owner is not None:
        refuse_sharded(owner)
    for name in ("throw", "coupled"):
        how[name] = getattr(layer, name) if how[name] is None else how[name]
    rows = _number_rows(owner, z) if how["coupled"] is False else None
    try:
        return by(
            Evaluation(layer.cell, rows, tuple(keywords)),
            z,
            *inputs,
            *(() if rows is None else (rows,)),
            *keywords.values(),
            solver=solver.bound_to(layer.cell),
            has_aux=layer.has_aux,
            **how,
        )
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise_with_remedy(error, layer, z, inputs, keywords, guessed=guessed)
        raise


def _number_rows(owner: nn.Module | None, z: Any) -> Tensor | None:
    """Number the samples (batch,), where a dropout mask must follow them; None elsewhere.

    They travel as an operand, so that a sample finds its row of the mask after others have left the
    batch.

    Args:
        owner: the module that holds the cell's weights.
        z: the state.
    """
    if owner is not None and not any(isinstance(m, VariationalDropout) for m in owner.modules()):
        return None
    leaf = next((x for x in flatten(z)[0] if isinstance(x, Tensor) and x.ndim), None)
    if leaf is None:
        return None  # not a state: fixed_point says so
    batch = leaf.shape[0]
    outer = Frozen.active()
    if outer is None or outer.rows is None:
        return torch.arange(batch, device=leaf.device)
    if outer.rows.shape[0] != batch:
        raise ValueError(
            f"a layer with dropout got {batch} samples inside the cell of one with "
            f"{outer.rows.shape[0]}: their masks follow the outer samples, so both must agree"
        )
    return outer.rows


def _walk_parts(cell: Callable[..., Any]) -> Iterable[tuple[str, nn.Module]]:
    """The modules in a cell, with their paths in the one that holds its weights, if one does."""
    owner = module_of(cell)
    return [("", m) for m in Closure(cell).modules] if owner is None else walk_modules(owner)


def _widen(x: Any) -> Any:
    """A tensor in float32 at least, as a state must be; autocast hands inputs on in less."""
    floating = isinstance(x, Tensor) and x.is_floating_point()
    return x.to(torch.promote_types(x.dtype, torch.float32)) if floating else x


# --- value ----------------------------------------------------------------------------------------

# A layer that returns its value alone.


class Value(nn.Module):
    """z* alone, of a layer that returns a `Solution`: for `nn.Sequential` and other modules that
    hand on what they get.

    Status and stats do not come out of it. Give the layer `throw=True` if a solve that fails must
    raise, or read them in a forward hook: `value.layer.register_forward_hook(lambda layer, inputs,
    sol: log(sol.status))`.

    Args:
        layer: a `DEQ`, or another module that returns a `Solution`.

    Raises:
        TypeError: layer is no module; or, when it is called, it returns no `Solution`.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 32), Value(DEQ(cell)), nn.Linear(32, 10))
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        if not isinstance(layer, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"layer: expected a module, such as eq.DEQ(cell), got {layer!r}")
        self.layer = layer

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return z*, a tensor or a tree of tensors like the state.

        Args:
            inputs: of the layer.
            options: of the call, such as `z0` and `warm` of a `DEQ`, and inputs by name.
        """
        solution = self.layer(*inputs, **options)
        if not isinstance(solution, Solution):
            raise TypeError(
                f"eq.nn.Value: {type(self.layer).__name__} returned a {type(solution).__name__}, "
                "not a Solution: it needs no Value around it"
            )
        return solution.value
