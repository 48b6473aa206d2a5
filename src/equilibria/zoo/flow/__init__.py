"""Optical flow: networks, pairs of images with their flow, and the flow of a film."""

from equilibria.run.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "deq-gma": ".model.configs:DEQGMAConfig",
        "deq-raft": ".model.configs:DEQRAFTConfig",
        "deq-raft-small": ".model.configs:DEQRAFTSmallConfig",
        "gma": ".model.configs:GMAConfig",
        "raft": ".model.configs:RAFTConfig",
        "raft-small": ".model.configs:RAFTSmallConfig",
    },
    data={
        ".data.pairs:FlowSet": {
            "chairs": ".data.published:CHAIRS",
            "hd1k": ".data.published:HD1K",
            "kitti": ".data.published:KITTI",
            "layers": ".data.layers:LAYERS",
            "sintel": ".data.published:SINTEL",
            "things": ".data.published:THINGS",
        }
    },
    folders={".data.pairs:FlowSet": ".data.folder:OWN"},
    tasks={"optical_flow": ".task.task:OpticalFlow"},
    commands={"flow": ("find the optical flow of two images, frames or a video", ".commands.flow")},
    galleries={"flow": ".gallery:GALLERY"},
)
