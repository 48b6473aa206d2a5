"""Signals as networks of coordinates: images, sounds, films and shapes."""

from equilibria.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "imfn": "equilibria.models.representation.configs:IMFNConfig",
        "isiren": "equilibria.models.representation.configs:ISIRENConfig",
        "mfn": "equilibria.models.representation.configs:MFNConfig",
        "siren": "equilibria.models.representation.configs:SIRENConfig",
        "siren-injected": "equilibria.models.representation.configs:InjectedSIRENConfig",
    },
    data={
        "equilibria.data.signals.sets:SignalSet": {
            "bach": "equilibria.data.signals.recording:BACH",
            "photographs": "equilibria.data.signals.photographs:PHOTOGRAPHS",
            "street": "equilibria.data.signals.street:STREET",
            "text-images": "equilibria.data.signals.lettering:TEXT_IMAGES",
        },
    },
    tasks={
        "signal": "equilibria.tasks.representation.config:SignalRepresentation",
    },
    commands={
        "encode": (
            "encode an image, a sound, a film or a shape as a small network",
            "equilibria.cli.encode",
        ),
        "decode": (
            "decode such a file at any size, with exact derivatives",
            "equilibria.cli.decode",
        ),
    },
    galleries={
        "signal": "equilibria.train.gallery.represented:GALLERY",
    },
)
