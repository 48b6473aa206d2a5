"""Signals as networks of coordinates: images, sounds, films and shapes."""

from equilibria.run.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "imfn": ".model.configs:IMFNConfig",
        "isiren": ".model.configs:ISIRENConfig",
        "mfn": ".model.configs:MFNConfig",
        "siren": ".model.configs:SIRENConfig",
        "siren-injected": ".model.configs:InjectedSIRENConfig",
    },
    data={
        ".data.sets:SignalSet": {
            "bach": ".data.sets:BACH",
            "photographs": ".data.sets:PHOTOGRAPHS",
            "street": ".data.sets:STREET",
            "text-images": ".data.sets:TEXT_IMAGES",
        }
    },
    tasks={"signal": ".task.reading:SignalRepresentation"},
    commands={
        "encode": (
            "encode an image, a sound, a film or a shape as a small network",
            ".commands.encode",
        ),
        "decode": ("decode such a file at any size, with exact derivatives", ".commands.decode"),
    },
    galleries={"signal": ".gallery:GALLERY"},
)
