"""Each private name of torch in equilibria.solve.private does what the package relies on."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from references import Clone
from torch import distributed, nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import grad, jvp, vjp, vmap
from torch.overrides import TorchFunctionMode

from equilibria.solve import private

X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_transform_active() -> None:
    seen = []

    def f(x):
        seen.append(private.transform_active())
        return x.sum()

    grad(f)(X)
    vmap(f)(X)
    assert seen == [True, True] and not private.transform_active()


def test_is_wrapped_and_is_mapped() -> None:
    seen = []

    def f(x):
        seen.append((private.is_wrapped(x), private.is_mapped(x), private.is_mapped(X)))
        return x.sum()

    grad(f)(X)
    vmap(f)(X)
    vmap(grad(f))(X)
    assert seen == [(True, False, False), (True, True, False), (True, True, False)]
    assert not private.is_wrapped(X) and not private.is_mapped(X)


def test_a_batch_of_gradients_is_told() -> None:
    seen = []

    class Look(Clone):
        @staticmethod
        def backward(ctx, g):
            seen.append(private.is_batched_gradient(g))
            return g

    x = X.clone().requires_grad_()
    y = Look.apply(x)
    torch.autograd.grad(y, x, torch.ones(4, 2, 3), is_grads_batched=True, retain_graph=True)
    torch.autograd.grad(y, x, torch.ones(2, 3))
    assert seen == [True, False]


def test_bare_tensors_stay_bare_outside_transforms() -> None:
    seen = []

    def f(x):
        with private.outside_transforms():
            ones = torch.ones(3) * 2
            seen.append((private.is_wrapped(ones), ones.nonzero().flatten().tolist()))
        seen.append(private.is_wrapped(x))
        return x.sum()

    grad(f)(X)
    vmap(grad(f))(X)
    assert seen == [(False, [0, 1, 2]), True] * 2


def test_modes_of_a_kind_are_found_by_compiled_code_too() -> None:
    class Mode(TorchFunctionMode):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def f(x):
        mode = private.function_mode(Mode)
        return x if mode is None else x * mode.number

    compiled = torch.compile(f, backend="eager", fullgraph=True)
    for function in (f, compiled, f, compiled):
        assert torch.equal(function(X), X)
        for number in (torch.tensor(2.0), torch.tensor(3.0)):
            with Mode(number):
                assert torch.equal(function(X), number * X)


def test_what_is_compiled() -> None:
    cell = torch.nn.Sequential(torch.nn.Linear(1, 1))
    assert not private.is_compiled(cell) and not private.is_compiled(torch.sin)
    assert private.is_compiled(torch.compile(cell, backend="eager"))
    assert private.is_compiled(torch.compile(torch.sin, backend="eager"))
    cell[0].compile(backend="eager")
    assert private.is_compiled(cell)


def test_alive_takes_off_the_wrapper_of_a_level_that_has_ended() -> None:
    kept = []

    class Keep(Clone):
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            kept.append((private.is_wrapped(x), private.is_wrapped(private.alive(x))))
            return g

    _, pull = vjp(Keep.apply, X)  # the level ends here
    pull(torch.ones_like(X))
    assert kept == [(True, False)]
    assert private.alive(X) is X


def test_some_and_every_read_through_mapped_axes() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    seen = []

    def f(row):
        seen.append((private.some(row), private.every(row), private.some(~row & row)))
        return row

    vmap(f)(mask)
    assert seen == [(True, False, False)]


def test_primal_strips_the_innermost_level_only() -> None:
    def inner(x):
        # The inner tangent is stripped, the outer one is not.
        return private.primal(x).square() + 0 * x

    def outer(x):
        value, tangent = jvp(inner, (x,), (torch.ones_like(x),))
        assert not tangent.any()
        return value

    _, tangent = jvp(outer, (X,), (torch.ones_like(X),))
    torch.testing.assert_close(tangent, 2 * X)


def test_primal_and_has_tangent_outside_of_transforms() -> None:
    assert not private.dual_level_active() and private.primal(X) is X
    with forward_ad.dual_level():
        assert private.dual_level_active()
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        assert private.has_tangent(dual) and not private.has_tangent(X)
        assert not private.has_tangent(private.primal(dual))


def test_forward_mode_is_switched_on_in_a_jvp_rule() -> None:
    seen = []

    class Rule(Clone):
        @staticmethod
        def jvp(ctx, t):
            enabled = torch._C._is_fwd_grad_enabled  # pyright: ignore
            with private.forward_mode():
                seen.append(enabled())
            return t.clone()

    jvp(Rule.apply, (X,), (torch.ones_like(X),))
    assert seen == [True]


def test_sequence_numbers_count_up_and_leaves_come_last() -> None:
    leaf = torch.ones(1, requires_grad=True)
    first, second = leaf * 2, leaf * 3
    numbers = [private.sequence_number(x.grad_fn) for x in (first, second)]
    accumulate = second.grad_fn.next_functions[0][0]  # pyright: ignore
    assert numbers[0] < numbers[1] < private.sequence_number(accumulate)


def test_run_backward_is_grad() -> None:
    """Also twice over one graph, and with an input that nothing depends on."""
    x, idle = X.clone().requires_grad_(), torch.ones(2, requires_grad=True)
    outputs = [x.sin(), x.sum(dim=1)]
    cotangents = [torch.cos(X), torch.tensor([2.0, -1.0])]
    wanted = torch.autograd.grad(outputs, x, cotangents, retain_graph=True)[0]
    for keep in (True, False):
        found, none = private.run_backward(outputs, cotangents, [x, idle], keep=keep)
        assert found is not None and torch.equal(found, wanted) and none is None
    with pytest.raises(RuntimeError, match="second time"):
        private.run_backward(outputs, cotangents, [x], keep=False)


# --- torch.compile --------------------------------------------------------------------------------


class Backend:
    """Runs graphs as they are, and counts those it was given and their calls."""

    def __init__(self) -> None:
        self.graphs = self.calls = 0

    def __call__(self, graph, example_inputs):
        self.graphs += 1

        def run(*inputs):
            self.calls += 1
            return graph.forward(*inputs)

        return run


@pytest.fixture
def backend(nothing_compiled):
    return Backend()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_functions_run_uncompiled(backend, fullgraph) -> None:
    f = torch.compile(lambda x: 2 * x.sin(), backend=backend, fullgraph=fullgraph)
    with private.run_eagerly():
        assert private.running_eagerly()
        with private.run_eagerly():
            torch.testing.assert_close(f(X), 2 * X.sin())
        torch.testing.assert_close(f(X), 2 * X.sin())
    assert backend.graphs == backend.calls == 0 and not private.running_eagerly()
    f(X)
    with private.run_eagerly():
        f(X)
    f(X)
    assert (backend.graphs, backend.calls) == (1, 2)


def test_other_threads_run_compiled_code_meanwhile(backend) -> None:
    f = torch.compile(lambda x: 2 * x.sin(), backend=backend)
    with private.run_eagerly(), ThreadPoolExecutor(1) as other:
        assert other.submit(private.running_eagerly).result() is False
        other.submit(f, X).result()
        f(X)
        assert backend.calls == 1
    f(X)
    assert backend.calls == 2


def test_a_stance_of_the_user_holds_beside(backend) -> None:
    f = torch.compile(lambda x: 2 * x.sin(), backend=backend)
    with private.run_eagerly():
        f(X)  # torch's compiler asks this thread from here on
    with torch.compiler.set_stance("force_eager"):
        f(X)
        with private.run_eagerly():
            f(X)
        f(X)
    assert backend.calls == 0
    f(X)
    assert backend.calls == 1


def test_frames_are_compiled_by_the_compiler_that_is_set(backend) -> None:
    def inner(x):
        return x.sin()

    def middle(x):
        return inner(x) + 1

    seen = []

    def outer(x):
        seen.append(before := private.compile_frames_by(None))
        middle(x)
        calls = backend.calls
        private.compile_frames_by(before)
        return middle(x), calls

    private.leave_uncompiled(outer.__code__)
    _, calls = torch.compile(outer, backend=backend)(X)
    assert callable(seen[0])
    # What it calls is compiled where the compiler is set; what was left out never is.
    assert (calls, backend.calls) == (0, 1)


@pytest.mark.parametrize(
    ("words", "replays"),
    [
        ({"backend": "eager"}, False),
        ({"backend": "inductor"}, False),
        ({"backend": "cudagraphs"}, True),
        ({"mode": "reduce-overhead"}, True),
        ({"options": {"triton.cudagraphs": True}}, True),
        ({"options": {"triton.cudagraphs": False}}, False),
    ],
    ids=["eager", "default", "cudagraphs", "reduce-overhead", "with", "without"],  # no code is made
)
def test_compilers_that_replay_their_buffers(words, replays) -> None:
    def look(x):
        compiler = private.compile_frames_by(None)
        private.compile_frames_by(compiler)
        return private.replays_buffers(compiler)

    private.leave_uncompiled(look.__code__)
    private.leave_uncompiled(private.replays_buffers.__code__)
    assert torch.compile(look, **words)(X) is replays
    assert not private.replays_buffers(None)


@pytest.mark.parametrize("words", [{"retain_graph": True}, {"create_graph": True}], ids=str)
def test_compiled_code_refuses_a_second_backward(words) -> None:
    f = torch.compile(lambda x, y: (x.exp() * y.exp()).sin() * y, backend="aot_eager")

    def differentiate(**words):
        x = X.clone().requires_grad_()
        out = f(x, X.clone().requires_grad_())
        assert private.made_by_compiled_code([out.sum()])
        (g,) = torch.autograd.grad(out.sum(), x, **words)
        if "create_graph" in words:
            torch.autograd.grad(g.sum(), x)

    differentiate()
    with pytest.raises(RuntimeError):
        differentiate(**words)
    assert not private.made_by_compiled_code([X.clone().requires_grad_().exp()])


def test_code_compiled_for_many_backwards() -> None:
    """Also of shapes that vary, where torch compiles the backward ahead."""
    f = torch.compile(lambda x, y: (x.exp() * y.exp()).sin() * y, backend="aot_eager", dynamic=True)
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    with private.for_many_backwards(), private.for_many_backwards():
        value = f(x, y).sum()
        if torch._functorch.config.donated_buffer:
            pytest.skip("this version of torch has the setting for the whole process")
    assert torch._functorch.config.donated_buffer
    if private.allow_more_backwards([value]):  # torch notes it wrongly
        assert not private.allow_more_backwards([value])
    found = [torch.autograd.grad(value, x, retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(*found)
    with torch.no_grad():
        torch.testing.assert_close(found[0], (X.exp() ** 2).cos() * X.exp() ** 2 * X)


def test_an_export_is_told_from_other_compilations() -> None:
    seen = []

    class Look(torch.nn.Module):
        def forward(self, x):
            seen.append(private.exporting())
            return x + 1

    torch.export.export(Look(), (X,), strict=False)
    with FakeTensorMode():
        seen.append(private.exporting())
    assert any(seen) and not seen[-1] and not private.exporting()


@pytest.fixture
def group(tmp_path):
    place = f"file://{tmp_path}/group"
    distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_units_of_fully_shard() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    @dataclass
    class Answer:
        value: torch.Tensor

    class Inner(nn.Linear):
        def forward(self, x):
            return Answer(super().forward(x))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner(2, 2)

        def forward(self, x):
            return self.inner(x)

    model = Outer()
    assert private.read_sharding_policies(model) == []
    own, outer = MixedPrecisionPolicy(), MixedPrecisionPolicy(output_dtype=torch.float32)
    fully_shard(model.inner, mp_policy=own)
    fully_shard(model, mp_policy=outer)
    private.find_root(model)
    assert private.read_sharding_policies(model.inner) == [own, outer]
    answer = model.inner(torch.ones(1, 2))  # before its root, which would then refuse to run
    model(torch.ones(1, 2))
    if not private.gathers_for_dataclasses():
        pytest.skip(f"torch {torch.__version__} does not")
    answer.value.sum().backward()  # gathers what was let go of
    assert model.inner.weight.grad is not None
