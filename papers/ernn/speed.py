"""A training step of each recurrent layer over that of nn.LSTM at equal width."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equilibria.nn.recurrent.layer import Recurrent
from equilibria.run.bench.count import interleave
from equilibria.run.studies.study import Context, Point, Scale, Study
from equilibria.run.studies.views import Lines, Pivot
from papers.ernn.common import LAYERS, peak, step

WIDTHS, TIME, BATCH, CHANNELS = (32, 64, 128), 128, 128, 9
LENGTHS = (125, 250, 500, 1000)
MEASURED = ("ERNN, K = 1", "ERNN, K = 3", "ERNN, K = 5", "ImplicitERNN", "LSTM")
ROUNDS = 9


def times(context: Context, *, width: int) -> Iterable[dict[str, Any]]:
    """Milliseconds of a training step and of inference, all layers interleaved, and parameters."""
    torch.manual_seed(0)
    device = torch.device(context.device)
    x = torch.randn(TIME, BATCH, CHANNELS).to(device)
    layers: dict[str, nn.Module] = {"nn.LSTM": nn.LSTM(CHANNELS, width)}
    layers |= {
        name: Recurrent(CHANNELS, width, cell=cell, layer=options)
        for name, (cell, options) in LAYERS.items()
    }
    for layer in layers.values():
        layer.to(device)
    found: dict[str, dict[str, float]] = {}
    for what, call in (("step", step), ("inference", torch.no_grad()(forward))):
        calls = {name: partial(call, layer, x) for name, layer in layers.items()}
        for each in calls.values():
            each()
        found[what] = interleave(calls, device, rounds=ROUNDS)
    for name, layer in layers.items():
        yield {
            "layer": name,
            "step_ms": 1e3 * found["step"][name],
            "step_ratio": found["step"][name] / found["step"]["nn.LSTM"],
            "inference_ratio": found["inference"][name] / found["inference"]["nn.LSTM"],
            "parameters": sum(p.numel() for p in layer.parameters()),
            "bytes": sum(p.numel() * p.element_size() for p in layer.parameters()),
        }


def forward(layer: nn.Module, x: Tensor) -> Any:
    """Go through the sequences."""
    return layer(x)


def memory(context: Context, *, name: str) -> Iterable[dict[str, Any]]:
    """Peak bytes of a training step against the length."""
    cell, options = LAYERS[name]
    torch.manual_seed(0)
    layer = Recurrent(CHANNELS, 64, cell=cell, layer=options, device=context.device)
    for length in LENGTHS:
        x = torch.randn(length, 32, CHANNELS).to(context.device)
        yield {"length": length, "peak": peak(layer, x)}


def points(scale: Scale) -> list[Point]:
    return [
        *(Point({"what": f"width {width}"}, [partial(times, width=width)]) for width in WIDTHS),
        *(Point({"what": f"memory {name}"}, [partial(memory, name=name)]) for name in MEASURED),
    ]


STUDY = Study(
    paper="",
    title="Speed and memory of recurrent layers",
    note=f"Sequences of {TIME} steps, batches of {BATCH}, {CHANNELS} channels, float32, medians of "
    f"{ROUNDS} interleaved rounds. Ours are eager loops over time; nn.LSTM is torch's "
    "kernel. ImplicitERNN: all steps in one batched solve by Picard to rtol 1e-3, adjoint Neumann.",
    points=points,
    views=[
        *(
            Pivot(
                title=f"Training step and inference, {width} units",
                index={"layer": "layer"},
                each="layer",
                where={"what": f"width {width}"},
                values={
                    "step, ms": "step_ms",
                    "step / nn.LSTM": "step_ratio",
                    "inference / nn.LSTM": "inference_ratio",
                    "parameters": lambda rows: int(rows["parameters"].iloc[0]),
                    "bytes": lambda rows: int(rows["bytes"].iloc[0]),
                },
            )
            for width in WIDTHS
        ),
        Pivot(
            title="Memory of a training step against the length",
            index={"what": "layer", "length": "steps"},
            each="length",
            values={"peak, MiB": lambda rows: round(rows["peak"].iloc[0] / 2**20, 2)},
            note="64 units, batches of 32: what forward and backward allocate at their peak, less "
            "the gradients of the parameters.",
        ),
        Lines("length", "peak", by=["what"], scale=2**-20, style="marked").chart(
            "memory of a training step", "steps of the sequence", "MiB"
        ),
    ],
)
