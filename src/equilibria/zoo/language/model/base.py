"""What every model of sequences is: tokens in, features out, and a softmax over the vocabulary."""

import abc
import copy
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from typing_extensions import override

from equilibria.nn import VariationalDropout
from equilibria.run.models.base import Model, Prediction
from equilibria.zoo.language.model.config import SequenceConfig

__all__ = ["SequenceModel", "require_batch"]


class SequenceModel(Model):
    """A model that reads tokens and predicts, at each time, the token that comes next.

    A long sequence is read in segments: what the model needs of those before is in the `carry` of
    the prediction. The output of a time depends on no later token.

    Args:
        config: of the vocabulary.
        width: features of the embeddings.
        features: what the softmax reads.
    """

    reads_segments = True

    def __init__(self, config: SequenceConfig, width: int, features: int) -> None:
        super().__init__()
        self.config = config
        self.lexicon = config.lexicon(width, features)
        self.input_dropout = VariationalDropout(config.input_dropout, shared=(1,))
        self.output_dropout = VariationalDropout(config.output_dropout, shared=(1,))

    @abc.abstractmethod
    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        """Return the features from which the softmax predicts the tokens that come next.

        Args:
            x: tokens (batch, time), int64.
            carry: of the prediction on the segment before; None at a beginning.

        Returns:
            The prediction: `output` (batch, time, features), `carry` a tree of detached tensors
            whose first axis is the batch.
        """

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (batch, time, width) of tokens (batch, time), with dropout."""
        if tokens.ndim != 2 or not tokens.numel():
            raise ValueError(
                "expected tokens of shape (batch, time), at least one; got shape "
                f"{tuple(tokens.shape)}"
            )
        return self.input_dropout(self.lexicon.embed(tokens))

    def losses(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return -log p(target) in nats, (batch, time).

        Args:
            output: features (batch, time, features) of a prediction.
            targets: tokens (batch, time) that come next; those below 0 are left out, loss 0.
        """
        return self.lexicon.losses(output, targets)

    def log_probs(self, output: Tensor) -> Tensor:
        """Return log p of every token, (..., vocabulary), from features (..., features)."""
        return self.lexicon.log_probs(output)

    @override
    def count_parameters(self) -> dict[str, int]:
        """Return the number of parameters, and without those of the lexicon."""
        whole = super().count_parameters()["parameters"]
        lexicon = sum(p.numel() for p in self.lexicon.parameters())
        return {"parameters": whole, "parameters_without_lexicon": whole - lexicon}

    @override
    def refuses_export(self) -> str:
        return (
            f"{type(self).__name__} is a language model, whose memory and vocabulary an exported "
            "file does not have: classifiers can be exported"
        )

    @override
    def strip_to_body(self, x: Tensor) -> Self:
        """Return a copy without the lexicon: tokens `x` are embedded once.

        Whatever it is called with, it reads the embeddings of `x`, which are constants.
        """
        twin = copy.deepcopy(self)
        with torch.no_grad():
            embedded = twin.lexicon.embed(x)
        twin.lexicon = cast(Any, _Embedded(embedded))
        return twin


class _Embedded(nn.Module):
    """Stands in for a lexicon whose tokens are already embedded."""

    def __init__(self, embedded: Tensor) -> None:
        super().__init__()
        self.embedded = nn.Buffer(embedded)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return what was embedded."""
        return self.embedded


def require_batch(carry: Any, tokens: Tensor) -> None:
    """Refuse a carry of another batch than that of the tokens.

    Args:
        carry: a tree of tensors whose first axis is the batch; None at a beginning.
        tokens: (batch, time).

    Raises:
        ValueError: it is of another batch.
    """
    for leaf in pytree.tree_leaves(carry) if carry is not None else ():
        if leaf.shape[0] != tokens.shape[0]:
            raise ValueError(
                f"the carry is of a batch of {leaf.shape[0]} and the tokens of "
                f"{tokens.shape[0]}: a segment continues the batch before it, or begins with None"
            )
