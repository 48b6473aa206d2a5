"""What one forward holds fixed. The first tests pin the private names of torch that this needs."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from equilibria.nn import DEQ, VariationalDropout, spectral_norm, weight_norm
from equilibria.nn.frozen import Frozen, module_of
from equilibria.solve import Picard


class Counted(nn.Module):
    """A parametrisation that counts how often it is computed."""

    calls = 0

    def forward(self, weight):
        self.calls += 1
        return weight * 2


def counted(layer):
    parametrization = Counted()
    parametrize.register_parametrization(layer, "weight", parametrization)
    parametrization.calls = 0
    return layer, parametrization


def test_torch_asks_the_parametrization_list_for_the_weight():
    layer, parametrization = counted(nn.Linear(2, 2))
    frozen = Frozen(layer)
    assert parametrization.calls == 1
    with frozen.evaluation():
        first = layer.weight
    with frozen.evaluation():
        assert layer.weight is first
        layer(torch.ones(1, 2))
    assert parametrization.calls == 1
    assert layer.weight is not first and parametrization.calls == 2


def test_a_copy_has_weights_of_its_own():
    """Torch's cache goes by the identity of the module that was parametrised first."""
    layer, _ = counted(nn.Linear(2, 2))
    twin: Any = copy.deepcopy(layer)
    with torch.no_grad():
        twin.parametrizations.weight.original.mul_(3)
    both = nn.ModuleList([layer, twin])
    calls = twin.parametrizations.weight[0].calls
    frozen = Frozen(both)
    with parametrize.cached(), frozen.evaluation():
        assert torch.equal(3 * layer.weight, twin.weight)
        assert twin.weight is twin.weight
    assert twin.parametrizations.weight[0].calls == calls + 1


def test_the_weights_have_their_history():
    layer: Any = weight_norm(nn.Linear(2, 2))
    frozen = Frozen(layer)
    with frozen.evaluation(), torch.no_grad():
        weight = layer.weight
    assert weight.grad_fn is not None
    weight.sum().backward()
    assert layer.parametrizations.weight.original0.grad is not None


def test_a_class_that_is_made_of_torchs_class_reads_the_same():
    layer, parametrization = counted(nn.Linear(2, 2))
    layer.__class__ = type("Sub", (type(layer),), {})
    frozen = Frozen(layer)
    with frozen.evaluation():
        assert layer.weight is layer.weight
    assert parametrization.calls == 1


@pytest.mark.parametrize("normalize", [False, True])
def test_a_checkpoint_inside_the_cell_finds_the_forwards_masks_and_weights(normalize):
    class Cell(nn.Module):
        def __init__(self, checkpointed):
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(8, 8)
            self.drop = VariationalDropout(0.5)
            self.checkpointed = checkpointed
            if normalize:
                spectral_norm(self.linear)

        def inner(self, z, x):
            return torch.tanh(0.7 * self.drop(self.linear(z)) + x)

        def forward(self, z, x):
            if not self.checkpointed:
                return self.inner(z, x)
            return checkpoint(self.inner, z, x, use_reentrant=False)

    results = []
    for checkpointed in (False, True):
        layer = DEQ(Cell(checkpointed), solver=Picard(rtol=1e-6))
        x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
        torch.manual_seed(1)
        layer(x).value.square().sum().backward()
        results.append([x.grad, *(p.grad for p in layer.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_a_users_cache_is_kept():
    layer, parametrization = counted(nn.Linear(2, 2))
    with parametrize.cached():
        mine = layer.weight
        frozen = Frozen(layer)
        with frozen.evaluation():
            assert layer.weight is mine
        assert layer.weight is mine
    assert parametrization.calls == 1


def test_an_error_in_the_cell_leaves_nothing_behind():
    layer, _ = counted(nn.Linear(2, 2))
    with pytest.raises(ZeroDivisionError), Frozen(layer).evaluation(torch.arange(2)):
        raise ZeroDivisionError
    assert Frozen.active() is None
    assert parametrize._cache_enabled == 0
    assert "forward" not in layer.parametrizations.weight.__dict__


def test_two_forwards_each_see_their_own_weights():
    layer: Any = spectral_norm(nn.Linear(3, 3), 0.1)
    first = Frozen(layer)
    with torch.no_grad():
        layer.parametrizations.weight.original.add_(1)
    second = Frozen(layer)
    weights = []
    for frozen in (first, second, first, second):
        with frozen.evaluation():
            weights.append(layer.weight)
    assert weights[0] is weights[2] and weights[1] is weights[3]
    assert not torch.allclose(weights[0], weights[1])


def test_tensors_lent_by_functional_call_are_held_and_the_module_is_left_alone():
    layer = nn.BatchNorm1d(2).eval()
    lent = {k: v.detach() + 5 for k, v in layer.state_dict().items() if v.is_floating_point()}
    kept, writes = [], []
    for store in ("_parameters", "_buffers"):
        setattr(layer, store, Watched(getattr(layer, store), writes))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self):
            kept.append(Frozen(self.layer))

    torch.func.functional_call(Outer(), {f"layer.{k}": v for k, v in lent.items()}, ())
    x, own = torch.randn(3, 2), dict(layer.named_parameters())
    expected = torch.func.functional_call(layer, lent, (x,))
    writes.clear()
    assert torch.equal(kept[0].run(None, x), expected)
    assert not writes and layer.weight is own["weight"]


class Watched(dict):
    """Notes what is written to it."""

    def __init__(self, content, writes):
        super().__init__(content)
        self.writes = writes

    def __setitem__(self, key, value):
        self.writes.append(key)
        super().__setitem__(key, value)


def test_once_gives_the_first_value_and_nested_forwards_share_it():
    values = iter(torch.arange(10))
    outer = Frozen(nn.Identity())
    assert outer.once("a", lambda: next(values)) == 0
    with outer.evaluation():
        inner = Frozen(nn.Identity())
        assert inner.once("b", lambda: next(values)) == 1
        with inner.evaluation():
            assert Frozen.active() is inner
        assert Frozen.active() is outer
    assert outer.once("a", lambda: next(values)) == 0
    assert outer.once("b", lambda: next(values)) == 1
    assert Frozen(nn.Identity()).once("a", lambda: next(values)) == 2


def test_constants_outlive_the_transform_in_which_they_were_made():
    frozen = Frozen(nn.Identity())

    def run(x):
        frozen.once("mask", lambda: torch.ones(3) * 2)
        return (x * frozen.once("mask", lambda: None)).sum()

    torch.func.vmap(torch.func.grad(run))(torch.ones(2, 3))
    mask = frozen.once("mask", lambda: None)
    assert type(mask) is torch.Tensor and mask.add(1).tolist() == [3, 3, 3]


def test_module_of():
    layer = nn.Linear(1, 1)
    assert module_of(layer) is layer and module_of(layer.forward) is layer
    assert module_of(lambda z: z) is None and module_of([].append) is None


# ------------------------------------------------------------------------------------- dropout


def ones(*shape, **options):
    return torch.ones(*shape, **options)


def test_outside_a_forward_each_call_draws():
    drop, x = VariationalDropout(0.5), ones(1, 1000)
    a, b = drop(x), drop(x)
    assert not torch.equal(a, b)
    assert set(a.unique().tolist()) == {0.0, 2.0}
    assert a.mean().item() == pytest.approx(1, abs=0.2)
    assert drop.eval()(x) is x
    assert VariationalDropout(0.0)(x) is x


def test_all_may_be_dropped():
    drop, x = VariationalDropout(1.0), ones(3, 4).requires_grad_()
    assert not drop(x).any()
    sol = DEQ(lambda z, x: drop(torch.tanh(z)) + x)(x)
    assert torch.equal(sol.value, x)
    (grad,) = torch.autograd.grad(sol.value.sum(), x)
    assert torch.equal(grad, torch.ones_like(grad))


@pytest.mark.parametrize("p", [0.1, 0.8])
def test_mean_and_share(p):
    y = VariationalDropout(p)(ones(100, 1000, dtype=torch.float64))
    assert y.mean().item() == pytest.approx(1, abs=0.02)
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=0.01)


def test_one_mask_for_each_module_and_forward():
    a, b, x = VariationalDropout(), VariationalDropout(), ones(2, 100)
    frozen = Frozen(nn.Identity())
    with frozen.evaluation():
        first, other = a(x), b(x)
    with Frozen(nn.Identity()).evaluation():
        assert not torch.equal(a(x), first)
    with frozen.evaluation():
        assert torch.equal(a(x), first) and torch.equal(b(2 * x), 2 * other)
    assert not torch.equal(first, other)


def test_the_mode_is_that_of_the_forward():
    drop, x = VariationalDropout(), ones(2, 100)
    training, evaluating = Frozen(drop), Frozen(drop)
    with training.evaluation():
        first = drop(x)
    drop.eval()
    with training.evaluation():
        assert torch.equal(drop(x), first)
    with evaluating.evaluation():
        assert drop(x) is x
    drop.train()
    with evaluating.evaluation():
        assert drop(x) is x


def test_rows_follow_their_samples():
    drop, x = VariationalDropout(), ones(4, 100)
    frozen = Frozen(drop, batch=4)
    with frozen.evaluation(torch.tensor([2])):  # even if some sample has never been seen
        last = drop(x[:1])
    with frozen.evaluation(torch.arange(4)):
        full = drop(x)
    with frozen.evaluation(torch.tensor([3, 1])):
        assert torch.equal(drop(x[:2]), full[[3, 1]])
    assert torch.equal(last[0], full[2])
    with frozen.evaluation(torch.arange(4)):  # the same inside a layer with fewer samples
        inner = Frozen(drop, batch=2)
    assert inner.batch == 4
    with inner.evaluation(torch.tensor([1, 0])):
        assert torch.equal(drop(x[:2]), full[[1, 0]])


@pytest.mark.parametrize(
    ("shared", "shape"), [((1,), (3, 5, 8)), ((-1, -2), (3, 4, 5, 5)), ((2, 3), (3, 4, 5, 5))]
)
def test_shared_axes(shared, shape):
    torch.manual_seed(1)
    y = VariationalDropout(0.5, shared=shared)(ones(shape))
    assert torch.equal(y, y.mean(shared, keepdim=True).expand(shape))
    assert y.flatten(1).unique(dim=0).shape[0] == 3  # samples differ


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype(dtype):
    drop = VariationalDropout()
    assert drop(ones(2, 3, dtype=dtype)).dtype == dtype
    with Frozen(drop).evaluation():
        full = drop(ones(2, 3))
        assert torch.equal(drop(ones(2, 3, dtype=dtype)), full.to(dtype))
    assert drop(ones(2, 3, device="meta")).device.type == "meta"


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_p_out_of_range(p):
    with pytest.raises(ValueError, match="probability of dropping"):
        VariationalDropout(p)


def test_errors():
    with pytest.raises(ValueError, match="axis 0"):
        VariationalDropout(shared=(0, 1))
    with pytest.raises(ValueError, match="names the batch axis of an input with 3"):
        VariationalDropout(shared=(-3,))(ones(2, 3, 4))
    drop = VariationalDropout()
    with Frozen(drop).evaluation():
        drop(ones(2, 3))
        with pytest.raises(ValueError, match=r"\(2, 3\).*\(2, 4\).*second"):
            drop(ones(2, 4))
    with (
        Frozen(drop, batch=2).evaluation(torch.arange(2)),
        pytest.raises(ValueError, match="first axis must be the batch"),
    ):
        drop(ones(3, 2))
