"""What the studies of Kag et al. 2019 share: trainings, untrained layers, and measures."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from equilibria.nn.recurrent.cell import CellOptions
from equilibria.run import recipe as recipes
from equilibria.run.bench.count import interleave
from equilibria.run.memory import peak_bytes
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Context, Factor, Measure, Point
from equilibria.run.studies.training import Training
from equilibria.solve import Implicit, Neumann, Picard
from equilibria.zoo.recurrent import model as recurrent
from equilibria.zoo.recurrent.model.classifier import SequenceClassifier
from equilibria.zoo.recurrent.model.diagnostics import field_jacobian
from equilibria.zoo.recurrent.model.ernn import ERNNCell

# --- The networks of Table 3, by name, and their trainings ----------------------------------------

SEEDS = (0, 1, 2)

ERNN = {f"ERNN (K = {steps})": ("--model.cell.steps", str(steps)) for steps in (1, 3, 5)}

SIZES = {
    "FastRNN": ("FastRNN", 80),
    "FastGRNN-LSQ": ("FastGRNN", 80),
    "FastGRNN, rank 16": ("FastGRNN", 80),
    "RNN": ("RNN", 80),
    "SpectralRNN": ("SpectralRNN", 80),
    "LSTM": ("LSTM", 56),
    "GRU": ("GRU", 64),
    "UGRNN": ("UGRNN", 60),
    "UGRNN, 36 units": ("UGRNN", 36),
    "Antisymmetric": ("AntisymmetricRNN", 100),
}
"""Cell and units of each baseline. Units are chosen so that sizes are near the published ones; 36
units make a UGRNN as small as the equilibrated network."""

OWN = {
    "FastGRNN-LSQ": ("--model.cell.rank", "null"),
    "FastGRNN, rank 16": ("--model.cell.rank", "16"),
    "Antisymmetric": ("--model.cell.step_size", "0.1"),
}
"""Options that a switch of the cell would otherwise take over from the recipe's."""

BASELINES = {
    name: ("--model.cell.name", cell, "--model.hidden", str(units), *OWN.get(name, ()))
    for name, (cell, units) in SIZES.items()
}

HAR = {**BASELINES, **ERNN}
"""Options of the recipe har2 for each network of Table 3."""


def point(
    recipe: str,
    options: Sequence[str],
    minutes: float,
    measures: Sequence[Measure] = (summary, epochs),
    **factors: Factor,
) -> Point:
    """Return the point of a training.

    Args:
        recipe: its name.
        options: of the recipe; the seed is the factor's.
        minutes: estimated duration.
        measures: of the trained network.
        factors: coordinates of the point, `seed` among them.
    """
    loaded = recipes.load(recipe, [*options, "--seed", str(factors["seed"])])
    return Point(factors, measures, {"run": Training(loaded, minutes)})


# --- Layers that are measured untrained, and what a training step of one takes --------------------

SOLVED = {"solver": Picard(rtol=1e-3), "adjoint": Implicit(linear=Neumann(rtol=1e-3))}

LAYERS: dict[str, tuple[CellOptions, dict[str, Any]]] = {
    "ERNN, K = 1": (recurrent.ERNNOptions(), {}),
    "ERNN, K = 1, rank 16": (recurrent.ERNNOptions(rank=16), {}),
    "ERNN, K = 3": (recurrent.ERNNOptions(steps=3), {}),
    "ERNN, K = 5": (recurrent.ERNNOptions(steps=5), {}),
    "ImplicitERNN": (recurrent.ImplicitERNNOptions(), SOLVED),
    "RNN": (recurrent.RNNOptions(), {}),
    "FastRNN": (recurrent.FastRNNOptions(), {}),
    "FastGRNN-LSQ": (recurrent.FastGRNNOptions(), {}),
    "AntisymmetricRNN": (recurrent.AntisymmetricRNNOptions(), {}),
    "SpectralRNN": (recurrent.SpectralRNNOptions(), {}),
    "UGRNN": (recurrent.UGRNNOptions(), {}),
    "GRU": (recurrent.GRUOptions(), {}),
    "LSTM": (recurrent.LSTMOptions(), {}),
}
"""The cell of each layer, and keywords of its `DEQ` layer."""


def step(layer: nn.Module, x: Tensor) -> None:
    """Take a training step: forward, and backward from the state after the last step."""
    _, state = layer(x)
    h = state[0] if isinstance(state, tuple) else state
    h.square().sum().backward()


def peak(layer: nn.Module, x: Tensor) -> int:
    """Return the bytes that a training step allocates at its peak, less the gradients."""
    step(layer, x)  # gradients exist from here on
    return peak_bytes(lambda: step(layer, x), x.device)


# --- What is measured of a trained recurrent network beside its accuracy --------------------------

WINDOWS = 500


@identified_as("_measures.cost")
def cost(context: Context) -> dict[str, Any]:
    """Milliseconds of inference per sequence, in batches of `WINDOWS`, and bytes of the weights."""
    run = context.run
    if run.diverged:
        return {}
    model = run.load().model
    batch = run.task.sample("test", WINDOWS)

    @torch.no_grad()
    def read() -> None:
        model(batch.inputs)

    read()
    seconds = interleave({"read": read}, torch.device("cpu"), rounds=5)["read"]
    bytes_of = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"inference_ms": 1e3 * seconds / batch.samples, "bytes": bytes_of}


@identified_as("_measures.eigenvalues")
def eigenvalues(context: Context, *, windows: int = 20, bins: int = 60) -> Iterable[dict[str, Any]]:
    """Histogram of the real parts of the eigenvalues of dF/dh, over test data.

    `share` of all eigenvalues in a bin around `real`; `negative`, the share below 0, and `top`, the
    largest.
    """
    run = context.run
    if run.diverged:
        return
    model = cast(SequenceClassifier, run.load().model)
    cell = model.recurrent.cells[0]
    assert isinstance(cell, ERNNCell)
    x = run.task.sample("test", windows).inputs.transpose(0, 1)
    with torch.no_grad():
        h = model.recurrent(x)[0]
    before = torch.cat([torch.zeros_like(h[:1]), h[:-1]])
    jacobians = torch.cat(
        [field_jacobian(cell, *each).detach() for each in zip(h, x, before, strict=True)]
    )
    real = torch.linalg.eigvals(jacobians.double()).real.flatten()
    low, high = float(real.min()), float(real.max())
    counts = torch.histc(real, bins, low, high)
    width = (high - low) / bins
    for k, n in enumerate(counts.tolist()):
        row: dict[str, Any] = {"real": low + (k + 0.5) * width, "share": n / len(real)}
        if k == 0:
            row |= {"negative": float((real < 0).double().mean()), "top": high}
        yield row
