"""What the studies of optical flow share: networks, errors, consecutive frames, costs."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from equilibria.nn import using
from equilibria.run import evaluation, memory
from equilibria.run import recipe as recipes
from equilibria.run.data import load
from equilibria.run.models import EquilibriumModel
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.measures import timing
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Context, Scale
from equilibria.run.studies.training import Training
from equilibria.run.tasks import Batch
from equilibria.run.trainer import Trainer
from equilibria.run.trees import to_device
from equilibria.solve import JacobianFree, SolveWarning, Status
from equilibria.zoo.flow.data import FlowSet
from equilibria.zoo.flow.model import DEQFlow
from equilibria.zoo.flow.model.configs import RAFTConfig
from equilibria.zoo.flow.predict.tracking import Follower
from equilibria.zoo.vision.data.segmentation import SegmentationSet
from papers.measures import counterpart
from papers.published import BAI_2022, read_published

# --- Small networks for optical flow, and their trainings on generated pairs ----------------------

SEEDS = (0, 1, 2)
RAFT, THESIS = "RAFT, 12 steps", "DEQ-RAFT"
RANDOM = "DEQ-RAFT, random starts"
"""The solves of every second training sample begin anywhere."""

_NONE = ("--correction.name", "null")
_EXACT = (
    *("--adjoint.name", "Implicit", "--adjoint.linear.name", "Anderson"),
    *("--adjoint.linear.period", "3"),
    *("--adjoint.linear.rtol", "1e-2", "--adjoint.linear.max_evals", "18"),
)
NETWORKS: Mapping[str, tuple[Sequence[str], float]] = {
    RAFT: ((), 15.0),
    THESIS: ((), 15.0),
    RANDOM: (("--model.start_noise", "8"), 15.0),
    "DEQ-RAFT, no correction": (_NONE, 15.0),
    "DEQ-RAFT, exact gradient": ((*_NONE, *_EXACT), 25.0),
    "DEQ-RAFT, exact gradient, Jacobian penalty": (
        (*_NONE, *_EXACT, "--regularizer.gamma", "0.1", "--regularizer.probability", "0.4"),
        30.0,
    ),
    "DEQ-RAFT, recipe of Chairs": (("--solver.max_evals", "36", "--correction.count", "5"), 25.0),
}
"""What is changed of the recipe, and an estimate of its minutes."""


def training_of(network: str, seed: int, scale: Scale = "cpu") -> Training:
    """Return the training of one of `NETWORKS`."""
    words, minutes = NETWORKS[network]
    words = ["--seed", str(seed), *words]
    if scale == "gpu":
        recipe: Any = recipes.load("flow-layers-gpu", words)
        if network == RAFT:
            recipe = counterpart.with_model(recipe, RAFTConfig(), "RAFT on generated pairs")
        return Training(recipe, 240)
    name = "flow-layers-raft" if network == RAFT else "flow-layers"
    return Training(recipes.load(name, words), minutes)


# --- End-point errors and residuals of trained flow networks --------------------------------------

RESIDUAL_AT = (12, 18)
"""Evaluations after which residuals are measured."""

FAR = 20.0
"""Mean motion at full size, in pixels, at and above which a scene is left out of the mean."""

ALONE = JacobianFree()
"""The solve and nothing else: a phantom gradient's steps would be evaluations too."""

TINY = 1e-12


@identified_as("_errors.reference")
def reference(context: Context) -> dict[str, float]:
    """`zero`: the end-point error of no flow at all on the test pairs."""
    return {"zero": context.run.task.reference("test")["epe"]}


@identified_as("_errors.residuals")
def residuals(context: Context) -> Iterable[dict[str, Any]]:
    """Of each test pair its end-point error, the relative residual of the state, of all leaves
    together, and the pixels by which the flow still `moves`, on average, after some `evals` of the
    recipe's solver from zero; none of an explicit network."""
    run = context.run.load()
    model = run.model
    if not isinstance(model, DEQFlow):
        return
    for evals in RESIDUAL_AT:
        solver = replace(model.deq.solver, rtol=0.0, atol=0.0, max_evals=evals, patience=None)
        pair = 0
        with torch.no_grad(), using(model, solver=solver, adjoint=ALONE):
            for batch in run.data.batches("test", 8):
                found = model(batch.inputs)
                moves = model.moves(found.solution.value, batch.inputs).mean((1, 2))
                rows = (_errors(found.output, batch), found.solution.stats.residual, moves)
                for epe, residual, moved in zip(*(row.tolist() for row in rows), strict=True):
                    figures = {"epe": epe, "residual": residual, "moves": moved}
                    yield {"pair": pair, "evals": evals, **figures}
                    pair += 1


@identified_as("_errors.starts")
def starts(context: Context) -> dict[str, Any]:
    """Solves of the test pairs from zero, from the true flow and from noise, each to the tolerance
    within 100 evaluations: `converged`, the share of pairs that converge from all three, `agree`,
    the share of these whose flows differ by at most .1 pixel on average over the image, and by how
    many pixels those `from_truth` and `from_noise` differ from that of zero, the median of all."""
    run = context.run.load()
    model = cast(EquilibriumModel, run.model)
    solver = replace(model.deq.solver, max_evals=100)
    generator = torch.Generator().manual_seed(0)
    solved, distances = [], []
    with torch.no_grad(), using(model, solver=solver, adjoint=ALONE):
        for batch in run.data.batches("test", 8):
            cold = model(batch.inputs)
            hidden, flow = cold.solution.value
            true = functional.interpolate(batch.targets[0], flow.shape[2:], mode="area") / 8
            noise = torch.randn(flow.shape, generator=generator) * true.std()
            begun = [(torch.zeros_like(hidden), start) for start in (true, noise)]
            others = [model(batch.inputs, z0=z0) for z0 in begun]
            status = torch.stack([p.solution.status for p in (cold, *others)])
            apart = [(p.output - cold.output).norm(dim=1).mean((1, 2)) for p in others]
            solved.append((status == Status.CONVERGED).all(0))
            distances.append(torch.stack(apart))
    done, apart = torch.cat(solved), torch.cat(distances, 1)
    agreeing = int((done & (apart <= 0.1).all(0)).sum())
    from_truth, from_noise = apart.median(1).values.tolist()
    return {
        "pairs": len(done),
        "converged": int(done.sum()) / len(done),
        "agree": agreeing / max(int(done.sum()), 1),
        "from_truth": from_truth,
        "from_noise": from_noise,
    }


@identified_as("_errors.scenes")
def scenes(context: Context) -> Iterable[dict[str, Any]]:
    """Of each pair of Sintel at half its size: `epe` and `zero`, in pixels of that size, and
    `motion`, the mean length of the flow at full size."""
    run = context.run.load()
    pairs = cast(FlowSet, load("sintel", context.run.data_dir, kind=FlowSet)).test
    for place in range(len(pairs)):
        pair = pairs.pair(place)
        known = pair.valid[None, None].float()
        share = functional.avg_pool2d(known, 2)
        flow = functional.avg_pool2d(pair.flow[None] * known, 2) / share.clamp_min(TINY) / 2
        images = [functional.avg_pool2d(x[None].float(), 2) for x in (pair.first, pair.second)]
        batch = Batch((images[0], images[1]), (flow, share[:, 0] == 1))
        with torch.no_grad():
            output = run.model(batch.inputs).output
        motion = pair.flow.norm(dim=0)[pair.valid].mean()
        yield {
            "pair": place,
            "epe": float(_errors(output, batch)),
            "zero": float(_errors(torch.zeros_like(output), batch)),
            "motion": float(motion),
        }


def gain(rows: Frame) -> float:
    """The geometric mean of error over zero-flow error, of scenes that move less than `FAR`."""
    near = rows[rows["motion"] < FAR]
    return math.exp((near["epe"] / near["zero"]).map(math.log).mean())


def _errors(output: Tensor, batch: Batch) -> Tensor:
    """The mean end-point error of each pair, over its valid pixels, `(batch,)`."""
    flow, valid = batch.targets
    each = (output - flow).norm(dim=1) * valid
    return each.sum((1, 2)) / valid.sum((1, 2)).clamp_min(1)


# --- Consecutive frames: evaluations from zero and from the equilibrium of the pair before --------

SIZE = (180, 240)
MAX_EVALS = 100
TOLERANCE = {"rtol": (5e-3, 0.0), "atol": (0.0, 0.00625)}
"""Half of the recipe's: relative for the hidden state, and .05 pixels at full size for the flow."""
CUTS = 8
"""Places where another drive is shown in between."""

Images = tuple[Tensor, Tensor]


def _drive(context: Context) -> tuple[list[Tensor], list[Tensor]]:
    """The 101 frames of CamVid at about 15 Hz, and as many of other drives, (1, 3, h, w) each."""
    found = cast(
        SegmentationSet, load("camvid", context.run.data_dir, kind=SegmentationSet, size=SIZE)
    )
    assert found.valid is not None
    drives = [
        [images.image(k)[None].float() for k in range(len(images))]
        for images in (found.valid, found.train)
    ]
    return drives[0], drives[1]


@torch.no_grad()
def _solve(model: DEQFlow, images: Images, start: Any) -> Any:
    return model(images, z0=start)


@identified_as("_frames.frames")
def frames(context: Context) -> Iterable[dict[str, Any]]:
    """Of each pair of frames `cold`, `reuse` and `flow_only`: evaluations from zero, from the
    hidden state and the flow of the pair before, and from its flow alone, to one tolerance, each
    from zero after a pair whose solve did not converge, as `--reuse` does; whether it was `warm`,
    whether all have converged, and how far both flows are `apart` on average, in pixels."""
    run = context.run.load()
    model = cast(DEQFlow, run.model)
    drive, _ = _drive(context)
    solver = replace(model.deq.solver, **TOLERANCE, max_evals=MAX_EVALS)
    before: Any = None
    with using(model, solver=solver, adjoint=JacobianFree()):
        for place, images in enumerate(pairwise(drive)):
            cold = _solve(model, images, None)
            solves = {"cold": cold, "reuse": cold, "flow_only": cold}
            if before is not None:
                hidden, flow = before
                solves["reuse"] = _solve(model, images, before)
                solves["flow_only"] = _solve(model, images, (torch.zeros_like(hidden), flow))
            arrived = {
                name: int(p.solution.status) == Status.CONVERGED for name, p in solves.items()
            }
            if place:
                far = (solves["reuse"].output - cold.output).norm(dim=1).mean()
                yield {
                    "frame": place,
                    **{name: int(p.solution.stats.evals) for name, p in solves.items()},
                    "warm": before is not None,
                    "arrived": all(arrived.values()),
                    "apart": float(far),
                }
            before = solves["reuse"].solution.value if arrived["reuse"] else None


@identified_as("_frames.cuts")
def cuts(context: Context) -> Iterable[dict[str, Any]]:
    """At a cut to another drive the evaluations `cut_cold` from zero and `cut_reuse` as `--reuse`
    starts, `cut_blind` from the last equilibrium whatever is seen, and whether it is `noticed`."""
    run = context.run.load()
    model = cast(DEQFlow, run.model)
    drive, other = _drive(context)
    solver = replace(model.deq.solver, **TOLERANCE, max_evals=MAX_EVALS)
    with using(model, solver=solver, adjoint=JacobianFree()):
        for cut in range(CUTS):
            follower, last = Follower(), None
            begin = cut * (len(drive) // CUTS)
            shown = [*drive[begin : begin + 4], other[cut * (len(other) // CUTS)]]
            pairs = list(pairwise(shown))
            for place, images in enumerate(pairs):
                first, second = (x[0] for x in images)
                start, why = follower.start(first, second, follows=place > 0)
                found = _solve(model, images, start)
                if place == len(pairs) - 1:
                    starts = {"cut_cold": None, "cut_blind": last}
                    solves = {name: _solve(model, images, z0) for name, z0 in starts.items()}
                    yield {
                        "cut": cut,
                        "cut_reuse": int(found.solution.stats.evals),
                        **{name: int(p.solution.stats.evals) for name, p in solves.items()},
                        "noticed": why == "cut",
                    }
                last = found.solution.value
                follower.keep(last)


# --- Bytes and milliseconds of a training step of flow networks -----------------------------------


class _Given(nn.Module):
    """In place of what is computed once of a pair: the same, ready, so that it takes no memory in
    a step."""

    def __init__(self, operands: Any) -> None:
        super().__init__()
        self.operands = pytree.tree_map_only(
            Tensor, lambda x: x.detach().requires_grad_(), operands
        )

    def forward(self, x: Any) -> Any:
        del x
        return self.operands


def _trainers(context: Context) -> dict[str, Trainer]:
    """New networks, by their names, with their recipes' batches."""
    names = context.factors["networks"]
    trainers: dict[str, Trainer] = {}
    for name, recipe in zip(str(names).split("; "), context.reads, strict=True):
        accelerator = evaluation.accelerator(recipe.precision)
        trainers[name] = Trainer(recipe, context.tasks(recipe), accelerator)
    return trainers


@identified_as("_cost.bytes_of_refinement")
def bytes_of_refinement(context: Context) -> Iterable[dict[str, Any]]:
    """`bytes` of forward and backward of each `refined` network beyond its encoders: the peak less
    parameters and gradients, in float32, with the losses of its recipe."""
    for name, trainer in _trainers(context).items():
        model: Any = trainer.model.train()
        batch = to_device(trainer.batch(), trainer.accelerator.device)
        inputs, targets = batch.inputs, batch.targets
        with torch.no_grad():
            model.scene = _Given(model.scene(inputs))
        correction = trainer.recipe.correction
        solver = trainer.recipe.solver
        depths = () if correction is None else correction.depths(solver.max_evals if solver else 0)

        def step(
            model: Any = model,
            trainer: Trainer = trainer,
            inputs: Any = inputs,
            targets: Any = targets,
            depths: tuple[int, ...] = depths,
        ) -> None:
            implicit = isinstance(model, EquilibriumModel)
            prediction = model(inputs, **({"states": depths} if implicit else {}))
            accelerator, task = trainer.accelerator, trainer.task
            loss = evaluation.loss_of(model, task, prediction, targets, accelerator)
            if trainer.recipe.correction is not None:
                loss = loss + trainer.recipe.correction(
                    lambda z: task.loss(model, model.answer(z, inputs), targets),
                    prediction.solution.states,
                )
            loss.backward()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SolveWarning)  # of a network that has learned nothing
            step()  # which allocates the gradients
            yield {
                "refined": name,
                "bytes": memory.peak_bytes(step, next(model.parameters()).device),
            }


@identified_as("_cost.times_of_steps")
def times_of_steps(context: Context) -> Iterable[dict[str, Any]]:
    """`step_ms` of a training step of each `timed` network, all interleaved."""
    for name, each in timing.steps(_trainers(context)).items():
        yield {"timed": name, "step_ms": each["step"]}


# --- Rows of the tables of flow/pairs -------------------------------------------------------------

_TRAINING = ("sintel_clean", "sintel_final", "kitti_epe", "kitti_f1")


def from_paper() -> Iterable[Sequence[Any]]:
    """Errors on the training pairs of Sintel and KITTI, and of further trained networks on the
    hidden test pairs."""
    for row in read_published(BAI_2022, "Table 7.1"):
        if "sintel_clean" in row:
            yield [row["row"].removeprefix("C+T: "), *(row.get(name) for name in _TRAINING)]
        elif "test_clean" in row:
            name = row["row"].removeprefix("C+T+S+K+H: ")
            clean, final, f1 = (row.get(each) for each in ("test_clean", "test_final", "test_f1"))
            yield [f"{name}, all sets, test servers", clean, final, None, f1]


def correlations(data: Data) -> Iterable[Sequence[Any]]:
    """How residual and error go together, over the test pairs of all seeds."""
    (row,) = read_published(BAI_2022, "Figure 7.7")
    yield ["published, KITTI", None, None, row["pearson"], None, None]
    found = data.series("residual", on="generated")
    for name, evals in () if found.empty else product(NETWORKS, RESIDUAL_AT):
        rows = found[(found["network"] == name) & (found["evals"] == evals)]
        if len(rows):
            each = (rows[key] for key in ("residual", "moves"))
            yield [name, evals, *chain(*((x.mean(), rows["epe"].corr(x)) for x in each))]


def scene_rows(data: Data) -> Iterable[Sequence[Any]]:
    found = data.series("motion", on="Sintel")
    for name in () if found.empty else (RAFT, THESIS):
        rows = found[found["network"] == name]
        if len(rows):
            yield [name, rows["seed"].nunique(), gain(rows)]
