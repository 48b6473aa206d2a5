"""Recurrent layers take the place of `nn.LSTM`, whatever their cell is."""

import pytest
import torch
from drawn_sequences import CELLS
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from equilibria.solve import Implicit, Neumann, Picard
from equilibria.zoo.recurrent import model as recurrent
from equilibria.zoo.recurrent.model import Recurrent

TIGHT = {
    "solver": Picard(rtol=1e-10, max_evals=500),
    "adjoint": Implicit(linear=Neumann(rtol=1e-10, max_evals=500)),
}
IMPLICIT = ("ImplicitERNN", "ImplicitEulerRNN")
NAMES = list(CELLS)
LENGTHS = torch.tensor([3, 7, 1, 5])


def layer(name: str, **options) -> Recurrent:
    """A layer in float64, whose equilibria are solved far below what is compared."""
    torch.manual_seed(0)
    if name in IMPLICIT:
        options["layer"] = TIGHT
    return getattr(recurrent, name)(3, 4, dtype=torch.float64, **options)


def sequences(batch: int = 4, time: int = 7) -> torch.Tensor:
    return torch.randn(time, batch, 3, generator=torch.Generator().manual_seed(1)).double()


def first(state) -> torch.Tensor:
    return state[0] if isinstance(state, tuple) else state


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


class TestInPlaceOfTorchsLSTM:
    @pytest.mark.parametrize(
        ("batch_first", "bidirectional", "layers"),
        [(False, False, 1), (False, True, 2), (True, True, 1), (True, False, 2)],
    )
    def test_all_shapes_are_those_of_nn_lstm(self, name, batch_first, bidirectional, layers):
        options = {"num_layers": layers, "batch_first": batch_first, "bidirectional": bidirectional}
        ours, theirs = layer(name, **options), nn.LSTM(3, 4, **options).double()
        x = sequences().transpose(0, 1) if batch_first else sequences()
        (y, state), (expected, (h, _)) = ours(x), theirs(x)
        assert y.shape == expected.shape and first(state).shape == h.shape
        assert isinstance(state, tuple) == (name == "LSTM")
        y, state = ours(x[0] if batch_first else x[:, 0])
        assert y.shape == theirs(x[0] if batch_first else x[:, 0])[0].shape
        assert first(state).shape == (layers * (2 if bidirectional else 1), 4)

    def test_batch_first_only_changes_the_order_of_axes(self, name):
        time_first, other = layer(name), layer(name, batch_first=True)
        y, state = time_first(sequences())
        z, after = other(sequences().transpose(0, 1))
        torch.testing.assert_close(z.transpose(0, 1), y)
        torch.testing.assert_close(first(after), first(state))

    def test_a_sequence_without_a_batch_is_a_batch_of_one(self, name):
        ours, x = layer(name), sequences()
        y, state = ours(x[:, 1])
        z, after = ours(x[:, 1:2])
        torch.testing.assert_close(y, z[:, 0])
        torch.testing.assert_close(first(state), first(after)[:, 0])

    @pytest.mark.parametrize(("bidirectional", "sort"), [(False, True), (True, False)])
    def test_packed_padded_and_single_sequences_agree(self, name, bidirectional, sort):
        ours, x = layer(name, num_layers=2, bidirectional=bidirectional), sequences()
        lengths = LENGTHS.sort(descending=True).values if sort else LENGTHS
        torn = x.clone()
        for row, length in enumerate(lengths):
            torn[length:, row] = float("nan")  # what is in the padding is nobody's business
        y, state = ours(torn, lengths=lengths)
        packed, packed_state = ours(pack_padded_sequence(x, lengths, enforce_sorted=sort))
        z, found = pad_packed_sequence(packed)
        assert found.tolist() == lengths.tolist()
        torch.testing.assert_close(z, y)
        torch.testing.assert_close(first(packed_state), first(state))
        for row, length in enumerate(lengths):
            alone, after = ours(x[:length, row])
            torch.testing.assert_close(y[:length, row], alone)
            assert not y[length:, row].any()
            torch.testing.assert_close(first(state)[:, row], first(after))

    def test_gradients_ignore_the_padding(self, name):
        ours, x = layer(name), sequences()
        x[LENGTHS[0] :, 0] = float("nan")
        y, _ = ours(x, lengths=LENGTHS)
        y.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in ours.parameters())

    def test_the_state_carries_on_where_a_sequence_was_cut(self, name):
        ours, x = layer(name, num_layers=2), sequences()
        whole, end = ours(x)
        begun, state = ours(x[:3])
        rest, after = ours(x[3:], state)
        torch.testing.assert_close(torch.cat([begun, rest]), whole)
        torch.testing.assert_close(first(after), first(end))

    def test_steps_of_a_stream_are_the_sequence(self, name):
        ours, x = layer(name, num_layers=2), sequences()
        whole, end = ours(x)
        state = None
        for k, step in enumerate(x):
            y, state = ours.step(step, state)
            torch.testing.assert_close(y, whole[k])
        torch.testing.assert_close(first(state), first(end))

    def test_the_backward_direction_is_the_forward_one_of_reversed_sequences(self, name):
        ours, x = layer(name, bidirectional=True), sequences()
        single = layer(name)
        single.cells[0].load_state_dict(ours.cells[1].state_dict())
        y, _ = ours(x)
        torch.testing.assert_close(y[..., 4:], single(x.flip(0))[0].flip(0))

    def test_gradients_are_finite_differences(self, name):
        ours, x = layer(name), sequences(2, 4)
        parameters = list(ours.parameters())

        def function(x, *values):
            named = dict(zip((n for n, _ in ours.named_parameters()), values, strict=True))
            return torch.func.functional_call(ours, named, (x,))[0]

        inputs = [each.detach().requires_grad_() for each in (x, *parameters)]
        torch.autograd.gradcheck(function, inputs, atol=1e-6, fast_mode=True)

    def test_no_bias_means_none(self, name):
        options = {"bias": False}
        assert not any(
            p.shape == (4,) and "bias" in n for n, p in layer(name, **options).named_parameters()
        )

    def test_autocast_keeps_the_state_in_float32(self, name):
        torch.manual_seed(0)
        options = {"layer": {"solver": Picard(rtol=1e-2)}} if name in IMPLICIT else {}
        ours = getattr(recurrent, name)(3, 4, **options)
        x = sequences().float()
        with torch.autocast("cpu", torch.bfloat16):
            y, _ = ours(x)
        torch.testing.assert_close(y.float(), ours(x)[0], atol=0.05, rtol=0.1)


class TestKnownCells:
    """The same numbers as torch's own kernels, given the same weights."""

    @pytest.mark.parametrize(
        ("ours", "theirs", "order"),
        [
            ("RNN", nn.RNN, [0]),
            ("LSTM", nn.LSTM, [0, 1, 3, 2]),  # ours: i, f, o, g; torch's: i, f, g, o
            ("GRU", nn.GRU, [1, 0, 2]),  # ours: q, r, n; torch's: r, z, n
        ],
    )
    def test_a_known_cell_is_torchs(self, ours, theirs, order):
        ours, theirs = layer(ours), theirs(3, 4).double()
        cell = ours.cells[0]
        pairs = {theirs.weight_ih_l0: cell.injection.weight, theirs.weight_hh_l0: cell.U}
        pairs[theirs.bias_ih_l0] = cell.injection.bias
        with torch.no_grad():
            for target, source in pairs.items():
                parts = source.chunk(len(order))
                target.copy_(torch.cat([parts[k] for k in order]))
            theirs.bias_hh_l0.zero_()
            if isinstance(theirs, nn.GRU):
                theirs.get_parameter("bias_hh_l0")[8:] = cell.c.copy_(torch.arange(4.0))
        torch.testing.assert_close(ours(sequences()), theirs(sequences()))

    def test_the_matrix_of_a_spectral_cell_has_the_singular_values_it_should(self):
        cell = recurrent.SpectralRNN(3, 6, reflections=4, radius=0.2, dtype=torch.float64).cells[0]
        with torch.no_grad():
            cell.v.copy_(torch.linspace(-9, 9, 6))
        found = torch.linalg.svdvals(cell.weights()[0])
        expected = 1 + 0.4 * (torch.sigmoid(cell.v) - 0.5)
        torch.testing.assert_close(found.sort().values, expected.detach().sort().values)

    def test_the_matrix_of_an_antisymmetric_cell_is_antisymmetric_but_for_its_decay(self):
        cell = recurrent.AntisymmetricRNN(3, 5, gamma=0.3).cells[0]
        matrix = cell.weights()[0]
        torch.testing.assert_close(matrix + matrix.t(), -0.6 * torch.eye(5))

    def test_a_fastgrnn_of_low_rank_has_fewer_parameters(self):
        count = [
            sum(p.numel() for p in recurrent.FastGRNN(9, 64, **options).parameters())
            for options in ({}, {"rank": 8})
        ]
        assert count == [64 * 9 + 64 * 64 + 2 * 64 + 2, 8 * (9 + 3 * 64) + 2 * 64 + 2]


def packed():
    return pack_padded_sequence(sequences(), LENGTHS, enforce_sorted=False)


REFUSED = [
    # a layer and its options, what it is called with
    (("ERNN", {}), lambda f: f(sequences()[..., :2]), r"input \(time, batch, 3\); got \(7, 4, 2\)"),
    (
        ("ERNN", {"batch_first": True}),
        lambda f: f(sequences()[..., :2]),
        r"\(batch, time, 3\); got \(7, 4, 2\)",
    ),
    (("ERNN", {}), lambda f: f(sequences()[:0]), "at least one step"),
    (("ERNN", {}), lambda f: f(packed(), lengths=LENGTHS), "its own lengths"),
    (
        ("ERNN", {}),
        lambda f: f(sequences(), torch.zeros(1, 3, 4)),
        r"a tensor of shape \(1, 4, 4\); got \(1, 3, 4\)",
    ),
    (("LSTM", {}), lambda f: f(sequences(), torch.zeros(1, 4, 4)), "a tuple of 2 tensors"),
    (("ERNN", {"bidirectional": True}), lambda f: f.step(sequences()[0]), "cannot be streamed"),
    *(
        (("ERNN", {}), lambda f, each=each: f(sequences(), lengths=torch.tensor(each)), message)
        for each, message in (
            ([3, 7, 0, 5], "between 1 and 7, the steps of the input; sequence 2 has 0"),
            ([3, 8, 1, 5], "sequence 1 has 8"),
            ([3, 7, 1], r"each of 4 sequences; got lengths \(3,\)"),
            ([3.0, 7.0, 1.0, 5.0], "whole number of steps"),
            ([True, True, True, True], "whole number of steps"),
        )
    ),
]


class TestWhatDoesNotFit:
    @pytest.mark.parametrize(("made", "call", "message"), REFUSED)
    def test_an_input_that_no_layer_takes(self, made, call, message):
        name, options = made
        with pytest.raises(ValueError, match=message):
            call(layer(name, **options))

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: recurrent.ERNN(3, 4, step=2), "ERNN has no option 'step'; its .* activation"),
            (lambda: recurrent.ERNN(3, 4, cell=recurrent.ERNNOptions()), "its own cell"),
            (lambda: Recurrent(3, 4), "needs a cell"),
        ],
    )
    def test_an_unknown_option(self, make, message):
        with pytest.raises(TypeError, match=message):
            make()

    def test_an_option_that_would_be_ignored(self):
        with pytest.raises(TypeError, match="solves for nothing and takes no solver"):
            recurrent.ERNN(3, 4, layer={"solver": Picard()})
        with pytest.warns(UserWarning, match="num_layers is 1: nothing is dropped"):
            recurrent.LSTM(3, 4, dropout=0.5)

    def test_a_step_of_unknown_time_where_steps_differ(self):
        differing = layer("ERNN", times=7)
        with pytest.raises(ValueError, match="steps differ in time"):
            differing.step(sequences()[0])
        differing.step(sequences()[0], time=0)

    def test_a_length_of_one_is_a_sequence(self):
        y, _ = layer("ERNN")(sequences(), lengths=torch.ones(4, dtype=torch.int64))
        torch.testing.assert_close(y[:1], layer("ERNN")(sequences()[:1])[0])
        assert not y[1:].any()

    def test_a_state_that_would_overflow_in_the_padding_leaves_gradients_finite(self):
        explosive = recurrent.RNN(3, 4, activation="relu")
        torch.nn.init.constant_(explosive.cells[0].U, 5.0)
        _, state = explosive(torch.ones(200, 1, 3), lengths=torch.tensor([3]))
        state.sum().backward()
        assert all(p.grad.isfinite().all() for p in explosive.parameters())

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
    def test_lengths_of_any_integers(self, dtype):
        expected = layer("ERNN", bidirectional=True)(sequences(), lengths=LENGTHS)
        found = layer("ERNN", bidirectional=True)(sequences(), lengths=LENGTHS.to(dtype))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
