"""Models at the papers' widths have the papers' numbers of parameters, and so start as they say."""

import pytest
import torch

from equilibria.run import models

PUBLISHED = [
    # name, config, millions in all, millions without embedding and softmax; Bai et al. 2019,
    # Tables 2 and 3 (TrellisNet), Bai et al. 2021, Table 1 (the Transformer, in all).
    ("deq-trellisnet", {"vocabulary": 10_000, "width": 400, "hidden": 1000}, 24, 20),
    ("deq-trellisnet", {"vocabulary": 267_735, "width": 512, "hidden": 1600}, 180, 45),
    (
        "deq-transformer",
        {
            "vocabulary": 267_735,
            "width": 700,
            "heads": 10,
            "head_width": 70,
            "inner": 48_000,
            "cutoffs": (20_000, 40_000, 200_000),
            "division": 4,
        },
        98,
        None,
    ),
]


def millions(model):
    lexicon = sum(p.numel() for p in model.lexicon.parameters())
    whole = sum(p.numel() for p in model.parameters())
    return whole / 1e6, (whole - lexicon) / 1e6


@pytest.mark.parametrize(
    ("name", "config", "whole", "body"), PUBLISHED, ids=["ptb-trellis", "wt103-trellis", "wt103"]
)
@pytest.mark.parametrize("normalized", [True, False])
def test_the_papers_sizes_are_met_at_the_papers_widths(name, config, whole, body, normalized):
    # The length of each output's weights is what weight normalisation adds: under 3 %.
    with torch.device("meta"):
        model = models.create(name, **config, weight_norm=normalized)
    assert all(p.is_meta for p in model.parameters())
    found = millions(model)
    assert found[0] == pytest.approx(whole, rel=0.03)
    if body is not None:
        assert found[1] == pytest.approx(body, rel=0.03)


@pytest.mark.parametrize(
    ("name", "stack"), [("deq-transformer", "transformer-xl"), ("deq-trellisnet", "trellisnet")]
)
def test_a_tied_stack_is_of_the_same_size_whatever_its_depth(name, stack):
    with torch.device("meta"):
        equilibrium = models.create(name, vocabulary=100)
        explicit = models.create(stack, vocabulary=100, layers=12)
    assert millions(explicit) == millions(equilibrium)


@pytest.mark.parametrize("name", ["deq-transformer", "deq-trellisnet"])
def test_weights_start_with_the_papers_deviation(name):
    torch.manual_seed(0)
    model = models.create(name, vocabulary=100)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            assert float(module.weight.detach().std()) == pytest.approx(0.01, rel=0.05)
            assert module.bias is None or not module.bias.any()


@pytest.mark.parametrize("initial", ["gaussian", "orthogonal", "goe"])
@pytest.mark.parametrize("name", ["deq-transformer", "deq-trellisnet"])
def test_an_ensemble_is_drawn_on_the_meta_device_too(name, initial):
    with torch.device("meta"):
        model = models.create(name, vocabulary=100, initial=initial)
    assert all(p.is_meta for p in model.parameters())
