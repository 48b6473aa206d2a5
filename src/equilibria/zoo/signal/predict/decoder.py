"""A signal decoded from its network: values, derivatives, and where it converged late."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equilibria.nn import using
from equilibria.run.models import EquilibriumModel, Model
from equilibria.solve import GMRES, Implicit, Solver, SolveWarning, Status
from equilibria.zoo.signal.data import Points, Shape, ShapeField, Signal, SignalField
from equilibria.zoo.signal.data.shape import NOISE
from equilibria.zoo.signal.model import gradient, hessian
from equilibria.zoo.signal.predict import file
from equilibria.zoo.signal.predict.file import InrError, Network

CHUNK = 2048
"""Points that are decoded at a time, by default: more are no faster on a CPU, but on a GPU."""

EXACT = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Relative tolerance of both solves of a derivative."""

Progress = Callable[[Iterable[int]], Iterable[int]]
"""Goes through what it is given and shows how far it is, as `tqdm.tqdm` does."""


class Decoded(NamedTuple):
    """Values of a signal."""

    values: Tensor
    """In [-1, 1] where the signal was fitted well, of a shape logits of being inside: ``(*shape,
    channels)``, for a list of points ``(count, channels)``."""
    evals: Tensor
    """Evaluations after which each point had converged, int64, ``shape``; 0 of an explicit
    network."""
    converged: Tensor
    """Whether it has, bool, ``shape``; true of an explicit network."""

    @property
    def share_converged(self) -> float:
        """Share of the points that converged."""
        return float(self.converged.double().mean())


@dataclass(frozen=True)
class Decoder:
    """The signal Phi(x) of an .inr file.

    Attributes:
        model: the network, in eval mode.
        field: what the grid of the signal means; its `points` are where to decode.
        solver: of the fixed point; None of an explicit network. For another one, or other limits,
            use `dataclasses.replace(decoder, solver=...)`.
        about: what the file says, see `zoo.signal.predict.file`.

    Example:
        >>> decoder = load("camera.inr")
        >>> large = decoder.decode(decoder.field.points(size=(1024, 1024)))
        >>> slopes = decoder.gradient(decoder.field.points())
    """

    model: Model
    field: SignalField | ShapeField
    solver: Solver | None
    about: Mapping[str, Any]

    def decode(
        self, points: Points | Tensor, *, chunk: int = CHUNK, progress: Progress = iter
    ) -> Decoded:
        """Decode the signal at some points, a chunk at a time.

        Args:
            points: of `field.points`, or any in [-1, 1], ``(count, inputs)``.
            chunk: points at a time, which decides how much memory is taken, and nothing else.
            progress: goes through the chunks.

        Raises:
            InrError: the points have other coordinates, or `chunk` is not positive.
        """

        def step(x: Tensor) -> Decoded:
            return self._values(x, self.solver)

        return Decoded(*self._whole(step, points, chunk, progress))

    def gradient(
        self, points: Points | Tensor, *, chunk: int = CHUNK, progress: Progress = iter
    ) -> Tensor:
        """Return dPhi_k / dx_i at some points, ``(*shape, channels, inputs)``.

        By the exact adjoint: it is the derivative of what `decode` gives. x runs from -1 to 1 over
        n samples, so that the slope for each sample is 2 / (n - 1) times this one. Both solves
        have a relative tolerance of 1e-5 at most, in float64 1e-10; where one does not converge, a
        `SolveWarning` says so. Arguments and errors are those of `decode`.
        """
        return self._derivative(gradient, points, chunk, progress)

    def hessian(
        self, points: Points | Tensor, *, chunk: int = CHUNK, progress: Progress = iter
    ) -> Tensor:
        """Return d^2 Phi_k / dx_i dx_j at some points, ``(*shape, channels, inputs, inputs)``; its
        trace is the Laplacian. See `gradient`.
        """
        return self._derivative(hessian, points, chunk, progress)

    def _derivative(
        self,
        derivative: Callable[..., Tensor],
        points: Points | Tensor,
        chunk: int,
        progress: Progress,
    ) -> Tensor:
        solver = adjoint = None
        if self.solver is not None:
            rtol = min(self.solver.finest, EXACT[next(self.model.parameters()).dtype])
            solver = replace(self.solver, rtol=rtol, atol=0.0)
            adjoint = Implicit(linear=GMRES(rtol=rtol, max_evals=max(100, solver.max_evals)))

        def step(x: Tensor) -> tuple[Tensor, Tensor]:
            converged = self._values(x, solver).converged
            found = derivative(self.model, x, solver=solver, adjoint=adjoint)
            return found.detach().cpu(), converged

        found, converged = self._whole(step, points, chunk, progress)
        if missed := int((~converged).sum()):
            warnings.warn(
                f"{missed:,} of {converged.numel():,} points did not converge, and their "
                "derivatives are inexact: more evaluations may help",
                SolveWarning,
                stacklevel=3,
            )
        return found

    def _whole(
        self,
        step: Callable[[Tensor], tuple[Tensor, ...]],
        points: Points | Tensor,
        chunk: int,
        progress: Progress,
    ) -> list[Tensor]:
        """Take a step for each chunk of points, and join the results in the shape of the points."""
        inputs, like = self.field.inputs, next(self.model.parameters())
        if tuple(points[:1].shape) != (1, inputs):
            raise InrError(
                f"points of the shape {tuple(points.shape)}: expected (count, {inputs}), or what "
                "field.points gives"
            )
        if chunk < 1:
            raise InrError(f"a chunk of {chunk} points: give a size of at least 1")
        shape = (len(points),)
        if isinstance(points, Points):
            shape, points = points.shape, replace(points, dtype=like.dtype)
        starts = progress(range(0, len(points), chunk))
        parts = [step(points[start : start + chunk].to(like)) for start in starts]
        whole = [torch.cat(each) for each in zip(*parts, strict=True)]
        return [each.reshape(*shape, *each.shape[1:]) for each in whole]

    @torch.no_grad()
    def _values(self, x: Tensor, solver: Solver | None) -> Decoded:
        with using(self.model, solver):
            prediction = self.model(x)
        values = prediction.output.cpu()
        if not prediction.solutions:
            none = torch.zeros(len(x), dtype=torch.int64)
            return Decoded(values, none, none == 0)
        solution = prediction.solution
        converged: Any = solution.status == int(Status.CONVERGED)
        return Decoded(values, solution.stats.evals.cpu(), converged.cpu())


def load(
    path: str | Path, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> Decoder:
    """Read an .inr file. Nothing in it is unpickled or run.

    Args:
        path: of a file that `equilibria encode` wrote.
        dtype: in which it is decoded, torch.float32 or torch.float64.
        device: where.

    Raises:
        InrError: it is no such file, truncated, damaged or of a newer version.
    """
    model, field, solver, about = file.read(Path(path))
    return Decoder(model.to(device, dtype), field, solver, about)


# --- encoding -------------------------------------------------------------------------------------

# From a trained network to an .inr file.


POINTS = 50_000
"""Near the surface of a shape, on which its IoU is measured: as near as in the released code, ten
times nearer than in the recipe `shape`, whose own figure is therefore higher."""

SEED = 20_221
"""Of these points."""


def encode(
    path: str | Path, model: Model, signal: Signal | Shape, *, noise: float = NOISE
) -> Decoder:
    """Write a signal that a network has learned to an .inr file, whole or not at all.

    Args:
        path: ends with .inr.
        model: the network.
        signal: that it was trained on.
        noise: of a shape, how far from its surface the points lie at which its IoU is measured;
            see `Shape.near_surface`.

    Returns:
        A decoder of what was written, whose `about` has the quality that was measured through it.

    Raises:
        ValueError: the ending is another, or a weight is not finite.
        DataError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() != ".inr":
        raise ValueError(f"encoded signals are written to .inr files; got {path.name}")
    weights = {
        name: value.detach().to("cpu", torch.float32).contiguous()
        for name, value in model.state_dict().items()
    }
    for name, value in weights.items():
        if not value.isfinite().all():
            raise ValueError(f"the weights {name} are not finite: train again")
    solver = None
    if isinstance(model, EquilibriumModel):
        solver = model.deq.eval_solver or model.deq.solver
    config: Any = model.config
    network = Network(model=config, solver=solver)
    stored = network.build().to_empty(device=next(model.parameters()).device)
    stored.load_state_dict(weights)
    decoder = Decoder(stored, signal.field, solver, {})
    if isinstance(signal, Shape):
        drawn = signal.near_surface(POINTS, SEED, noise)
        found = decoder.decode(drawn.points)
        quality = {"iou": signal.near_surface_iou(found.values, drawn), "noise": noise}
    else:
        found = decoder.decode(signal.points)
        quality = {"psnr": signal.psnr(found.values)}
    about = {
        "name": signal.name,
        "field": signal.field.as_dict(),
        "quality": quality,
        "converged": None if solver is None else found.share_converged,
        "evaluations": None if solver is None else float(found.evals.double().mean()),
    }
    return replace(decoder, about=file.write(path, network, weights, about))
