"""Sequence models look back alone, remember, and are the same solved whole or piece by piece."""

import pytest
import torch
from torch.utils import _pytree as pytree

from equilibria.run import models
from equilibria.solve import Anderson, Implicit, Picard, Status, Unrolled
from small_sequences import SEGMENTED, SMALL, build, tokens

CLOSE = {"rtol": 0, "atol": 1e-7}
STACKS = ["transformer-xl", "trellisnet"]
IMPLICIT = ["deq-transformer", "deq-trellisnet"]


@pytest.fixture(params=SEGMENTED)
def segmented(request):
    return build(request.param, **SEGMENTED[request.param])


def segment_by_segment(model, x, sizes):
    outputs, carry = [], None
    for piece in x.split(sizes, 1):
        prediction = model(piece, carry=carry)
        outputs.append(prediction.output)
        carry = prediction.carry
    return torch.cat(outputs, 1)


# --- looking back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_losses_are_those_of_probabilities(name):
    model = build(name)
    prediction = model(tokens(3, 9), carry=model(tokens(3, 9)).carry)
    losses = model.losses(prediction.output, tokens(3, 9, seed=2))
    assert losses.shape == (3, 9)
    assert model.log_probs(prediction.output).exp().sum(-1).allclose(losses.new_ones(3, 9))


def test_no_output_depends_on_a_later_token_by_perturbation(segmented):
    carry = segmented(tokens(2, 6, seed=3)).carry
    x, y = tokens(2, 9), tokens(2, 9)
    y[:, 5:] = (y[:, 5:] + 1 + tokens(2, 4, seed=4) % 9) % 11
    one, other = segmented(x, carry=carry).output, segmented(y, carry=carry).output
    torch.testing.assert_close(one[:, :5], other[:, :5], **CLOSE)
    assert (one[:, 5:] - other[:, 5:]).abs().amax((0, 2)).min() > 1e-4


def test_no_output_depends_on_a_later_token_by_gradient(segmented):
    # Each token occurs once, so that the rows of the embedding are the times.
    x = torch.arange(9)[None]
    carry = segmented(tokens(1, 6, seed=3)).carry
    (table,) = segmented.lexicon.tables
    for time in (0, 4, 8):
        output = segmented(x, carry=carry).output[0, time]
        (row,) = torch.autograd.grad(output @ torch.arange(len(output)).double(), table)
        assert row[time + 1 :].abs().max() < 1e-7
        assert row[time].abs().max() > 1e-4


def test_samples_do_not_know_each_other(segmented):
    carry = segmented(tokens(3, 6, seed=3)).carry
    whole = segmented(tokens(3, 7), carry=carry).output
    mine = pytree.tree_map(lambda x: x[1:2], carry)
    alone = segmented(tokens(3, 7)[1:2], carry=mine).output
    torch.testing.assert_close(alone, whole[1:2], **CLOSE)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[5, 4, 3], [1] * 12], ids=["segments", "tokens"])
def test_segments_with_their_carry_are_the_whole(segmented, sizes):
    x = tokens(2, 12)
    torch.testing.assert_close(
        segment_by_segment(segmented.eval(), x, sizes), segmented(x).output, **CLOSE
    )


def test_the_carry_is_detached_and_no_larger_than_it_looks(segmented):
    prediction = segmented(tokens(2, 12))
    leaves = pytree.tree_leaves(prediction.carry)
    assert leaves
    for leaf in leaves:
        assert not leaf.requires_grad
        assert leaf.shape[0] == 2
        assert leaf.untyped_storage().nbytes() == leaf.nbytes


def test_without_its_carry_a_segment_is_another(segmented):
    x = tokens(2, 12)
    alone = segmented(x[:, 6:]).output
    assert (alone - segmented(x).output[:, 6:]).abs().max() > 1e-4


def test_a_carry_of_another_batch_is_refused(segmented):
    carry = segmented(tokens(2, 5)).carry
    with pytest.raises(ValueError, match=r"of (a batch of )?2.*3"):
        segmented(tokens(3, 5), carry=carry)


def test_tokens_without_a_batch_are_refused(segmented):
    with pytest.raises(ValueError, match=r"expected tokens of shape \(batch, time\)"):
        segmented(tokens(5))


@pytest.mark.parametrize("name", ["deq-transformer", "transformer-xl"])
def test_memory_is_as_long_in_each_mode_as_the_config_says(name):
    model = build(name, memory=4, eval_memory=7)
    for train, length in ((True, 4), (False, 7)):
        model.train(train)
        carry = None
        for _ in range(3):
            carry = model(tokens(2, 3), carry=carry).carry
        assert carry["memory"]["z"].shape[1] == length
    assert build(name, memory=0)(tokens(2, 3)).carry is None


# --- subsequences ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["deq-transformer", "deq-trellisnet-dilated", "deq-transformer-kernel"]
)
@pytest.mark.parametrize("size", [1, 4])
def test_piece_by_piece_is_the_whole(kind, size):
    options = {**SEGMENTED[kind], **({"window": None} if "transformer" in kind else {})}
    whole, pieces = build(kind, **options), build(kind, **options, subsequence=size)
    x, targets = tokens(2, 9), tokens(2, 9, seed=2)
    carry = whole(tokens(2, 6, seed=3)).carry
    found = []
    for model in (whole, pieces):
        prediction = model(x, carry=carry)
        assert len(prediction.solutions) == (-(-9 // size) if model is pieces else 1)
        model.losses(prediction.output, targets).sum().backward()
        gradients = {key: p.grad for key, p in model.named_parameters()}
        found.append((prediction.output, prediction.carry, gradients))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-7)


def test_a_start_is_divided_among_the_pieces():
    model = build("deq-trellisnet", subsequence=4)
    x = tokens(2, 9)
    cold = model(x)
    z = pytree.tree_map(lambda *z: torch.cat(z, 1), *[s.value for s in cold.solutions])
    for solution in model(x, z0=z).solutions:
        assert (solution.stats.evals <= 2).all()
    with pytest.raises(ValueError, match="9 times are solved in pieces of 4: give z0"):
        model(x, warm=cold.solutions[0])


# --- stacks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", STACKS)
def test_a_tied_stack_is_so_many_steps_of_plain_iteration(name, train):
    dropout = (
        {"dropout": 0.3, "attention_dropout": 0.2}
        if name == "transformer-xl"
        else {"hidden_dropout": 0.3, "weight_dropout": 0.2}
    )
    stack = build(name, **dropout, layers=4, input_dropout=0.1).train(train)
    layer = {"solver": Picard(), "adjoint": Unrolled(max_evals=4)}
    deq = build(f"deq-{name.removesuffix('-xl')}", **dropout, **layer, input_dropout=0.1)
    weights = {k.replace("cell.", "deq.cell.", 1): v for k, v in stack.state_dict().items()}
    deq.train(train).load_state_dict(weights)
    x, targets = tokens(2, 7), tokens(2, 7, seed=2)
    carry = stack(tokens(2, 6, seed=3)).carry
    found = []
    for model in (stack, deq):
        torch.manual_seed(5)
        prediction = model(x, carry=carry)
        model.losses(prediction.output, targets).sum().backward()
        gradients = {k.replace("deq.", ""): p.grad for k, p in model.named_parameters()}
        found.append((prediction.output, prediction.carry, gradients))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", STACKS)
def test_checkpoints_change_nothing(name, tied):
    dropout = {"dropout": 0.3} if name == "transformer-xl" else {"weight_dropout": 0.3}
    found = []
    for kept in (False, True):
        model = build(name, tied=tied, checkpoint=kept, injection_scale=None, **dropout)
        torch.manual_seed(5)
        prediction = model(tokens(2, 7))
        model.losses(prediction.output, tokens(2, 7, seed=2)).sum().backward()
        found.append((prediction.output, {k: p.grad for k, p in model.named_parameters()}))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("name", STACKS)
def test_untied_layers_have_weights_of_their_own(name):
    def cells(**options):
        model = build(name, **options, injection_scale=None)
        return sum(p.numel() for key, p in model.named_parameters() if key.startswith("cell"))

    assert cells(tied=False, layers=5) == 5 * cells(tied=True, layers=5)


# --- the equilibrium ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IMPLICIT)
def test_with_dropout_there_is_one_fixed_point_to_a_forward(name):
    dropout = (
        {"dropout": 0.2, "attention_dropout": 0.1}
        if name == "deq-transformer"
        else {"hidden_dropout": 0.2, "weight_dropout": 0.2}
    )
    model = build(name, **dropout)
    one, other = model(tokens(2, 7)), model(tokens(2, 7))
    for prediction in (one, other):
        assert (prediction.solution.status == Status.CONVERGED).all()
    assert (one.output - other.output).abs().max() > 1e-3
    model.losses(one.output, tokens(2, 7)).sum().backward()
    assert (one.solution.adjoint.status == Status.CONVERGED).all()


@pytest.mark.parametrize("name", IMPLICIT)
def test_samples_may_leave_when_they_have_finished(name):
    options = {"dropout": 0.1} if name == "deq-transformer" else {"hidden_dropout": 0.1}
    found = []
    for drop_finished in (False, True):
        model = build(name, **options, drop_finished=drop_finished)
        carry = model.eval()(tokens(3, 5, seed=3)).carry
        torch.manual_seed(5)
        prediction = model.train()(tokens(3, 7), carry=carry)
        model.losses(prediction.output, tokens(3, 7)).sum().backward()
        found.append((prediction.output, {k: p.grad for k, p in model.named_parameters()}))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", IMPLICIT)
def test_injection_solve_and_readout_are_the_forward(name):
    model = build(name)
    carry = model(tokens(2, 5)).carry
    x = tokens(2, 7, seed=2)
    solution = model.deq(*model.inject(x, carry))
    torch.testing.assert_close(model.readout(solution.value), model(x, carry=carry).output)
    warm = model(x, carry=carry, warm=solution, trace=True, states=(1,))
    assert (warm.solution.stats.evals <= 2).all()
    assert warm.solution.stats.trace is not None and len(warm.solution.states) == 1


@pytest.mark.filterwarnings("ignore:the adjoint's backward solve")  # bfloat16 has a floor
@pytest.mark.parametrize("name", SMALL)
def test_every_model_trains_in_bfloat16(name):
    layer = {"solver": Anderson(rtol=3e-2), "adjoint": Implicit()} if name in IMPLICIT else {}
    model = build(name, **layer).float()
    # torch asks oneDNN for an LSTM in bfloat16 also where the processor has none.
    plain_kernels = torch.backends.mkldnn.flags(enabled=False)
    with plain_kernels, torch.autocast("cpu", torch.bfloat16):
        carry = model(tokens(2, 6)).carry
        prediction = model(tokens(2, 6), carry=carry)
        loss = model.losses(prediction.output, tokens(2, 6)).mean()
    loss.backward()
    wide = model.double()(tokens(2, 6), carry=pytree.tree_map(lambda x: x.double(), carry))
    exact = model.losses(wide.output, tokens(2, 6)).mean()
    assert loss.item() == pytest.approx(exact.item(), rel=0.03)
    assert all(p.grad.isfinite().all() for p in model.parameters())


# --- configs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_a_vocabulary_must_be_known(name):
    with pytest.raises(ValueError, match="vocabulary is None"):
        models.create(name)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("deq-transformer", {"heads": 3}),
        ("deq-transformer", {"width": 0}),
        ("deq-transformer", {"memory": -1}),
        ("deq-transformer", {"window": 0}),
        ("deq-transformer", {"dropout": 1.0}),
        ("deq-transformer", {"attention_dropout": -0.1}),
        ("deq-transformer", {"initial": "xavier"}),
        ("deq-transformer", {"scale": -0.1}),
        ("deq-transformer", {"subsequence": 0}),
        ("deq-trellisnet", {"kernel": 1}),
        ("deq-trellisnet", {"hidden": -1}),
        ("deq-trellisnet", {"dilation": 0}),
        ("deq-trellisnet", {"weight_dropout": 1.5}),
        ("deq-trellisnet", {"hidden_dropout": 1.0}),
        ("deq-trellisnet", {"injection_scale": -1.0}),
        ("transformer-xl", {"layers": 0}),
        ("transformer-xl", {"injection_kernel": 2, "tied": False}),
        ("transformer-xl", {"embedding_dropout": 1.0}),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else x,
)
def test_an_impossible_field_is_refused(name, bad):
    with pytest.raises(ValueError, match=next(iter(bad)).removeprefix("injection_")):
        models.create(name, **{**SMALL[name], **bad})


@pytest.mark.parametrize("normalized", [True, False])
def test_the_convolutions_of_a_trellisnet_are_weight_normalised(normalized):
    model = models.create("deq-trellisnet", **SMALL["deq-trellisnet"] | {"weight_norm": normalized})
    weights = [name for name, _ in model.named_parameters() if ".weight.original" in name]
    assert len(weights) == (4 if normalized else 0)  # length and direction of two convolutions
