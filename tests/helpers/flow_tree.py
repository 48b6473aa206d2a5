"""A tiny recipe for optical flow, which tests of the frame train too where there is flow."""

MINI = {
    "encoder": "small",
    "stages": (8, 8, 12),
    "features": 8,
    "levels": 2,
    "radius": 2,
    "mask": 8,
    "hidden": 8,
}


TREE = {
    "task": {"name": "optical_flow", "size": [32, 40], "samples": 8, "test": 4, "shift": 2.0},
    "model": {"name": "deq-raft", **MINI},
    "solver": {"name": "Anderson", "rtol": 1e-3, "max_evals": 6},
    "adjoint": {"name": "JacobianFree"},
    "correction": {"name": "FixedPointCorrection", "count": 1, "gamma": 0.8},
    "epochs": 1,
    "batch_size": 4,
    "eval_batch_size": 3,
    "probes": 1,
}
