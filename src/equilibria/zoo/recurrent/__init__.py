"""Sequences with a class: recurrent networks, sensors, sound and reviews."""

from equilibria.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "recurrent": "equilibria.models.recurrent.classifier:RecurrentConfig",
    },
    data={
        "equilibria.data.sequences.samples:SequenceSet": {
            "dsa19": "equilibria.data.sequences.dsa:DSA19",
            "google12": "equilibria.data.sequences.speech:GOOGLE12",
            "google30": "equilibria.data.sequences.speech:GOOGLE30",
            "har2": "equilibria.data.sequences.har:HAR2",
            "har6": "equilibria.data.sequences.har:HAR6",
            "noisy-cifar10": "equilibria.data.sequences.pixels:NOISY_CIFAR10",
            "noisy-mnist": "equilibria.data.sequences.pixels:NOISY_MNIST",
            "permuted-mnist": "equilibria.data.sequences.pixels:PERMUTED_MNIST",
            "pixel-mnist": "equilibria.data.sequences.pixels:PIXEL_MNIST",
            "yelp5": "equilibria.data.sequences.yelp:YELP5",
        },
    },
    folders={
        "equilibria.data.sequences.samples:SequenceSet": "equilibria.data.sequences.user:OWN",
    },
    tasks={
        "sequence_classification": "equilibria.tasks.sequences:SequenceClassification",
    },
    classes={
        "equilibria.models.recurrent.cell:CellOptions": {
            "ERNN": "equilibria.models.recurrent.ernn:ERNNOptions",
            "ImplicitERNN": "equilibria.models.recurrent.implicit:ImplicitERNNOptions",
            "ImplicitEulerRNN": "equilibria.models.recurrent.implicit:ImplicitEulerOptions",
            "RNN": "equilibria.models.recurrent.plain:RNNOptions",
            "LSTM": "equilibria.models.recurrent.gated:LSTMOptions",
            "GRU": "equilibria.models.recurrent.gated:GRUOptions",
            "UGRNN": "equilibria.models.recurrent.gated:UGRNNOptions",
            "FastRNN": "equilibria.models.recurrent.plain:FastRNNOptions",
            "FastGRNN": "equilibria.models.recurrent.gated:FastGRNNOptions",
            "AntisymmetricRNN": "equilibria.models.recurrent.plain:AntisymmetricRNNOptions",
            "SpectralRNN": "equilibria.models.recurrent.spectral:SpectralRNNOptions",
        },
    },
)
