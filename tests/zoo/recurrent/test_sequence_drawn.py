"""Images as sequences: what they are, and that they stay so."""

import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from equilibria.run import data
from equilibria.run.data import DataError, Split
from equilibria.zoo.io.remote import data_folders
from equilibria.zoo.recurrent.data import Sequences
from equilibria.zoo.recurrent.data.pixels import NoisyRows
from equilibria.zoo.vision.data import mnist

# --- images --------------------------------------------------------------------------------------


def rows(count: int = 6, steps: int = 9, seed: int = 0, first: int = 0) -> NoisyRows:
    random = np.random.default_rng(0)
    images = torch.from_numpy(random.integers(0, 256, (count, 3, 4, 5)).astype(np.uint8))
    keys = torch.arange(first, first + count)
    return NoisyRows(Split(images, torch.arange(count) % 2), steps, seed, keys)


def test_rows_come_first_and_noise_after():
    found = rows()
    inputs, targets = found[:]
    assert inputs.shape == (6, 9, 15) and inputs.dtype == torch.float32
    assert targets.tolist() == found.targets.tolist() == [0, 1] * 3
    pixels = found.images.inputs.float() / 255
    for row in range(4):
        assert torch.equal(inputs[:, row], pixels[:, :, row].reshape(6, 15))
    assert found.lengths is None and found.groups is None and len(found) == 6


def test_noise_is_that_of_the_sample_in_any_batch():
    found = rows(40, 30)
    whole, _ = found[:]
    index = torch.tensor([7, 3, 39])
    assert torch.equal(found[index][0], whole[index])
    chosen = found.select(index)
    assert torch.equal(chosen[:][0], whole[index])
    assert torch.equal(chosen[1:][0], whole[index[1:]])
    assert torch.equal(chosen.select(torch.tensor([2]))[:][0], whole[39:])


def test_noise_is_normal_and_independent():
    found = rows(200, 104)
    noise = found[:][0][:, 4:].reshape(200, -1)
    assert abs(noise.mean().item()) < 0.01 and abs(noise.std().item() - 1) < 0.01
    correlations = torch.corrcoef(noise) - torch.eye(200)
    assert correlations.abs().max() < 0.15  # 1,500 numbers each: 5.8 standard deviations
    for other in (rows(200, 104, seed=1), rows(200, 104, first=1 << 30)):
        assert abs(float((noise * other[:][0][:, 4:].reshape(200, -1)).mean())) < 0.01


def test_noise_needs_room_for_the_rows():
    assert rows(steps=4)[:][0].shape == (6, 4, 15)
    with pytest.raises(ValueError, match="steps is 3: expected 4"):
        rows(steps=3)


@pytest.fixture
def small(tmp_path, cache, monkeypatch):
    """A folder with an MNIST of ten images and six."""
    random = np.random.default_rng(0)
    for part, count in (("train", 10), ("t10k", 6)):
        arrays = {
            "images-idx3": random.integers(0, 256, (count, 28, 28)).astype(np.uint8),
            "labels-idx1": (np.arange(count) % 10).astype(np.uint8),
        }
        for kind, array in arrays.items():
            head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            path = tmp_path / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(head + array.tobytes()))
    (remote,) = mnist.MNIST.remotes
    monkeypatch.setattr(
        mnist, "MNIST", replace(mnist.MNIST, remotes=(replace(remote, checksums={}),))
    )
    return tmp_path


def test_pixels_are_steps_in_one_order_or_another(small):
    images = data.load("mnist", small, download=False)
    pixel = data.load("pixel-mnist", small, download=False)
    permuted = data.load("permuted-mnist", small, download=False)
    assert isinstance(pixel.train, Sequences)
    assert torch.equal(pixel.train.inputs, images.train.inputs.reshape(10, 784, 1))
    assert (pixel.title, permuted.title) == ("Pixel MNIST", "Permuted MNIST")
    assert pixel.labels == images.labels and len(pixel.channels) == 1
    places = torch.randperm(784, generator=torch.Generator().manual_seed(0))
    for split in ("train", "test"):
        one, other = (getattr(each, split) for each in (pixel, permuted))
        assert torch.equal(other.inputs, one.inputs[:, places])
        assert torch.equal(other.targets, one.targets)
    assert not torch.equal(places, torch.arange(784))


def test_derived_sets_take_options_and_tell_them_apart(small):
    sets = [
        data.load("noisy-mnist", small, download=False, **options)
        for options in ({}, {"seed": 1}, {"steps": 50}, {})
    ]
    assert [each.train[:2][0].shape for each in sets[1:3]] == [(2, 1000, 28), (2, 50, 28)]
    assert len({each.checksum for each in sets}) == 3 and sets[0].checksum == sets[3].checksum
    assert torch.equal(sets[0].train[:2][0], sets[3].train[:2][0])
    assert not torch.equal(sets[0].train[:2][0], sets[1].train[:2][0])
    # The first training and the first test image have different noise.
    assert not torch.equal(sets[0].train[:1][0][:, 28:], sets[0].test[:1][0][:, 28:])
    assert len(sets[0].channels) == 28


def test_images_that_are_missing_are_named(cache, tmp_path):
    with pytest.raises(DataError, match=r"mnist: train-images-idx3-ubyte\.gz was not found in"):
        data.load("noisy-mnist", tmp_path, download=False)
    with pytest.raises(DataError, match=r"cifar10: cifar-10-binary\.tar\.gz.* was not found in"):
        data.load("noisy-cifar10", tmp_path, download=False)


@pytest.mark.data
def test_the_real_mnist_as_sequences():
    if len(mnist.MNIST.remotes[0].find(data_folders("mnist"))) < 4:
        pytest.skip("EQUILIBRIA_DATA names no folder with MNIST")
    noisy = data.load("noisy-mnist", download=False)
    inputs, targets = noisy.train[torch.tensor([59_999, 0])]
    assert inputs.shape == (2, 1000, 28) and targets.tolist() == [8, 5]
    assert inputs[:, :28].min() >= 0 and inputs[:, :28].max() <= 1
    assert abs(inputs[:, 28:].std().item() - 1) < 0.02
    pixel = data.load("pixel-mnist", download=False)
    assert pixel.test.inputs.shape == (10_000, 784, 1)
