"""torch.func transforms and forward-mode dual numbers, against a loop written out."""

import functools

import pytest
import torch
import torch.autograd.forward_ad as fwad
from maps import BATCH, WIDTH, Module, cell, start
from problems import normal, with_norm
from references import INEXACT, TIGHT, from_zero, iterate, loss, tight
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

import equilibria as eq

W = with_norm(0.7, WIDTH, seed=1)
BIAS = normal(WIDTH, seed=2)
X = normal(BATCH, WIDTH, seed=3)
MANY = normal(4, BATCH, WIDTH, seed=4)


def solve(x, w=W, **options):
    """z* as a function of an operand and of a matrix that f closes over."""
    options = {**tight(), **options}
    return eq.fixed_point(lambda z, x: cell(z, x, w, BIAS), start(), x, **options).value


def loop(x, w=W):
    """The same, unrolled."""
    return iterate(lambda z, x: cell(z, x, w, BIAS), start(), x, steps=60)


def same(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-9)


# Each transform takes solve or loop and gives a function of the operand.
SINGLE = {
    "grad": lambda f: grad(lambda x: loss(f(x))),
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "hessian": lambda f: hessian(lambda x: loss(f(x))),
    "jacrev_of_jacrev": lambda f: jacrev(jacrev(f)),
    "jacrev_of_jacfwd": lambda f: jacrev(jacfwd(f)),
    "jacfwd_of_jacfwd": lambda f: jacfwd(jacfwd(f)),
    "grad_of_grad": lambda f: grad(lambda x: loss(grad(lambda y: loss(f(y)))(x))),
    "jvp": lambda f: lambda x: jvp(f, (x,), (torch.cos(x),)),
    "vjp": lambda f: lambda x: (lambda value, pull: pull(torch.cos(value)))(*vjp(f, x)),
    "jvp_of_grad": lambda f: lambda x: jvp(grad(lambda y: loss(f(y))), (x,), (torch.cos(x),)),
}


@functools.cache
def wanted(name: str):
    return SINGLE[name](loop)(X)


@pytest.mark.parametrize("name", SINGLE)
def test_operand(name: str) -> None:
    same(SINGLE[name](solve)(X), wanted(name))


@pytest.mark.parametrize("name", ["grad", "jacfwd", "hessian"])
def test_closed_over_tensor(name: str) -> None:
    """The transform is with respect to a tensor that f closes over, not an operand."""
    transform = SINGLE[name]
    same(transform(lambda w: solve(X, w))(W), transform(lambda w: loop(X, w))(W))


@pytest.mark.parametrize("name", ["grad", "jacfwd", "jvp"])
def test_closed_over_tensor_with_a_history(name: str) -> None:
    """As above, and the tensor is computed from the transform's argument outside f."""
    transform = SINGLE[name]
    weight = lambda v: v / v.norm(dim=1, keepdim=True) * 0.6  # noqa: E731
    same(transform(lambda v: solve(X, weight(v)))(W), transform(lambda v: loop(X, weight(v)))(W))


BATCHED = {
    "vmap": vmap,
    "vmap_of_grad": lambda f: vmap(grad(lambda x: loss(f(x)))),
    "grad_of_vmap": lambda f: grad(lambda xs: loss(vmap(f)(xs))),
    "vmap_of_jacrev": lambda f: vmap(jacrev(f)),
    "jacrev_of_vmap": lambda f: jacrev(vmap(f)),
    "jacfwd_of_vmap": lambda f: jacfwd(vmap(f)),
    "vmap_of_hessian": lambda f: vmap(hessian(lambda x: loss(f(x)))),
    "vmap_of_jvp": lambda f: vmap(lambda x: jvp(f, (x,), (torch.cos(x),))),
    "vmap_of_vmap": lambda f: lambda xs: vmap(vmap(f))(torch.stack([xs, xs + 1])),
    "vmap_out_dims": lambda f: vmap(f, in_dims=0, out_dims=1),
}


@pytest.mark.parametrize("name", BATCHED)
def test_vmap(name: str) -> None:
    transform = BATCHED[name]
    same(transform(solve)(MANY), transform(loop)(MANY))


def test_vmap_over_another_axis() -> None:
    many = MANY.movedim(0, 2)
    same(vmap(solve, in_dims=2)(many), vmap(loop, in_dims=2)(many))


def test_vmap_over_closed_over_tensors() -> None:
    """An ensemble: each member has its own matrix, the operand is common."""
    weights = torch.stack([with_norm(norm, WIDTH, seed=9) for norm in (0.2, 0.5, 0.8)])
    same(vmap(lambda w: solve(X, w))(weights), vmap(lambda w: loop(X, w))(weights))
    same(
        vmap(grad(lambda w: loss(solve(X, w))))(weights),
        vmap(grad(lambda w: loss(loop(X, w))))(weights),
    )


def test_vmap_over_the_start() -> None:
    starts = normal(3, BATCH, WIDTH, seed=8)
    values = vmap(lambda z0: eq.fixed_point(cell, z0, X, eq.shared(W), eq.shared(BIAS)).value)(
        starts
    )
    torch.testing.assert_close(values, loop(X).expand(3, -1, -1), rtol=1e-3, atol=1e-3)


def test_vmap_of_a_shared_operand() -> None:
    """A shared operand may have the mapped axis too."""
    weights = torch.stack([with_norm(norm, WIDTH, seed=9) for norm in (0.2, 0.5, 0.8)])

    def solution(w):
        return eq.fixed_point(
            lambda z, x, w: cell(z, x, w, BIAS), start(), X, eq.shared(w), **tight()
        ).value

    same(vmap(solution)(weights), vmap(lambda w: loop(X, w))(weights))


def test_status_and_stats_gain_the_mapped_axis() -> None:
    """And they are those of the solves one by one."""

    def parts(x):
        sol = eq.fixed_point(
            lambda z, x: cell(z, x, W, BIAS), start(), x, solver=eq.Picard(rtol=1e-6, max_evals=14)
        )
        return sol.value, sol.status, sol.stats.evals, sol.stats.residual

    scale = torch.tensor([0.0, 0.1, 1.0, 4.0], dtype=torch.float64)[:, None, None]
    mapped = vmap(parts)(scale * MANY)
    assert [tuple(part.shape) for part in mapped[1:]] == [(4, BATCH)] * 3
    singles = [parts(x) for x in scale * MANY]
    for i, part in enumerate(mapped):
        wanted = torch.stack([single[i] for single in singles])
        if part.is_floating_point():
            torch.testing.assert_close(part, wanted, rtol=1e-6, atol=1e-12)
        else:
            assert torch.equal(part, wanted)
    assert len(mapped[2].unique()) > 1


def test_nan_in_one_mapped_solve_stays_there() -> None:
    def parts(x):
        sol = from_zero(lambda z, x: (x - z).sqrt(), x)
        return sol.value, sol.status

    x = torch.tensor([[[2.0], [6.0]], [[-1.0], [2.0]]])
    value, status = vmap(parts)(x)
    assert status.tolist() == [[0, 0], [eq.Status.NONFINITE, 0]]
    torch.testing.assert_close(value[0], parts(x[0])[0])
    torch.testing.assert_close(value[1, 1], parts(x[1])[0][1])


def test_trace_raises_under_vmap() -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"(?s)trace.*vmap|vmap.*trace"):
        vmap(lambda x: solve(x, trace=True))(MANY)


@pytest.mark.parametrize("linear", [eq.BiCGSTAB, eq.Neumann, eq.DirectSolve, eq.Anderson])
def test_transforms_with_every_linear_solver(linear) -> None:
    f = lambda x: solve(x, **tight(linear=linear(**TIGHT)))  # noqa: E731
    same(SINGLE["hessian"](f)(X), wanted("hessian"))
    same(vmap(jacfwd(f))(X[None]), wanted("jacfwd")[None])


def test_functional_call() -> None:
    """With respect to the parameters of a module that is lent other ones."""
    module = Module()
    parameters = {name: p.detach() + 0.05 for name, p in module.named_parameters()}

    class Solver(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = module

        def forward(self, x):
            return eq.fixed_point(self.cell, start(), x, **tight()).value

    class Loop(Solver):
        def forward(self, x):
            return iterate(self.cell, start(), x, steps=60)

    lent = {f"cell.{name}": p for name, p in parameters.items()}
    for transform in (grad, jacrev, jacfwd):
        got = transform(lambda p: loss(functional_call(Solver(), p, (X,))))(lent)
        wanted = transform(lambda p: loss(functional_call(Loop(), p, (X,))))(lent)
        for name in lent:
            same(got[name], wanted[name])


def test_functional_call_outside_of_transforms() -> None:
    """Backward comes after the parameters are given back; it differentiates the lent ones."""
    module = Module()
    lent = {n: (p.detach() + 0.1).requires_grad_() for n, p in module.named_parameters()}

    def f(z, x):
        return functional_call(module, lent, (z, x))

    grads = torch.autograd.grad(
        loss(eq.fixed_point(f, start(), X, **tight()).value), list(lent.values())
    )
    wanted = torch.autograd.grad(loss(iterate(f, start(), X, steps=60)), list(lent.values()))
    same(grads, wanted)
    assert all(p.grad is None for p in module.parameters())


def test_ensemble_of_modules() -> None:
    """vmap over stacked parameters, the usual way to run an ensemble."""
    modules = [Module() for _ in range(3)]
    for i, module in enumerate(modules):
        with torch.no_grad():
            module.gain.add_(0.3 * i)
    parameters, buffers = stack_module_state(modules)

    def member(solver):
        def run(p, b, x):
            return solver(lambda z, x: functional_call(modules[0], (p, b), (z, x)), x)

        return run

    fixed = member(lambda f, x: eq.fixed_point(f, start(), x, **tight()).value)
    unrolled = member(lambda f, x: iterate(f, start(), x, steps=60))
    same(
        vmap(fixed, in_dims=(0, 0, None))(parameters, buffers, X),
        vmap(unrolled, in_dims=(0, 0, None))(parameters, buffers, X),
    )
    got = vmap(grad(lambda p, b: loss(fixed(p, b, X))))(parameters, buffers)
    wanted = vmap(grad(lambda p, b: loss(unrolled(p, b, X))))(parameters, buffers)
    for name in parameters:
        same(got[name], wanted[name])


def test_forward_mode_dual_numbers() -> None:
    tangent = normal(BATCH, WIDTH, seed=7)
    with fwad.dual_level():
        for x, w in ((fwad.make_dual(X, tangent), W), (X, fwad.make_dual(W, tangent.T @ tangent))):
            got = fwad.unpack_dual(solve(x, w))
            wanted = fwad.unpack_dual(loop(x, w))
            same(got.primal, wanted.primal)
            same(got.tangent, wanted.tangent)


def test_forward_over_reverse_without_func() -> None:
    """Dual numbers through a backward: a Hessian-vector product."""
    tangent = normal(BATCH, WIDTH, seed=7)

    def product(f):
        x = X.clone().requires_grad_()
        with fwad.dual_level():
            (first,) = torch.autograd.grad(
                loss(f(fwad.make_dual(x, tangent))), x, create_graph=True
            )
            return fwad.unpack_dual(first).tangent

    same(product(solve), product(loop))


def test_tree_state_and_tree_operand() -> None:
    def f(z, operand):
        return {
            "a": 0.4 * torch.sin(z["b"]) + operand["x"],
            "b": (0.5 * torch.cos(z["a"]) * operand["y"][0]),
        }

    z0 = {"a": start(), "b": start()}

    def run(solver):
        return lambda x: solver({"x": x, "y": [torch.sin(x)]})

    fixed = run(lambda operand: eq.fixed_point(f, z0, operand, **tight()).value)
    unrolled = run(lambda operand: iterate(f, z0, operand, steps=80))
    for transform in (jacrev, jacfwd, lambda f: vmap(jacrev(f))):
        argument = X if transform in (jacrev, jacfwd) else MANY
        got, wanted = transform(fixed)(argument), transform(unrolled)(argument)
        same(got["a"], wanted["a"])
        same(got["b"], wanted["b"])


@pytest.mark.parametrize("adjoint", INEXACT[:-1], ids=repr)
def test_inexact_adjoints_under_transforms(adjoint) -> None:
    """grad and vmap of grad give what a plain backward gives."""
    options = {"solver": eq.Picard(rtol=1e-4), "adjoint": adjoint, "throw": False}

    def plain(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(loss(solve(x, **options)), x)[0]

    same(grad(lambda x: loss(solve(x, **options)))(X), plain(X))
    got = vmap(grad(lambda x: loss(solve(x, **options))))(MANY)
    same(got, torch.stack([plain(x) for x in MANY]))
