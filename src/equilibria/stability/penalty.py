"""Jacobian regularisation: a penalty on how strongly f feeds its state back, at the solution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria import draws
from equilibria.checks import check_fields
from equilibria.solve import Solution, boundary, private, without_autocast

Leaves = list[Tensor]


@boundary
def jacobian_penalty(
    sol: Solution, samples: int = 1, *, generator: torch.Generator | None = None
) -> Tensor:
    """Estimates ||J||_F^2 / d at z*, J = df/dz, to be added to a loss with a weight of its own.

        penalty = 1 / (M B) sum_m sum_b ||eps_mb^T J_b||^2 / d,    eps_mb ~ N(0, I),

    the mean over the B samples of the batch and over M probes of each; d counts the entries of one
    sample, all leaves together (B d are all entries: where samples are groups of rows, a larger one
    counts for more). It is unbiased, and its relative error falls like (M B)^(-1/2).
    The loss to train on is `loss + gamma * jacobian_penalty(sol)`.

    The gradient is that of this formula, z* being a function of the parameters too: with respect to
    parameters, operands and what else f closes over. What flows to z* is added to what the loss
    sends there, so that one backward solve serves both. (Implementations that detach z* leave that
    part of the gradient out.)

    f is evaluated once, with a graph, at z* for all probes; each probe is one vector-Jacobian
    product with a graph of its own. Memory: that of one evaluation of f and of `samples` backward
    passes through it. Nothing is spent where it is not called.

    Args:
        sol: a solution found with gradients enabled. What an inexact solve found, or an inexact
            adjoint says of z*, holds for the penalty as well.
        samples: M, probes for each sample of the batch; 1 does for batches of usual sizes.
        generator: of the probes, on the device of the state. None: each sample has probes of its
            own in training, see `draws`; elsewhere, and under `torch.func`, torch's global one.

    Returns:
        A scalar in the state's dtype.

    Raises:
        TypeError: `sol` is no `Solution`.
        ValueError: `samples` is below 1.
        RuntimeError: gradients are disabled, here or where `sol` was found.

    papers: Bai et al. 2021, eq. 4 and appendix A; Hutchinson 1989.
    """
    evaluate, leaves = _admit(sol, samples)
    device = leaves[0].device.type
    total = leaves[0].new_zeros(())
    # The products are of f's own graph; a region around this call must not cast their arithmetic.
    with without_autocast(device):
        for product in _products(evaluate, leaves, samples, generator):
            total = total + sum(leaf.square().sum() for leaf in product)
    # Every sample has d entries: the mean over the batch of sums / d is one division.
    return total / (samples * sum(leaf.numel() for leaf in leaves))


def _admit(sol: Any, samples: Any) -> tuple[Callable[[Leaves], Leaves], Leaves]:
    if not isinstance(sol, Solution):
        given = type(sol).__name__
        hint = "; pass its solution" if hasattr(sol, "solution") else ""
        raise TypeError(
            f"sol: expected a Solution, as a DEQ or fixed_point returns, got {given}{hint}"
        )
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples is {samples}: expected 1 or more")
    transformed = private.transform_active()
    if not (torch.is_grad_enabled() or transformed):
        raise RuntimeError(
            "jacobian_penalty is made to be differentiated and gradients are disabled here. To "
            "measure alone, use jacobian_norm"
        )
    if sol._evaluate is None:
        raise RuntimeError(
            "this solution was detached, or found with gradients disabled (torch.no_grad or "
            "inference_mode), so that it does not know what f depends on: solve with gradients "
            "enabled"
        )
    return sol._evaluate, pytree.tree_leaves(sol.value)


def _products(
    evaluate: Callable[[Leaves], Leaves],
    leaves: Leaves,
    samples: int,
    generator: torch.Generator | None,
) -> Iterator[Leaves]:
    """eps^T J for `samples` draws of eps, differentiable in z and in all that f depends on."""
    if private.transform_active():
        function = lambda *z: tuple(evaluate(list(z)))  # noqa: E731
        pull = torch.func.vjp(function, *leaves)[1]
        for _ in range(samples):
            yield list(pull(tuple(_noise(leaf, generator) for leaf in leaves)))
        return
    # An alias keeps its link to z*, and the product is the partial derivative: a path from an
    # operand to the same z* does not pass through it.
    aliases = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in leaves]
    with private.run_eagerly():  # compiled functions cannot be differentiated twice
        image = evaluate(aliases)
    live = [leaf for leaf in image if leaf.requires_grad]
    for _ in range(samples):
        if not live:  # f does not look at its state
            yield [torch.zeros_like(leaf) for leaf in leaves]
            continue
        noise = [_noise(leaf, generator) for leaf in image]
        cotangents = [eps for eps, leaf in zip(noise, image, strict=True) if leaf.requires_grad]
        yield list(
            torch.autograd.grad(
                live, aliases, cotangents, create_graph=True, materialize_grads=True
            )
        )


def _noise(like: Tensor, generator: torch.Generator | None) -> Tensor:
    options: Any = {"dtype": like.dtype, "device": like.device}
    # Under vmap, where each of its samples has probes of its own, nothing can be filled in place.
    if generator is not None or private.transform_active():
        return torch.randn(like.shape, generator=generator, **options)
    return draws.for_samples(torch.empty(like.shape, **options), Tensor.normal_)


# --- correction -----------------------------------------------------------------------------------

# Sparse fixed-point correction: a loss on a few states along the solver's path.


@dataclass(frozen=True, kw_only=True)
class FixedPointCorrection:
    """A loss on `count` states of the solver's path, so that the path heads for the answer early.

        L = loss(z*) + sum_i gamma^(r + 1 - i) loss(z_i),    i = 1 ... r,

    with r = `count` states that cut the path into r + 1 equal parts, the later the heavier. Each
    state has the gradient of one step of f at it, and none through how the solver reached it: that
    is what `Solution.states` carry. Under `Phantom` it is the iterate after its steps from there,
    which suits unstable cells better: a loss of z_i itself says nothing of a step that overshoots.

    The cost is one more evaluation of f, with its graph, and one readout for each state; under
    `Phantom`, as many evaluations as it makes steps.

    Args:
        count: states on the path, r; in practice one is enough.
        gamma: weight of the state nearest to the solution, between 0 and 1.
        evals: evaluations of the path that the states are spread over; None for what solves
            take (`depths` is told), so that states do not fall behind the end of most solves.

    Raises:
        ValueError: `count` or `evals` below 1, `gamma` outside (0, 1].

    Example:
        >>> correction = FixedPointCorrection(count=2, gamma=0.8)
        >>> sol = layer(x, states=correction.depths(12))
        >>> total = loss(head(sol.value)) + correction(lambda z: loss(head(z)), sol.states)

    papers: Bai 2022 (thesis), eq. 7.8, 7.9 and Alg. 4, which asks for random states and takes
    uniformly spaced ones; the powers of gamma for several are those of RAFT's sequence loss.
    """

    count: int = 1
    gamma: float = 0.8
    evals: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "count", "evals")
        check_fields(self, "(0, 1]", "gamma")

    def depths(self, evals: float) -> tuple[int, ...]:
        """Return after how many evaluations the states are taken: pass it on as `states`.

        Args:
            evals: evaluations that a solve takes, where the class has no `evals` of its own.
        """
        length = evals if self.evals is None else self.evals
        parts = self.count + 1
        return tuple(max(1, round(length * i / parts)) for i in range(1, parts))

    def __call__(self, loss: Callable[[Any], Tensor], states: Sequence[Any]) -> Tensor:
        """Return the correction, to be added to the loss.

        Args:
            loss: state -> scalar, the loss of what is read from it.
            states: `Solution.states` of a solve that was given `depths`, found with gradients
                enabled.

        Raises:
            ValueError: another number of states than `count`.
        """
        if len(states) != self.count:
            raise ValueError(
                f"expected {self.count} states, got {len(states)}: solve with "
                "states=correction.depths(...)"
            )
        terms = [self.gamma ** (self.count - i) * loss(z) for i, z in enumerate(states)]
        return sum(terms[1:], terms[0])
