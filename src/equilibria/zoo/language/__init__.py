"""Language: models of sequences of tokens, texts, and generation."""

from equilibria.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "deq-transformer": "equilibria.models.sequence.architectures:DEQTransformerConfig",
        "deq-trellisnet": "equilibria.models.sequence.architectures:DEQTrellisNetConfig",
        "gru": "equilibria.models.sequence.recurrent:GRUConfig",
        "lstm": "equilibria.models.sequence.recurrent:LSTMConfig",
        "recurrent-lm": "equilibria.models.sequence.recurrent:CellLanguageConfig",
        "transformer-xl": "equilibria.models.sequence.architectures:TransformerXLConfig",
        "trellisnet": "equilibria.models.sequence.architectures:TrellisNetConfig",
    },
    data={
        "equilibria.data.text.corpus:Corpus": {
            "ptb": "equilibria.data.text.named:PTB",
            "wikitext2": "equilibria.data.text.named:WIKITEXT2",
            "wikitext103": "equilibria.data.text.named:WIKITEXT103",
        },
    },
    tasks={
        "language_modelling": "equilibria.tasks.language:LanguageModelling",
    },
    commands={
        "generate": ("continue a prompt with a trained language model", "equilibria.cli.generate"),
    },
    options={
        "evaluate.memory": "equilibria.cli.context:Memory",
    },
)
