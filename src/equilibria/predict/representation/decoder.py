"""A signal decoded from its network: values, derivatives, and where it converged late."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from equilibria.data.signals import Field, Points, ShapeField
from equilibria.models import Model
from equilibria.models.representation import gradient, hessian
from equilibria.nn import using
from equilibria.predict.representation import file
from equilibria.predict.representation.file import Contents, InrError
from equilibria.predict.solvers import changed
from equilibria.solve import GMRES, Implicit, Solver, SolveWarning, Status
from equilibria.stability.peak import peak_bytes
from equilibria.train.memory import free_bytes

__all__ = ["Decoded", "Decoder", "load"]

LARGEST = 16_384
"""Points that are decoded at a time, at most: more are no faster."""

SHARE = 0.25
"""Of the memory that is free, what decoding takes at most unless it is told."""

PROBE = (64, 192)
"""Points with which the memory of a point is measured."""

FEW = 2048
"""Points that are decoded at a time where nothing is measured."""

EXACT = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Relative tolerance of both solves of a derivative."""

What = Literal["decode", "gradient", "hessian"]
"""What is asked of a signal at a point."""

Progress = Callable[[int], object]
"""Is told how many points have been decoded since it was told last."""


class Decoded(NamedTuple):
    """Values of a signal."""

    values: Tensor
    """In [-1, 1] where the signal was fitted well, of a shape logits of being inside: ``(*shape,
    channels)``, for a list of points ``(count, channels)``."""
    evals: Tensor | None
    """Evaluations after which each point had converged, int64, ``shape``; None of an explicit
    network."""
    settled: Tensor | None
    """Whether it has, bool, ``shape``; None likewise."""

    @property
    def converged(self) -> float | None:
        """Share of the points that converged; None of an explicit network."""
        return None if self.settled is None else float(self.settled.double().mean())


@dataclass(frozen=True)
class Decoder:
    """The signal Phi(x) of an .inr file.

    Attributes:
        model: the network, in eval mode.
        field: what the grid of the signal means; its `points` are where to decode.
        solver: of the fixed point; None of an explicit network.
        about: what the file says, see `predict.representation.file`.

    Example:
        >>> decoder = load("camera.inr")
        >>> large = decoder.decode(decoder.field.points(size=(1024, 1024)))
        >>> slopes = decoder.gradient(decoder.field.points())
    """

    model: Model
    field: Field | ShapeField
    solver: Solver | None
    about: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        contents: Contents,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> Decoder:
        """Make a decoder of what a file says."""
        model = file.build(contents, dtype).to(device)
        return cls(model, contents.field, contents.network.solver, contents.about())

    def solved_by(
        self, name: str | None = None, rtol: float | None = None, max_evals: int | None = None
    ) -> Decoder:
        """The same signal under another solver or other limits; None for no change.

        Raises:
            InrError: its network is explicit: there is nothing to solve.
        """
        if name is None and rtol is None and max_evals is None:
            return self
        if self.solver is None:
            raise InrError(
                f"{self.about['model']['name']} is an explicit network, and there is nothing to "
                "solve: leave out solver, rtol and max_evals"
            )
        return replace(self, solver=changed(self.solver, name, rtol, max_evals))

    # --- decoding ----------------------------------------------------------------------------

    def decode(
        self,
        points: Points | Tensor | None = None,
        *,
        chunk: int | None = None,
        progress: Progress = lambda count: None,
    ) -> Decoded:
        """Decode the signal at some points, a chunk at a time.

        Chunks change nothing but the memory that is taken.

        Args:
            points: of `field.points`, or any in [-1, 1], ``(count, inputs)``; None for those of the
                samples of the signal, which a shape has not.
            chunk: points at a time; None for as many as a quarter of the free memory holds, and at
                most 16,384.
            progress: told after each chunk.

        Raises:
            ValueError: the points are others, or `chunk` is not positive.
        """
        return self._whole("decode", points, chunk, progress)

    def gradient(
        self,
        points: Points | Tensor | None = None,
        *,
        chunk: int | None = None,
        progress: Progress = lambda count: None,
    ) -> Tensor:
        """Return dPhi_k / dx_i at some points, ``(*shape, channels, inputs)``.

        By the exact adjoint: it is the derivative of what `decode` gives. x runs from -1 to 1 over
        n samples, so that the slope for each sample is 2 / (n - 1) times this one. Both solves
        have a relative tolerance of 1e-5 at most, in float64 1e-10; where one does not converge, a
        `SolveWarning` says so. Arguments and errors are those of `decode`.
        """
        return self._derivative("gradient", points, chunk, progress)

    def hessian(
        self,
        points: Points | Tensor | None = None,
        *,
        chunk: int | None = None,
        progress: Progress = lambda count: None,
    ) -> Tensor:
        """Return d^2 Phi_k / dx_i dx_j at some points, ``(*shape, channels, inputs, inputs)``; its
        trace is the Laplacian. See `gradient`.
        """
        return self._derivative("hessian", points, chunk, progress)

    def stream(
        self,
        what: What,
        points: Points | Tensor | None = None,
        *,
        chunk: int | None = None,
        progress: Progress = lambda count: None,
    ) -> Iterator[Decoded]:
        """Decode chunk by chunk, for what does not fit into memory; see `decode`.

        Args:
            what: "decode", "gradient" or "hessian". Of derivatives the chunks have the evaluations
                of their own solves, and whether these converged.
            points, chunk, progress: see `decode`.
        """
        points = self._points(points)
        if chunk is None:
            chunk = FEW if len(points) <= FEW else self.chunk_of(self.point_bytes(what))
        elif chunk < 1:
            raise ValueError(f"a chunk of {chunk} points: give a size of at least 1")
        for x in points.chunks(chunk) if isinstance(points, Points) else points.split(chunk):
            yield self._step(what, x)
            progress(len(x))

    def _whole(
        self, what: What, points: Points | Tensor | None, chunk: int | None, progress: Progress
    ) -> Decoded:
        points = self._points(points)
        parts = list(self.stream(what, points, chunk=chunk, progress=progress))
        shape = points.shape if isinstance(points, Points) else (len(points),)
        values = torch.cat([part.values for part in parts])
        evals = [part.evals for part in parts if part.evals is not None]
        settled = [part.settled for part in parts if part.settled is not None]
        return Decoded(
            values.reshape(*shape, *values.shape[1:]),
            torch.cat(evals).reshape(shape) if evals else None,
            torch.cat(settled).reshape(shape) if settled else None,
        )

    def _derivative(
        self, what: What, points: Points | Tensor | None, chunk: int | None, progress: Progress
    ) -> Tensor:
        found = self._whole(what, points, chunk, progress)
        if found.settled is not None and not bool(found.settled.all()):
            missed = int((~found.settled).sum())
            warnings.warn(
                f"{missed:,} of {found.settled.numel():,} points did not converge to a relative "
                f"residual of {EXACT[self.dtype]:g}, and their {what} is inexact: more evaluations "
                "may help",
                SolveWarning,
                stacklevel=3,
            )
        return found.values

    # --- memory ------------------------------------------------------------------------------

    def point_bytes(self, what: What = "decode") -> float:
        """Measure the memory that a point takes while it is decoded, the solver's included.

        Args:
            what: "decode", "gradient" or "hessian".
        """
        generator = torch.Generator().manual_seed(0)
        peaks: list[int] = []
        for count in PROBE:
            x = torch.rand(count, self.field.inputs, generator=generator) * 2 - 1
            with warnings.catch_warnings(action="ignore", category=SolveWarning):
                peaks.append(peak_bytes(lambda x=x: self._step(what, x), self.device))
        return max(1.0, (peaks[1] - peaks[0]) / (PROBE[1] - PROBE[0]))

    def chunk_of(self, bytes_each: float) -> int:
        """Return how many points are decoded at a time: a quarter of the free memory, and at most
        16,384.

        Args:
            bytes_each: what a point takes, see `point_bytes`.
        """
        free = free_bytes(self.device)
        most = LARGEST if math.isinf(free) else int(SHARE * free / bytes_each)
        return max(1, min(LARGEST, most))

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """In which it computes."""
        return next(self.model.parameters()).dtype

    # --- one chunk ---------------------------------------------------------------------------

    def _step(self, what: What, x: Tensor) -> Decoded:
        x = x.to(self.device, self.dtype)
        if what == "decode":
            return self._values(x, self.solver)
        derivative = {"gradient": gradient, "hessian": hessian}[what]
        if self.solver is None:
            return Decoded(derivative(self.model, x).detach().cpu(), None, None)
        rtol = min(self.solver.finest, EXACT[self.dtype])
        solver = replace(self.solver, rtol=rtol, atol=0.0)
        solved = self._values(x, solver)
        adjoint = Implicit(linear=GMRES(rtol=rtol, max_evals=max(100, solver.max_evals)))
        found = derivative(self.model, x, solver=solver, adjoint=adjoint)
        return solved._replace(values=found.detach().cpu())

    @torch.no_grad()
    def _values(self, x: Tensor, solver: Solver | None) -> Decoded:
        with using(self.model, solver):
            prediction = self.model(x)
        values = prediction.output.cpu()
        if not prediction.solutions:
            return Decoded(values, None, None)
        solution = prediction.solution
        settled: Any = solution.status == int(Status.CONVERGED)
        return Decoded(values, solution.stats.evals.cpu(), settled.cpu())

    def _points(self, points: Points | Tensor | None) -> Points | Tensor:
        if points is None:
            if isinstance(self.field, ShapeField):
                raise ValueError(
                    "a shape has no grid of its own: give points, such as decoder.field.points(64)"
                )
            points = self.field.points()
        if isinstance(points, Points):
            axes = len(points.axes)
            points = replace(points, dtype=self.dtype)
        else:
            axes = points.shape[1] if points.ndim == 2 else None
        if axes != self.field.inputs or not len(points):
            raise ValueError(
                f"points of the shape {tuple(points.shape)}: expected (count, "
                f"{self.field.inputs}), or what field.points gives"
            )
        return points


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
    return Decoder.of(file.read(Path(path)), dtype, device)
