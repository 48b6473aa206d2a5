"""Tasks whose instances take as many steps as they ask for: parities, words, mazes, sudoku."""

from equilibria.run.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "reasoner": ".model.reasoner:ReasonerConfig",
        "fixed-depth": ".model.reasoner:FixedDepthConfig",
        "sequence-lstm": ".model.reasoner:SequenceLSTMConfig",
    },
    tasks={
        "parity": ".task.reasoning:PrefixParity",
        "words": ".task.reasoning:GroupWords",
        "mazes": ".task.reasoning:Mazes",
        "sudoku": ".task.reasoning:Sudoku",
    },
)
