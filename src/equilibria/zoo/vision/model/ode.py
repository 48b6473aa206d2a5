"""Neural ODEs, and augmented ones, which equilibrium networks are compared with."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.data.storage import require
from equilibria.run.models.base import ExplicitConfig, Model, ModelError, Prediction
from equilibria.zoo.vision.model.config import VisionConfig


class ODEError(ModelError):
    """The initial value problem could not be integrated as asked."""


@dataclass(frozen=True, kw_only=True)
class NeuralODEConfig(VisionConfig, ExplicitConfig):
    """The architecture of a convolutional neural ODE.

    Dormand and Prince's method of order 5 integrates, by torchdiffeq, which comes with the
    package's extra `ode`. It takes one step size for the whole batch, so that the answer for a
    sample depends on the others, within the tolerances.

    With 10 classes and images 3 x 32 x 32, 125 filters have 173,611 parameters, and 64 filters
    with 10 added channels 172,452: the two of 172K in the papers' tables. On 16 x 16, 64 filters
    have 45,712, and 32 filters with 10 added channels 43,748.

    Args:
        filters: channels inside the dynamics.
        augment: channels of zeros that are added to the image; 0 for a plain neural ODE.
        rtol: relative tolerance of a step.
        atol: absolute tolerance of a step.
        max_evals: evaluations of the dynamics, forward and backward together, above which it is an
            error.
        continuous_adjoint: find gradients by integrating backward in time, with memory that does
            not grow with evaluations, and no second derivatives; else by following all operations
            of the integration, exactly.
    """

    filters: int = 64
    augment: int = 0
    rtol: float = 1e-3
    atol: float = 1e-3
    max_evals: int = 1000
    continuous_adjoint: bool = False

    @override
    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "filters", "max_evals")
        check_fields(self, "(0, inf]", "rtol", "atol")
        check_fields(self, "[0, inf)", "augment")
        super().__post_init__()

    @override
    def network(self) -> "NeuralODE":
        return NeuralODE(self)


@dataclass(frozen=True, kw_only=True)
class AugmentedNeuralODEConfig(NeuralODEConfig):
    """The architecture of a convolutional neural ODE with added channels.

    Its fields are those of `NeuralODEConfig`; `augment` is at least 1.
    """

    filters: int = 32
    augment: int = 10

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.augment < 1:
            raise ValueError(
                f"augment must be at least 1; got {self.augment}: without added channels it is "
                "'neural-ode'"
            )


class TimeConv(nn.Conv2d):
    """K * [t, z]: a convolution that keeps the size and is given the time as a first channel.

    What the time adds, K_t * t + b, is the same for all samples and is computed once for them.

    Args:
        inputs: channels of z.
        outputs: channels of the result.
        kernel: width of the kernel, odd.

    papers: Dupont et al. 2019, appendix.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs + 1, outputs, kernel, padding=kernel // 2)

    @override
    def forward(self, z: Tensor, t: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return (batch, outputs, height, width) for z at the time `t`, a scalar."""
        clock = t.to(z.dtype).expand(1, 1, *z.shape[2:])
        offset = functional.conv2d(clock, self.weight[:, :1], self.bias, padding=self.padding)
        return functional.conv2d(z, self.weight[:, 1:], padding=self.padding) + offset


class Dynamics(nn.Module):
    """dz/dt = K3 * [t, relu(K2 * [t, relu(K1 * [t, z])])] with kernels of 1x1, 3x3 and 1x1.

    Args:
        channels: of the state (batch, channels, height, width).
        filters: channels inside.
        limit: evaluations above which it raises.

    Attributes:
        evals: evaluations since it was set to 0.

    papers: Dupont et al. 2019, appendix.
    """

    def __init__(self, channels: int, filters: int, *, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.evals = 0
        self.conv1 = TimeConv(channels, filters, 1)
        self.conv2 = TimeConv(filters, filters, 3)
        self.conv3 = TimeConv(filters, channels, 1)

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """Return dz/dt at the time `t`, a scalar, in the dtype of `z`.

        Raises:
            ODEError: there have been more evaluations than `limit`.
        """
        self.evals += 1
        if self.evals > self.limit:
            raise ODEError(
                f"the integration takes more than {self.limit} evaluations: its dynamics have "
                "become too stiff. Loosen rtol and atol, lower the learning rate, or raise "
                "max_evals"
            )
        inside = torch.relu(self.conv1(z, t))
        inside = torch.relu(self.conv2(inside, t))
        return self.conv3(inside, t).to(z.dtype)

    def callback_step(self, t: Tensor, state: Tensor, dt: Tensor) -> None:
        """Look at a step of length `dt` before torchdiffeq takes it; it calls this by its name.

        Raises:
            ODEError: the step is too short to lead anywhere, or the state is not finite.
        """
        if not (t + dt > t and torch.isfinite(state).all()):
            raise ODEError(
                f"the integration ended before its time, at a step of {float(dt):g}: the dynamics "
                "have become too stiff, or are not finite. Lower the learning rate, or loosen "
                "rtol and atol"
            )

    def callback_step_adjoint(self, t: Tensor, state: tuple[Tensor, ...], dt: Tensor) -> None:
        """Look at a step backward in time, of z, its gradient and those of t and the weights."""
        for part in state:
            self.callback_step(-t, part, dt)


class NeuralODE(Model):
    """dz/dt = g(z, t), z(0) the image and zeros; logits = V z(1) + c.

    Attributes:
        evals: evaluations of the dynamics in the latest forward.

    Raises:
        DataError: torchdiffeq is not installed.

    papers: Chen et al. 2018; Dupont et al. 2019, for added channels and for images.
    """

    def __init__(self, config: NeuralODEConfig) -> None:
        super().__init__()
        _torchdiffeq()  # that it is missing is said before anything is trained
        (channels, height, width), classes = config.require_shape()
        self.config = config
        self.evals = 0
        self.dynamics = Dynamics(channels + config.augment, config.filters, limit=config.max_evals)
        self.head = nn.Linear((channels + config.augment) * height * width, classes)

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        """Return logits (batch, classes) of images (batch, channels, height, width).

        Raises:
            ODEError: the integration takes more than `max_evals` evaluations, its steps become too
                short, or its state is not finite; in backward too, with `continuous_adjoint`.
        """
        self.refuse_carry(carry)
        self.config.check(x)
        z = self.integrate(functional.pad(x, (0, 0, 0, 0, 0, self.config.augment)))
        return Prediction(self.head(z.flatten(1)), ())

    @override
    def refuses_export(self) -> str:
        return (
            f"{type(self).__name__} chooses its steps by the data, so that the number of its "
            "evaluations is not fixed: it cannot be exported"
        )

    @property
    def backward_evals(self) -> int:
        """Evaluations of backward integrations since the latest forward; 0 without them."""
        return self.dynamics.evals - self.evals

    def integrate(self, z: Tensor) -> Tensor:
        """Return z(1) for z(0), (batch, channels + augment, height, width)."""
        config, solvers = self.config, _torchdiffeq()
        self.dynamics.evals = self.evals = 0
        odeint = solvers.odeint_adjoint if config.continuous_adjoint else solvers.odeint
        times = torch.tensor([0.0, 1.0], dtype=z.dtype, device=z.device)
        path = odeint(self.dynamics, z, times, rtol=config.rtol, atol=config.atol, method="dopri5")
        self.evals = self.dynamics.evals
        return path[-1]


def _torchdiffeq() -> ModuleType:
    # Its tables of coefficients are tensors, made as it is first imported: on the meta device,
    # where models are built to be counted, they would have no values for the whole process.
    with torch.device("cpu"):
        return require("torchdiffeq", "torchdiffeq", "ode", "the integration of a neural ODE")
