"""Optical flow: networks, pairs of images with their flow, and the flow of a film."""

from equilibria.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "deq-gma": "equilibria.models.flow.configs:DEQGMAConfig",
        "deq-raft": "equilibria.models.flow.configs:DEQRAFTConfig",
        "deq-raft-small": "equilibria.models.flow.configs:DEQRAFTSmallConfig",
        "gma": "equilibria.models.flow.configs:GMAConfig",
        "raft": "equilibria.models.flow.configs:RAFTConfig",
        "raft-small": "equilibria.models.flow.configs:RAFTSmallConfig",
    },
    data={
        "equilibria.data.flow.pairs:FlowSet": {
            "chairs": "equilibria.data.flow.chairs:CHAIRS",
            "hd1k": "equilibria.data.flow.hd1k:HD1K",
            "kitti": "equilibria.data.flow.kitti:KITTI",
            "layers": "equilibria.data.flow.layers:LAYERS",
            "sintel": "equilibria.data.flow.sintel:SINTEL",
            "things": "equilibria.data.flow.things:THINGS",
        },
    },
    folders={
        "equilibria.data.flow.pairs:FlowSet": "equilibria.data.flow.folder:OWN",
    },
    tasks={
        "optical_flow": "equilibria.tasks.flow.task:OpticalFlow",
    },
    commands={
        "flow": ("find the optical flow of two images, frames or a video", "equilibria.cli.flow"),
    },
    galleries={
        "flow": "equilibria.train.gallery.flowing:GALLERY",
    },
)
