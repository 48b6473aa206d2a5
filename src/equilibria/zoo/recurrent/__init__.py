"""Sequences with a class: recurrent networks, sensors, sound and reviews."""

from equilibria.run.registry import Application

APPLICATION = Application(
    package=__name__,
    models={"recurrent": ".model.classifier:RecurrentConfig"},
    data={
        "equilibria.zoo.io.sequences:SequenceSet": {
            "dsa19": ".data.dsa:DSA19",
            "google12": ".data.speech:GOOGLE12",
            "google30": ".data.speech:GOOGLE30",
            "har2": ".data.har:HAR2",
            "har6": ".data.har:HAR6",
            "noisy-cifar10": ".data.pixels:NOISY_CIFAR10",
            "noisy-mnist": ".data.pixels:NOISY_MNIST",
            "permuted-mnist": ".data.pixels:PERMUTED_MNIST",
            "pixel-mnist": ".data.pixels:PIXEL_MNIST",
            "yelp5": ".data.yelp:YELP5",
        }
    },
    folders={"equilibria.zoo.io.sequences:SequenceSet": ".data.user:OWN"},
    tasks={"sequence_classification": ".task.sequences:SequenceClassification"},
    classes={
        "equilibria.nn.recurrent.cell:CellOptions": {
            "ERNN": ".model.ernn:ERNNOptions",
            "ImplicitERNN": ".model.implicit:ImplicitERNNOptions",
            "ImplicitEulerRNN": ".model.implicit:ImplicitEulerOptions",
            "RNN": ".model.plain:RNNOptions",
            "LSTM": ".model.gated:LSTMOptions",
            "GRU": ".model.gated:GRUOptions",
            "UGRNN": ".model.gated:UGRNNOptions",
            "FastRNN": ".model.plain:FastRNNOptions",
            "FastGRNN": ".model.gated:FastGRNNOptions",
            "AntisymmetricRNN": ".model.plain:AntisymmetricRNNOptions",
            "SpectralRNN": ".model.plain:SpectralRNNOptions",
        }
    },
)
