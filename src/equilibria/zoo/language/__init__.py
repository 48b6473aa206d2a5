"""Language: models of sequences of tokens, texts, and generation."""

from equilibria.run.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "deq-transformer": ".model.architectures:DEQTransformerConfig",
        "deq-trellisnet": ".model.architectures:DEQTrellisNetConfig",
        "gru": ".model.recurrent:GRUConfig",
        "lstm": ".model.recurrent:LSTMConfig",
        "recurrent-lm": ".model.recurrent:CellLanguageConfig",
        "transformer-xl": ".model.architectures:TransformerXLConfig",
        "trellisnet": ".model.architectures:TrellisNetConfig",
    },
    data={
        ".data.corpus:Corpus": {
            "ptb": ".data.published:PTB",
            "wikitext2": ".data.published:WIKITEXT2",
            "wikitext103": ".data.published:WIKITEXT103",
        }
    },
    tasks={"language_modeling": ".task.language:LanguageModeling"},
    commands={
        "generate": ("continue a prompt with a trained language model", ".commands.generate")
    },
    options={"evaluate.memory": ".commands.context:MemoryOption"},
)
