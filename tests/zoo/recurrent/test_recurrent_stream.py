"""A stream without end: constant memory, and the same numbers as the whole sequence."""

import resource

import pytest
import torch

from equilibria.run.models import create

STEPS = 200_000


def ernn():
    torch.manual_seed(0)
    cell = create("recurrent", shape=(3,), classes=2, hidden=8)
    with torch.no_grad():
        cell.get_parameter("recurrent.cells.0.step_sizes").fill_(0.05)
    return cell.eval()


@pytest.mark.parametrize("readout", ["last", "mean"])
def test_a_stream_that_was_saved_goes_on(readout, tmp_path):
    torch.manual_seed(0)
    model = create("recurrent", shape=(3,), classes=2, hidden=8, readout=readout)
    x = torch.randn(4, 50, 3)
    y, state = None, model.begin(4)
    for k in range(50):
        if k == 20:
            torch.save(state, tmp_path / "state.pt")
            state = torch.load(tmp_path / "state.pt", weights_only=True)
        y, state = model.step(x[:, k], state)
    torch.testing.assert_close(y, model(x).output)


@pytest.mark.slow
@torch.no_grad()
def test_many_steps_take_constant_memory_and_are_the_whole_sequence(tmp_path):
    model = ernn()
    x = torch.randn(STEPS, 3)
    state, kept, high = model.begin(), [], 0
    for k, each in enumerate(x):
        y, state = model.step(each[None], state)
        if k % 1000 == 999:
            kept.append(y)
        if k == 10_000:
            high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if k == STEPS // 2:
            torch.save(state, tmp_path / "state.pt")
            state = torch.load(tmp_path / "state.pt", weights_only=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - high
    assert grown < 5 * 1024  # KiB
    swept = model.recurrent(x[:, None])[0]
    expected = model.head(swept[999::1000, 0])
    torch.testing.assert_close(torch.cat(kept), expected, atol=1e-5, rtol=1e-4)
