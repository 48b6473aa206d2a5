"""Cosines with the exact gradient, and the condition under which they are safe.

z+ = tanh(W (z + x)) of width 100, float64, W Gaussian, a random linear loss of z*. The published
setting is a Lipschitz constant of .9, W's spectral norm: then the spectral radius is about half of
that, which flatters inexact gradients. Beside it a spectral radius of .9. How large the inputs are
is not published, and it matters: at a standard deviation of 1 or 2 tanh saturates, which shortens
the Jacobian; at .1 the layer is nearly linear.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from equilibria import solve
from equilibria.run import recipe as recipes
from equilibria.run.models import EquilibriumModel
from equilibria.run.recipe import Recipe
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.study import Context, Point, Scale, Study, grid
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Lines, Pivot, first, mean, spread

WIDTH, BATCH, LIPSCHITZ = 100, 16, 0.9
STEPS = (1, 2, 3, 4, 5, 6, 8, 10)
DAMPINGS = (1.0, 0.8, 0.5)
DRAWS = 1_000


@dataclass(frozen=True)
class Layer:
    """A random layer: what of W is scaled to 0.9, and the standard deviation of the inputs."""

    scaled: Literal["norm", "radius"]
    inputs: float


LAYERS: Mapping[str, Layer] = {
    f"spectral {scaled} .9, inputs {words}": Layer(scaled, inputs)
    for words, inputs in (("2", 2.0), ("1", 1.0), (".1", 0.1))
    for scaled in ("norm", "radius")
}
TIGHT = {"rtol": 1e-13, "max_evals": 600}
PUBLISHED = solve.Picard(rtol=1e-5, max_evals=100)


@identified_as("_synthetic.cosines")
def cosines(context: Context) -> Iterable[dict[str, Any]]:
    """Cosine of each estimator with the exact gradient of W and x, by `steps` and `damping`.

    z+ = tanh(W (z + x)), W Gaussian and scaled to a spectral norm or radius of 0.9, x normal, the
    loss a random linear function of z*. In float64. Phantom gradients are those at the end of at
    most 100 plain iterations to 1e-5, the exact one is at a solution to 1e-13. `difference` is that
    of UPG and NPG there, relative; `bptt` the cosine of backpropagation through 1,000 plain
    iterations and the exact gradient.
    """
    layer = LAYERS[str(context.factors["layer"])]
    generator = torch.Generator().manual_seed(int(context.factors["seed"]))
    draw = {"dtype": torch.float64, "generator": generator}
    weight = torch.randn(WIDTH, WIDTH, **draw)
    if layer.scaled == "norm":
        size = torch.linalg.matrix_norm(weight, 2)
    else:
        size = torch.linalg.eigvals(weight).abs().max()
    weight = (LIPSCHITZ * weight / size).requires_grad_()
    x = (layer.inputs * torch.randn(BATCH, WIDTH, **draw)).requires_grad_()
    towards = torch.randn(BATCH, WIDTH, **draw)

    def gradient(adjoint: solve.Adjoint, solver: solve.Solver) -> Tensor:
        solution = solve.fixed_point(
            lambda z, x, w: torch.tanh((z + x) @ w.T),
            torch.zeros_like(x),
            x,
            solve.shared(weight),
            solver=solver,
            adjoint=adjoint,
        )
        found = torch.autograd.grad((solution.value * towards).sum(), [weight, x])
        return torch.cat([g.flatten() for g in found])

    solver = solve.Anderson(**TIGHT)
    exact = gradient(solve.Implicit(linear=solve.GMRES(**TIGHT, restart=100)), solver)
    # Plain iteration, in full: its own tolerance is never met.
    path = gradient(solve.Unrolled(), solve.Picard(rtol=0.0, max_evals=1_000, patience=None))
    yield {"estimator": "BPTT", "bptt": _cosine(path, exact)}
    broyden = solve.Broyden(rtol=1e-5, max_evals=100)
    for refine in (0, 2):
        cosine = _cosine(gradient(solve.Shine(refine=refine), broyden), exact)
        yield {"estimator": "SHINE", "steps": refine, "damping": None, "cosine": cosine}
    for damping in DAMPINGS:
        for steps in STEPS:
            options: Any = {"steps": steps, "damping": damping}
            adjoints = {"UPG": solve.Phantom(**options), "NPG": solve.NeumannPhantom(**options)}
            upg, npg = (gradient(each, solver) for each in adjoints.values())
            difference = float((upg - npg).norm() / npg.norm())
            for name, adjoint in adjoints.items():
                cosine = _cosine(gradient(adjoint, PUBLISHED), exact)
                row = {"estimator": name, **options, "cosine": cosine}
                yield row | {"difference": difference}


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


BOUNDS: Mapping[str, tuple[float, int]] = {
    "sigma_min² / sigma_max, which is (5.4)": (1.0, 1),
    "sigma_min": (1.0, 0),
    "1.01 sigma_min": (1.01, 0),
}
"""How large E may be: a factor of sigma_min / kappa^power, and the power."""


@identified_as("_synthetic.theorem")
def theorem(context: Context) -> dict[str, Any]:
    """`counter_examples` among `draws` that are within a `bound`, over all losses at once.

    With h = (I - J)^-T dl/dz*, the inner product of (5.5) is h^T (M + E) M^T h, M = df/dtheta and
    E = (I - J) A - M, so it is positive for every loss where the symmetric part of (M + E) M^T has
    no eigenvalue <= 0: `smallest`, over sigma_min(M)^2. A is drawn by E: every other E takes from
    M's smallest direction alone, the others are Gaussian; half of them are 0.999 of the bound, half
    a random share of it.

    (5.4) is sufficient and not sharp: |M^T h| >= sigma_min |h|, so h^T (M + E) M^T h >=
    |M^T h| (|M^T h| - ||E|| |h|) is positive where ||E|| < sigma_min, and E = -sigma_min u v^T, of
    the smallest singular vectors, makes it zero at h = u.
    """
    factor, power = BOUNDS[str(context.factors["bound"])]
    generator = torch.Generator().manual_seed(0)
    draw = {"dtype": torch.float64, "generator": generator}
    failed, smallest = 0, float("inf")
    for number in range(DRAWS):
        rows = 2 + int(torch.randint(7, (), generator=generator))
        columns = rows + int(torch.randint(20, (), generator=generator))
        left = torch.linalg.qr(torch.randn(rows, rows, **draw))[0]
        right = torch.linalg.qr(torch.randn(columns, rows, **draw))[0]
        condition = 10 ** (3 * float(torch.rand((), **draw)))
        values = condition ** -torch.linspace(0, 1, rows, dtype=torch.float64)
        m = left @ torch.diag(values) @ right.T
        towards = torch.randn(rows, columns, **draw)
        if number % 2:
            towards = left[:, -1:] @ right[:, -1:].T
        towards = towards / torch.linalg.matrix_norm(towards, 2)
        share = 0.999 if number % 4 < 2 else float(torch.rand((), **draw))
        e = -factor * share * values[-1] / condition**power * towards
        radius = float(torch.rand((), **draw))
        j = torch.randn(rows, rows, **draw)
        j = radius * j / torch.linalg.matrix_norm(j, 2)
        eye = torch.eye(rows, dtype=torch.float64)
        a = torch.linalg.solve(eye - j, m + e)
        least = _least(((eye - j) @ a) @ m.T) / float(values[-1]) ** 2  # from J and A, not from E
        smallest = min(smallest, least)
        failed += least <= 0
    return {"draws": DRAWS, "counter_examples": failed, "smallest": smallest}


def _least(matrix: Tensor) -> float:
    """The smallest eigenvalue of the symmetric part."""
    return float(torch.linalg.eigvalsh(matrix + matrix.T)[0] / 2)


SAMPLES = 8
NEUMANN = {"Jacobian-free": (1, 1.0), "NPG, k = 5, damping .5": (5, 0.5), "NPG, k = 5": (5, 1.0)}
NEUMANN |= {"NPG, k = 20": (20, 1.0)}


@identified_as("_synthetic.trained")
def check_condition(context: Context) -> Iterable[dict[str, Any]]:
    """How far trained layers are from the condition (5.8), by `estimator`.

    Shares of test samples: `met`, ||(I - J) D - I|| < 1 / kappa^2; `sharp`, < 1 / kappa; `safe`,
    the gradient is within 90 degrees of the exact one whatever the loss. `error` and `kappa` are
    medians of the left side and of the condition of df/dtheta. NPG has (I - J) D - I = -B^k.
    """
    model = cast(EquilibriumModel, context.run.load().model).double()
    batch = context.run.task.sample("test", SAMPLES)
    model.deq.eval_solver = solve.Anderson(rtol=1e-10, max_evals=300)
    with torch.no_grad():
        operands = tuple(x.double() for x in model.inject(batch.inputs.double()))
        z = model.deq(*operands).value
    cell: Any = model.deq.cell
    eye = torch.eye(z.shape[1], dtype=torch.float64)
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in NEUMANN}
    for sample in range(len(z)):
        own = [x[sample : sample + 1] for x in operands]
        at = z[sample : sample + 1]

        def f(v: Tensor, own: list[Tensor] = own) -> Tensor:
            return cell(v, *own)[0]

        j = cast(Any, torch.autograd.functional.jacobian(f, at))[:, 0]
        m = _parameter_jacobian(cell, at, own)
        values = torch.linalg.svdvals(m)
        kappa = float(values[0] / values[-1])
        for name, (steps, damping) in NEUMANN.items():
            left_out = torch.linalg.matrix_power(damping * j + (1 - damping) * eye, steps)
            error = float(torch.linalg.matrix_norm(left_out, 2))
            safe = _least((eye - left_out) @ m @ m.T) > 0
            found[name].append((error < kappa**-2, error < 1 / kappa, safe, error, kappa))
    for name, rows in found.items():
        each = torch.tensor(rows, dtype=torch.float64)
        met, sharp, safe = each[:, :3].mean(0).tolist()
        error, kappa = each[:, 3:].median(0).values.tolist()
        row = {"estimator": name, "met": met, "sharp": sharp, "safe": safe}
        yield row | {"error": error, "kappa": kappa}


def _parameter_jacobian(cell: Any, z: Tensor, operands: list[Tensor]) -> Tensor:
    """df/dtheta at one sample, `(entries, parameters)`, with the injection as a parameter too."""
    parameters = [p for p in cell.parameters() if p.requires_grad]
    inputs = [x.detach().requires_grad_() for x in operands]
    out = cell(z, *inputs)[0]
    rows: list[Tensor] = []
    for i in range(len(out)):
        grads = torch.autograd.grad(
            out[i], [*parameters, *inputs], retain_graph=True, allow_unused=True
        )
        rows.append(torch.cat([g.flatten() for g in grads if g is not None]))
    return torch.stack(rows)


# --- The study ------------------------------------------------------------------------------------


SEEDS, TRAINED = range(10), range(3)
BOUNDED = {True: "norm of W below .95", False: "not bounded"}


def points(scale: Scale) -> list[Point]:
    return [
        *(Point({"what": "cosine", **each}, [cosines]) for each in grid(layer=LAYERS, seed=SEEDS)),
        *(Point({"what": "theorem", "bound": bound, "seed": 0}, [theorem]) for bound in BOUNDS),
        *(
            Point(
                {"what": "trained", **each},
                [check_condition],
                {"run": Training(_digits(**each), 0.5)},
            )
            for each in grid(bounded=BOUNDED, seed=TRAINED)
        ),
    ]


def _digits(bounded: bool, seed: int) -> Recipe:
    """The recipe digits, whose weights have a bounded norm, or without the bound."""
    words = ["--seed", str(seed), *([] if bounded else ["--model.bound", "null"])]
    return recipes.load("digits", words)


STUDY = Study(
    item="Figure 5.1, Theorem 4",
    title="Inexact gradients of a random layer",
    points=points,
    views=[
        Pivot(
            title="Figure 5.1: cosine with the exact gradient",
            index={"estimator": "gradient", "damping": "damping", "steps": "k"},
            each="steps",
            where={"what": "cosine"},
            across="layer",
            words={"layer": {name: name for name in LAYERS}},
            values={"{level}": spread("cosine", 1, ".4f")},
            note=f"Of W and x together, {len(SEEDS)} seeds, mean ± standard deviation. k = 1 "
            "undamped is the Jacobian-free gradient; k of SHINE: iterations that refine it. The "
            "exact gradient is at a solution to 1e-13; UPG and NPG begin at what at most 100 plain "
            "iterations to 1e-5 find, as published, SHINE at Broyden's.",
        ),
        Pivot(
            title="Figure 5.1: cross-checks",
            index={"layer": "layer"},
            where={"what": "cosine"},
            whole=True,
            values={
                "1 - cosine of BPTT, largest": lambda rows: f"{1 - rows['bptt'].min():.1e}",
                "UPG from NPG, relative, largest": lambda rows: f"{rows['difference'].max():.1e}",
            },
            note="BPTT: backpropagation through 1,000 plain iterations, beside the exact gradient. "
            "UPG and NPG of all k and dampings, at a solution to 1e-13, where theory has them "
            "equal.",
        ),
        Pivot(
            title="Theorem 4: is (5.5) ever wrong?",
            index={"bound": "|| (I - J) A - df/dtheta || below"},
            where={"what": "theorem"},
            values={
                "draws": first("draws"),
                "counter-examples": first("counter_examples"),
                "smallest <inexact, exact> / (sigma_min |h|)²": first("smallest"),
            },
            note=f"{DRAWS:,} draws of J, df/dtheta and A, half of them at .999 of the bound; h = "
            "(I - J)^-T dl/dz*. A counter-example is a draw in which some loss has an inexact "
            "gradient 90 degrees or more from the exact one. (5.4) is sufficient, and looser "
            "than it need be by kappa = sigma_max / sigma_min: below sigma_min it holds as well, "
            "and from there on it fails.",
        ),
        Pivot(
            title="Theorem 4 on trained layers: the condition (5.8)",
            index={"bounded": "weights", "estimator": "gradient"},
            each="met",
            where={"what": "trained"},
            words={"bounded": BOUNDED},
            values={
                "1 / kappa² met, % of samples": mean("met", 100),
                "1 / kappa met, % of samples": mean("sharp", 100),
                "within 90 degrees for every loss, %": mean("safe", 100),
                "||(I - J) D - I||, median": mean("error"),
                "kappa of df/dtheta, median": mean("kappa"),
            },
            note=f"The recipe digits, {len(TRAINED)} seeds, {SAMPLES} test samples each, the "
            "injection being one of the parameters. The recipe bounds the norm of W. A layer that "
            "meets no condition may still learn well: a loss has one gradient, not every one.",
        ),
        *(
            Lines(
                "steps",
                "cosine",
                by=["damping"],
                where={"what": "cosine", "layer": name, "estimator": "NPG"},
                label=lambda damping: f"NPG, damping {damping:g}",
                band=True,
                style="marked",
            ).chart(f"Figure 5.1: {name}", "k", "cosine", whole_x=True)
            for name in LAYERS
        ),
    ],
)
