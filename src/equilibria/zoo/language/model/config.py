"""What the configs of all sequence models say: the vocabulary, its embedding and softmax."""

from dataclasses import dataclass

from equilibria.checks import check_fields
from equilibria.run.models.base import ModelConfig
from equilibria.zoo.language.model.lexicon import Lexicon

__all__ = ["SequenceConfig"]


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(ModelConfig):
    """The architecture of a model of sequences of tokens.

    Args:
        vocabulary: number of tokens; None for that of the data, which the task fills in.
        cutoffs: first token of each cluster of the adaptive embedding and softmax but the first,
            tokens being numbered from the most frequent on; () for plain ones.
        division: by what the embeddings of each cluster are narrower than those of the one before.
        tied_embedding: embedding and softmax share their tables.
        embedding_scale: factor of the embeddings; None for the square root of their width.
        embedding_initial: standard deviation of the embeddings' weights at the start.
        embedding_dropout: share of the vocabulary that is set to zero in a training step.
        input_dropout: share of the embeddings' features that is dropped, at all times alike.
        output_dropout: share of the features before the softmax that is dropped, at all times
            alike.
    """

    vocabulary: int | None = None
    cutoffs: tuple[int, ...] = ()
    division: int = 1
    tied_embedding: bool = True
    embedding_scale: float | None = None
    embedding_initial: float = 0.01
    embedding_dropout: float = 0.0
    input_dropout: float = 0.0
    output_dropout: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "[0, 1)", "embedding_dropout", "input_dropout", "output_dropout")
        check_fields(self, "[0, inf)", "embedding_initial")
        check_fields(self, "(0, inf)", "embedding_scale")

    def lexicon(self, width: int, features: int) -> Lexicon:
        """Return a new embedding of `width` columns and a softmax that reads `features`.

        Raises:
            ValueError: the vocabulary is not known yet, or the numbers do not fit together.
        """
        if self.vocabulary is None:
            raise ValueError(
                "the vocabulary is None, which stands for that of the data: give the number of "
                "tokens as `vocabulary` where a model is built without a task"
            )
        return Lexicon(
            self.vocabulary,
            width,
            features=features,
            cutoffs=self.cutoffs,
            division=self.division,
            tied=self.tied_embedding,
            dropout=self.embedding_dropout,
            scale=self.embedding_scale,
            initial=self.embedding_initial,
        )
