"""LSTM and GRU language models: torch's own networks, with memory from segment to segment."""

import copy

import pytest
import torch
from torch import nn

from equilibria.zoo.language.model.recurrent import CellLanguageConfig, GRUConfig, LSTMConfig
from equilibria.zoo.recurrent.model import ERNNOptions, ImplicitERNNOptions

KINDS = {"lstm": (LSTMConfig, nn.LSTM), "gru": (GRUConfig, nn.GRU)}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def build(kind, **options):
    torch.manual_seed(4)
    return kind[0](**{"vocabulary": 11, "width": 5, "hidden": 7, "layers": 2, **options}).build()


def tokens(*shape):
    return torch.randint(0, 11, shape, generator=torch.Generator().manual_seed(1))


def test_is_the_network_of_torch(kind):
    model = build(kind)
    theirs = kind[1](5, 7, 2, batch_first=True)
    for i, layer in enumerate(model.layers):
        for name, maps in (("ih", layer.input_map), ("hh", layer.state_map)):
            getattr(theirs, f"weight_{name}_l{i}").data.copy_(maps.weight)
            getattr(theirs, f"bias_{name}_l{i}").data.copy_(maps.bias)
    x = tokens(3, 6)
    prediction = model(x)
    wanted, states = theirs(model.lexicon.embed(x))
    torch.testing.assert_close(prediction.output, wanted)
    assert prediction.solutions == ()
    states = states if isinstance(states, tuple) else (states,)
    for i, layer in enumerate(prediction.carry):
        for got, want in zip(layer, states, strict=True):
            torch.testing.assert_close(got, want[i])
            assert got.shape == (3, 7)
            assert not got.requires_grad
    assert model.losses(prediction.output, x).shape == (3, 6)
    assert model.log_probs(prediction.output).shape == (3, 6, 11)


def test_dropout_is_of_features_at_all_times_and_of_weights(kind):
    x = tokens(4, 9)
    model = build(kind, output_dropout=0.5)
    gone = model(x).output == 0
    assert torch.equal(gone, gone[:, :1].expand_as(gone))
    assert 0 < gone[:, 0].sum() < gone[:, 0].numel()
    model = build(kind, weight_dropout=0.5, hidden_dropout=0.3, input_dropout=0.2)
    assert not torch.equal(model(x).output, model(x).output)
    model.losses(model(x).output, x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    twin = copy.deepcopy(model).eval()
    assert torch.equal(twin(x).output, twin(x).output)
    plain = build(kind).eval()
    state = model.state_dict()
    state = {k.replace("parametrizations.weight.original", "weight"): v for k, v in state.items()}
    plain.load_state_dict(state)
    torch.testing.assert_close(twin(x).output, plain(x).output)


def test_learns_to_say_a_text_by_heart(kind):
    model = build(kind, hidden=24, width=16, layers=1)
    text = tokens(1, 41)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for _ in range(120):
        optimizer.zero_grad()
        loss = model.losses(model(text[:, :-1]).output, text[:, 1:]).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1


def test_counts_of_the_published_lstm_without_memory():
    # AWD-LSTM on PTB: 24M parameters. Its last layer is as wide as the embeddings; ours has the
    # hidden width and one matrix more.
    with torch.device("meta"):
        model = LSTMConfig(vocabulary=10000, width=400, hidden=1150, layers=3).build()
    layers = sum(p.numel() for p in model.layers.parameters())
    assert layers == 4 * 1150 * (400 + 1150 + 2) + 2 * 4 * 1150 * (1150 + 1150 + 2)
    total = sum(p.numel() for p in model.parameters())
    assert total == layers + 400 * 10000 + 10000 + 400 * 1150


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden": 0}, "hidden must be positive"),
        ({"layers": 0}, "layers must be positive"),
        ({"weight_dropout": 1.0}, r"weight_dropout must lie in \[0, 1\)"),
        ({"hidden_dropout": 0.1, "layers": 1}, "use output_dropout"),
    ],
)
def test_what_cannot_be_is_refused(kind, options, words):
    with pytest.raises(ValueError, match=words):
        build(kind, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": ImplicitERNNOptions()}, "takes a cell with a fixed number of steps"),
        ({"weight_dropout": 0.1}, "only the models lstm and gru"),
        ({"cell": ERNNOptions(times=9)}, r"set cell\.times to null"),
    ],
)
def test_a_language_model_of_any_cell_refuses_what_it_cannot_do(options, message):
    with pytest.raises(ValueError, match=message):
        CellLanguageConfig(vocabulary=5, **options)
