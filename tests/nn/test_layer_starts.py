"""Several starts of a layer's solve."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import equilibria as eq
from equilibria import draws
from equilibria.run.export import exportable

D = torch.float64
CONVERGED = eq.Status.CONVERGED
EXACT = {
    "solver": eq.Picard(rtol=1e-12, max_evals=2000),
    "adjoint": eq.Implicit(linear=eq.GMRES(rtol=1e-13, max_evals=300)),
}


class Cell(nn.Module):
    """tanh(gain (drop(z) + mix(drop(z))) + x), with several equilibria."""

    def __init__(self, p=0.0, gain=1.5):
        super().__init__()
        self.linear = eq.nn.weight_norm(nn.Linear(4, 4).double())
        self.drop = eq.nn.VariationalDropout(p)
        self.gain = gain

    def forward(self, z, x, *, scale=None):
        z = self.drop(z)
        out = self.gain * (z + 0.3 * self.linear(z)) + x
        return torch.tanh(out if scale is None else out * scale)


def data(batch=3):
    torch.manual_seed(0)
    return (0.1 * torch.randn(batch, 4, dtype=D)).requires_grad_()


def given(*starts, select="residual"):
    further = list(starts)
    return eq.Starts(count=len(starts) + 1, draw=lambda z0: further.pop(0), select=select)


@pytest.mark.parametrize("drop_finished", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_all_starts_of_a_sample_have_its_masks(p, drop_finished):
    x = data()
    layer = eq.DEQ(Cell(p), drop_finished=drop_finished, **EXACT)
    z0, others = torch.zeros_like(x), [torch.full_like(x, s) for s in (0.5, -0.5, 1.0)]
    torch.manual_seed(1)
    sol = layer(x, z0=z0, starts=given(*others, select=lambda found: -found.value.sum(2)))
    assert (sol.starts.status == CONVERGED).all() and (sol.starts.count_distinct() > 1).any()
    begin = torch.stack([z0, *others])[sol.starts.chosen, torch.arange(3)]
    torch.manual_seed(1)  # the same masks
    alone = layer(x, z0=begin)
    torch.testing.assert_close(sol.value, alone.value)
    for k, each in enumerate([z0, *others]):
        torch.manual_seed(1)
        torch.testing.assert_close(layer(x, z0=each).value, sol.starts.value[k])
    of = (x, *layer.parameters())
    gradients = []
    for each in (sol, alone):
        first = torch.autograd.grad(each.value.cos().sum(), of, create_graph=True)
        gradients.append([*first, *torch.autograd.grad(first[0].square().sum(), of)])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_draws_that_are_keyed_do_not_depend_on_the_batch():
    x = data(4)
    layer = eq.DEQ(Cell(0.3), **EXACT)

    def solve(rows):
        with draws.key_rows("step", rows):
            return layer(x[rows], starts=eq.Starts(count=5, select="stability"))

    whole, part = solve(slice(0, 4)), solve(slice(1, 3))
    assert torch.equal(whole.starts.chosen[1:3], part.starts.chosen)
    torch.testing.assert_close(whole.starts.value[:, 1:3], part.starts.value)


def test_keywords_shared_operands_and_the_init_of_a_layer():
    x, seen = data(), []
    init = lambda x: seen.append(1) or torch.full_like(x, 0.3)  # noqa: E731
    layer = eq.DEQ(Cell(0.2), init=init, **EXACT)
    scale = torch.tensor([1.0, 2.0, 1.0, 0.5], dtype=D, requires_grad=True)
    sol = layer(x, scale=eq.shared(scale), starts=3)
    assert seen == [1] and sol.starts.value.shape == (3, 3, 4) and sol.starts.chosen.shape == (3,)
    sol.value.sum().backward()
    assert scale.grad.abs().min() > 0
    assert layer(x, scale=1.0).starts is None
    layer.eval()
    z0 = torch.full_like(x, 0.3)
    torch.testing.assert_close(
        layer(x, starts=1).value, eq.fixed_point(layer.cell, z0, x, solver=layer.solver).value
    )


def test_a_layer_inside_a_cell():
    x = data()
    inner = eq.DEQ(Cell(0.3, gain=0.5), **EXACT)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, z, x):
            return torch.tanh(2 * z + 0.2 * self.inner(x + 0.1 * z).value)

    layer = eq.DEQ(Outer(), **EXACT)
    others = [torch.full_like(x, s) for s in (0.5, -0.5)]
    torch.manual_seed(2)
    sol = layer(x, z0=others[1], starts=given(others[0], select=lambda found: -found.value.sum(2)))
    torch.manual_seed(2)
    alone = layer(x, z0=others[0])
    assert sol.starts.chosen.tolist() == [1, 1, 1]
    torch.testing.assert_close(sol.value, alone.value)
    found = [torch.autograd.grad(s.value.sum(), [x, *layer.parameters()]) for s in (sol, alone)]
    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-9)


def test_stability_where_parts_of_the_cell_are_checkpointed():
    x = data(6)

    class Checkpointed(Cell):
        def forward(self, z, x):
            return checkpoint(super().forward, z, x, use_reentrant=False)

    chosen, plain = [], Cell(0.3)
    for cell in (plain, Checkpointed(0.3)):
        cell.load_state_dict(plain.state_dict())
        layer = eq.DEQ(cell, drop_finished=True, **EXACT)
        others = [torch.full_like(x, s) for s in (0.5, -0.5, 0.0)]
        torch.manual_seed(3)
        chosen.append(layer(x, starts=given(*others, select="stability")).starts.chosen)
    assert torch.equal(*chosen) and chosen[0].any()


def test_what_a_layer_refuses():
    x, layer = data(), eq.DEQ(Cell(), **EXACT)
    with pytest.raises(ValueError, match="starts and warm exclude each other"):
        layer(x, warm=layer(x), starts=2)
    with pytest.raises(ValueError, match="starts and warm exclude each other"):
        layer(x, z0=x.detach(), warm=layer(x), starts=2)
    with pytest.raises(ValueError, match="starts and coupled exclude each other"):
        eq.DEQ(Cell(), coupled=True)(x, starts=2)
    with pytest.raises(TypeError, match="starts cannot be used with Unrolled"):
        eq.DEQ(Cell(), adjoint=eq.Unrolled())(x, starts=2)
    with pytest.raises(ValueError, match=r"Starts\(draw=...\) returned"):
        layer(x, starts=eq.Starts(draw=lambda z0: z0[:1]))
    with pytest.raises(ValueError, match="the cell has a parameter 'starts'"):
        eq.DEQ(lambda z, x, *, starts: z)
    mask = torch.ones(3, 4, dtype=D)
    with pytest.raises(ValueError, match="6 rows, 2 starts of 3 samples, and failed"):
        eq.DEQ(lambda z, x: 0.5 * z * mask + x)(x, starts=2)
    with pytest.raises(ValueError, match="an exported layer iterates from one start"):
        exportable(layer.eval(), evals=3)(x, starts=2)


def test_with_other_methods():
    x = data()
    layer = eq.DEQ(Cell(), **EXACT)
    with eq.nn.using(layer, solver=eq.Picard(rtol=1e-8, max_evals=2000)):
        sol = layer(x, starts=eq.Starts(count=4, select="first"))
    assert (sol.status == CONVERGED).all() and sol.starts.chosen.tolist() == [0] * 3
