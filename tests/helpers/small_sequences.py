"""Small sequence models in float64, each ready to be solved far below any tolerance of a test."""

import torch

from applications import present
from equilibria.run import models
from equilibria.solve import GMRES, Anderson, Implicit

VOCABULARY = 11
SHARED = {"vocabulary": VOCABULARY, "embedding_initial": 0.5}
TRANSFORMER = {
    **SHARED,
    "width": 16,
    "heads": 2,
    "inner": 16,
    "memory": 6,
    "window": 5,
    "initial": "orthogonal",
    "scale": 0.6,
    "injection_scale": 1.0,
}
TRELLIS = {**SHARED, "width": 6, "hidden": 4, "scale": 0.4}

SMALL = {
    "deq-transformer": TRANSFORMER,
    "deq-trellisnet": TRELLIS,
    "gru": {**SHARED, "width": 5, "hidden": 6},
    "lstm": {**SHARED, "width": 5, "hidden": 6},
    "transformer-xl": {**TRANSFORMER, "layers": 3},
    "trellisnet": {**TRELLIS, "layers": 3},
}
EXACT = {
    "solver": Anderson(rtol=1e-11, max_evals=400),
    "adjoint": Implicit(linear=GMRES(rtol=1e-11, max_evals=400)),
}

# Where the output of a time is the same wherever segments end. In a tied stack the memory holds the
# last layer's states for all layers, as in an equilibrium model that has not converged: not there.
SEGMENTED = {
    "deq-transformer": {},
    "deq-transformer-pre": {"pre_norm": True},
    "deq-transformer-kernel": {"injection_kernel": 3, "direct": True},
    "deq-trellisnet": {},
    "deq-trellisnet-dilated": {"kernel": 3, "dilation": 2},
    "transformer-xl": {"tied": False, "injection_scale": None},
    "trellisnet": {"tied": False, "kernel": 3, "dilation": 2},
    "lstm": {},
    "gru": {"layers": 2},
}

if present("recurrent"):  # whose cells these have
    from equilibria.zoo.recurrent.model import ERNNOptions, LSTMOptions

    SMALL["recurrent-lm"] = {
        **SHARED,
        "width": 5,
        "hidden": 6,
        "cell": ERNNOptions(step_size=0.3),
    }
    SEGMENTED["recurrent-lm"] = {"layers": 2}
    SEGMENTED["recurrent-lm-lstm"] = {"cell": LSTMOptions()}


def build(name, seed=0, **overrides):
    """A model of the registry; words that follow its name are a variant's."""
    torch.manual_seed(seed)
    name = next(known for known in sorted(SMALL, reverse=True) if name.startswith(known))
    layer = EXACT if name.startswith("deq") else {}
    return models.create(name, **{**SMALL[name], **layer, **overrides}).double()


def tokens(*shape, seed=1):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))
