"""Networks for optical flow, from run folders or files of weights, and their estimates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor

from equilibria.nn import using
from equilibria.run import run
from equilibria.run.models import Model
from equilibria.run.plugins import change_solver
from equilibria.run.weights import checksum
from equilibria.solve import Anderson, JacobianFree, Phantom, Solver, Status
from equilibria.zoo.flow.model.cell import UpdateCell
from equilibria.zoo.flow.model.configs import FlowConfig, UnrolledFlowConfig
from equilibria.zoo.flow.model.network import DEQFlow, UnrolledFlow
from equilibria.zoo.flow.model.weights import as_equilibrium, load_checkpoint
from equilibria.zoo.io.download import digest

RELEASED = Anderson(period=3, rtol=1e-3, atol=(0.0, 0.00125), max_evals=64)
"""For released weights, which come with none: a thousandth of the hidden state, and a thousandth of
the flow plus a hundredth of a pixel at full size, so that a static scene converges too."""

REFINEMENTS = 32
"""Of released RAFT and GMA, as the source evaluates them on Sintel."""


class NetworkError(ValueError):
    """What is named is not a network for optical flow, or cannot be run in this way."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How a network is to be run, where not as its run folder says; None for no change.

    Args:
        solver: name of a solver, one of `SOLVERS`. RAFT and GMA, which refine a fixed number of
            times, are then solved for their equilibrium.
        rtol: relative tolerance.
        max_evals: evaluations, at most; or refinements of a network that is not solved.
        correlation: "all-pairs" or "on-demand".
    """

    solver: str | None = None
    rtol: float | None = None
    max_evals: int | None = None
    correlation: str | None = None


@dataclass(frozen=True)
class FlowEstimate:
    """The flow of a pair of images, and how it was found.

    Attributes:
        flow: float32, (2, height, width), in pixels.
        change: float32, (height, width): how far one more evaluation moves each pixel's flow.
        state: hidden state and flow at the end, at an eighth of the size.
        evaluations: of the update operator, without the one that `change` takes.
        status: of the solve; None where a fixed number of refinements was made.
        residual: relative residual of the solve; None likewise.
        solving: seconds of the refinement or the solve.
        other: seconds of the features, the correlation and the upsampling.
    """

    flow: Tensor
    change: Tensor
    state: tuple[Tensor, Tensor]
    evaluations: int
    status: Status | None
    residual: float | None
    solving: float
    other: float

    @property
    def moves(self) -> float:
        """Pixels by which the flow still moves: the root of the mean square of `change`."""
        return float(self.change.double().square().mean().sqrt())


@dataclass(frozen=True)
class FlowNetwork:
    """A network for optical flow in eval mode.

    Attributes:
        model: solves for the equilibrium, or holds the parts that are run `steps` times.
        title: what it is called.
        solver: what solves; None where a fixed number of refinements is made.
        steps: their number; None where there is a solver.
        about: what decides its answers, for a record.
        accelerator: gives device and precision.
        budget: evaluations that a pair may take, where that was asked for; None for the solver's
            own limit.
    """

    model: DEQFlow
    title: str
    solver: Solver | None
    steps: int | None
    about: Mapping[str, Any]
    accelerator: Accelerator
    budget: int | None = None

    @property
    def limit(self) -> int:
        """Evaluations that a pair takes at most."""
        if self.solver is None:
            return self.steps or 1
        return self.budget or self.solver.max_evals + self._after

    @property
    def _after(self) -> int:
        """Evaluations after a solve: the steps of a phantom gradient, which are part of the output,
        the residual of the last, and that of a solve that they complete."""
        adjoint = self.model.deq.adjoint.now
        return adjoint.steps + 2 if isinstance(adjoint, Phantom) else 0

    def check(self, height: int, width: int) -> None:
        """Refuse images that are too small.

        Raises:
            ValueError: with both sizes in its message.
        """
        blank = torch.zeros(1, 3, height, width, dtype=torch.uint8, device="meta")
        self.model.config.check((blank, blank))

    @torch.no_grad()
    def estimate(
        self,
        first: Tensor,
        second: Tensor,
        start: tuple[Tensor, Tensor] | None = None,
        max_evals: int | None = None,
    ) -> FlowEstimate:
        """Find the flow of a pair of images.

        Args:
            first, second: uint8, RGB, (3, height, width).
            start: state to begin with, of an earlier estimate; None for no motion.
            max_evals: limit of this call, where it is below the network's own.

        Raises:
            ValueError: sizes differ, or the images are too small.
        """
        model = self.model
        cell = cast(UpdateCell, model.deq.cell)
        limit = self.limit if max_evals is None else min(max_evals, self.limit)
        x = tuple(each[None].to(self.accelerator.device) for each in (first, second))
        status = residual = None
        begin = self._now()
        with self.accelerator.autocast():
            (operands,) = model.inject(x)
            ready = self._now()
            if self.solver is None:
                state = cell.start(operands) if start is None else start
                for _ in range(limit):
                    state = cell(state, operands)
                evaluations = limit
            else:
                # As in an evaluation of the model, unless the limit is below what that may take.
                room = min(self.solver.max_evals, limit - self._after)
                solver = replace(self.solver, max_evals=room if room > 0 else limit)
                with using(model, eval_solver=solver, adjoint=None if room > 0 else JacobianFree()):
                    solution = model.deq(operands, z0=start)
                state, evaluations = solution.value, int(solution.stats.evals[0])
                status = Status(int(solution.status[0]))
                residual = float(solution.stats.residual[0])
            solved = self._now()
            flow = model.answer(state, x).float()
            done = self._now()
            change = model.moves(state, x, operands)
        other = (ready - begin) + (done - solved)
        return FlowEstimate(
            flow[0].cpu(),
            change[0].cpu(),
            cast(tuple[Tensor, Tensor], state),
            evaluations,
            status,
            residual,
            solved - ready,
            other,
        )

    def _now(self) -> float:
        """Seconds, when everything that was asked of the device is done."""
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize(self.accelerator.device)
        return time.perf_counter()


def load(path: Path, wanted: Wanted, accelerator: Accelerator) -> FlowNetwork:
    """Read a network for optical flow.

    Args:
        path: a run folder, or a file of released weights of RAFT, GMA or the thesis' networks.
        wanted: how it is to be run.
        accelerator: gives device and precision.

    Raises:
        NetworkError: it is none, or cannot be run so.
        RunError, CheckpointError: the run folder is damaged.
        WeightsError: the file of weights is damaged, or of other networks.
    """
    if not path.exists():
        raise NetworkError(
            f"there is no run folder and no file of weights {path}: name a run on optical flow, or "
            "a .pth of RAFT, GMA or deq-flow"
        )
    changes: dict[str, Any] = (
        {} if wanted.correlation is None else {"correlation": wanted.correlation}
    )
    about: dict[str, Any] = {"run": str(path.absolute())}
    own = None if path.is_dir() else REFINEMENTS
    model: Model
    if path.is_dir():
        config = run.Folder(path).read_recipe().model
        if not isinstance(config, FlowConfig):
            raise NetworkError(
                f"{path} is a run of another kind of network, {config.title}: name a run on "
                "optical flow, or a .pth of RAFT, GMA or deq-flow"
            )
        model = run.load(path, data=False, changes=changes).model
        about["weights"] = checksum(run.Folder(path).weights)
    else:
        model = load_checkpoint(path, **changes)
        about["weights"] = digest(path)
    if isinstance(model, UnrolledFlow):
        config = cast(UnrolledFlowConfig, model.config)
        steps: int | None = own or config.eval_steps or config.steps
        title, model, solver = config.title, _make_solvable(model), None
        if wanted.solver is not None:
            steps, solver = None, RELEASED
            title += ", solved for its equilibrium"
    elif isinstance(model, DEQFlow):
        title, steps = model.config.title, None
        solver = RELEASED if own else (model.deq.eval_solver or model.deq.solver)
    else:
        raise NetworkError(f"{path} is a run of another kind of network, {type(model).__name__}")
    if solver is None:
        if wanted.rtol is not None:
            raise NetworkError(
                f"--rtol is for a solver, and {title} refines a flow {steps} times: name a solver "
                "with --solver, and it is solved for its equilibrium"
            )
        steps = wanted.max_evals or steps
    else:
        solver = change_solver(solver, wanted.solver, wanted.rtol, wanted.max_evals)
    model = cast(DEQFlow, model).to(accelerator.device).eval()
    how = {"solver": None if solver is None else repr(solver), "refinements": steps}
    about |= {**how, "correlation": model.config.correlation}
    return FlowNetwork(model, title, solver, steps, about, accelerator, wanted.max_evals)


def _make_solvable(model: UnrolledFlow) -> DEQFlow:
    """The same weights in a network that can be solved."""
    found = as_equilibrium(model.config).build()
    assert isinstance(found, DEQFlow)
    prefix = {"cell": "deq.cell"}
    state = {
        ".".join([prefix.get(first, first), *rest]): value
        for name, value in model.state_dict().items()
        for first, *rest in [name.split(".")]
    }
    found.load_state_dict(state)
    return found.eval()
