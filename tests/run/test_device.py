"""The device that a user names is where the work happens, in every call of a process."""

import pytest
import torch
from accelerate.state import AcceleratorState

from equilibria.run import evaluation
from equilibria.run import processes as devices


@pytest.fixture
def two_gpus(monkeypatch):
    """As on a machine with two GPUs; Accelerate's state is that of a fresh process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_each_call_of_a_process_has_the_device_that_it_asks_for(two_gpus):
    asked = ["cpu", "cuda:1", None, "cpu", "cuda:0", "cuda", "cpu"]
    found = [str(evaluation.accelerator("float32", name).device) for name in asked]
    assert found == ["cpu", "cuda:1", "cuda", "cpu", "cuda:0", "cuda", "cpu"]


def test_a_device_and_a_precision_change_together(two_gpus):
    assert evaluation.accelerator("bf16", "cpu").mixed_precision == "bf16"
    last = evaluation.accelerator("float32", "cuda:1")
    assert (last.mixed_precision, str(last.device)) == ("no", "cuda:1")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cuda:2", "there is no cuda:2: choose from cpu, cuda:0, cuda:1"),
        ("mps", "need cpu or cuda, and mps has no float64; got mps"),
        ("xpu", "need cpu or cuda; got xpu"),
        ("gpu", "'gpu' is not a device: choose from cpu, cuda:0, cuda:1"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(two_gpus, name, said):
    with pytest.raises(devices.DeviceError) as raised:
        devices.device(name)
    assert said in str(raised.value)


def test_without_a_gpu_the_cpu_is_offered(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.device() == torch.device("cpu")
    with pytest.raises(devices.DeviceError, match=r"finds no GPU for cuda.*choose from cpu$"):
        devices.device("cuda")


def test_processes_share_no_numbered_gpu(two_gpus, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert devices.device("cuda") == torch.device("cuda")
    with pytest.raises(devices.DeviceError, match="each of 2 processes takes one of its own"):
        devices.device("cuda:0")
