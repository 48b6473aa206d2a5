"""Small signals, and networks that have learned nothing of them."""

import math
from typing import Any

import torch

import equilibria as eq
from equilibria.run.cli.main import main
from equilibria.zoo.signal.data import ShapeField, Signal, SignalField

SOLVER = eq.Picard(rtol=1e-5, max_evals=200)


def signal(kind="image", channels=1):
    """A sound of 40 samples, an image of 9 x 12 pixels, or a film of 3 frames of 6 x 8."""
    shape = {"sound": (40,), "image": (9, 12), "film": (3, 6, 8)}[kind]
    axes = torch.meshgrid(*(torch.linspace(0, 2, n) for n in shape), indexing="ij")
    phase = sum((k + 1) * axis for k, axis in enumerate(axes))
    values = torch.stack([(math.pi * phase + c).sin() for c in range(channels)], -1)
    if kind == "sound":
        return Signal.of(kind, values / 2, "tone.wav", rate=100.0, bits=16)
    pixels = ((values + 1) * 127.5).round()
    rate = 5.0 if kind == "film" else None
    return Signal.of(kind, pixels, f"{kind}.png", low=0.0, high=255.0, rate=rate, bits=8)


def shape_field():
    return ShapeField(centre=(1.0, 2.0, 3.0), scale=2.0)


def network(field: SignalField | ShapeField, name="imfn", width=16, seed=0, **changes) -> Any:
    """A network for a field."""
    torch.manual_seed(seed)
    options = {"solver": SOLVER} if name in ("imfn", "isiren") else {}
    scale = {} if name == "siren" else {"scale": 6.0}
    fields = {"inputs": field.inputs, "outputs": field.outputs, "width": width, **scale, **changes}
    return eq.models.create(name, **fields, **options)


def run(command, *words, status=0):
    assert main([command, *map(str, words)]) == status


def refusal(command, capsys, *words):
    """The message of a command that fails, in one line."""
    capsys.readouterr()
    run(command, *words, status=1)
    error = capsys.readouterr().err
    assert error.startswith(f"equilibria {command}: error: ") and error.count("\n") == 1
    assert "bug" not in error
    return error
