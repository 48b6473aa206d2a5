"""Networks for optical flow whose refinement converges without training, and frames for them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from equilibria.run.folder import Folder
from equilibria.run.recipe import Recipe
from equilibria.run.weights import save_weights
from equilibria.solve import Anderson
from equilibria.zoo.flow.model.configs import DEQRAFTConfig, RAFTConfig
from equilibria.zoo.flow.task import OpticalFlow
from flow_tree import MINI


@torch.no_grad()
def settle(model):
    """Make f <- f + tanh(c(images, f) - .3 f) of a refinement, which converges to c / .3.

    The first two hidden channels carry it; of the correlation c takes a little.
    """
    cell = getattr(model, "deq", model).cell
    widths = cell.widths
    generator = torch.Generator().manual_seed(1)
    for each in cell.gru.passes:
        for part in (each.gates, each.candidate):
            part.weight.zero_()
            part.bias.zero_()
        each.gates.bias[: widths.hidden] = 10.0  # z = 1: h is the candidate
        each.candidate.bias[2] = 0.5  # h is not 0 at the end, where a tolerance is relative to it
        weight = each.candidate.weight
        middle = weight[:, :, weight.shape[2] // 2, weight.shape[3] // 2]
        motion = widths.hidden + widths.context
        end = motion + widths.motion - 2
        for channel in range(2):
            drawn = torch.randn(end - motion, generator=generator)
            middle[channel, motion:end] = 0.05 * drawn
            middle[channel, end + channel] = -0.3
    for part in (cell.head[0], cell.head[2]):
        part.weight.zero_()
        part.bias.zero_()
    for channel in range(2):
        cell.head[0].weight[2 * channel, channel, 1, 1] = 1.0
        cell.head[0].weight[2 * channel + 1, channel, 1, 1] = -1.0
        cell.head[2].weight[channel, 2 * channel, 1, 1] = 1.0
        cell.head[2].weight[channel, 2 * channel + 1, 1, 1] = -1.0
    return model


def save_run(path, config=None, solver=None, adjoint=None):
    """Write the run folder of a network that nothing has trained."""
    config = config or DEQRAFTConfig(**MINI, weight_norm=False)
    options = {"solver": solver or Anderson(rtol=1e-4, max_evals=60)}
    if adjoint is not None:
        options["adjoint"] = adjoint
    if not config.implicit:
        options = {"solver": None, "adjoint": None}
    recipe = Recipe(task=OpticalFlow(), model=config, **options)
    torch.manual_seed(0)
    folder = Folder(Path(path))
    folder.create(recipe)
    save_weights(folder.weights, settle(config.build(**recipe.layer())))
    return folder.path


def save_raft(path):
    return save_run(path, RAFTConfig(**MINI, steps=7))


def scene(seed, height=40, width=48):
    """An image of squares in random colours, (height, width, 3)."""
    counts = -(-height // 16), -(-width // 16), 3
    colors = np.random.default_rng(seed).integers(0, 256, counts)
    return np.kron(colors, np.ones((16, 16, 1), np.int64))[:height, :width].astype(np.uint8)


def save_frames(folder, count=4, cut=None, size=(40, 48), names="f{}.png"):
    """Write frames that move to the right and downwards; from frame `cut` on another scene."""
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        image = scene(k >= cut if cut else 0, *size)
        Image.fromarray(np.roll(image, (k, k), (0, 1))).save(folder / names.format(k))
    return folder
