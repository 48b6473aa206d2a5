"""What every model of sequences is: tokens in, features out, and a softmax over the vocabulary."""

from __future__ import annotations

import abc
import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from typing_extensions import override

from equilibria import draws
from equilibria.checks import check_fields
from equilibria.nn import VariationalDropout
from equilibria.run.models.base import Model, ModelConfig, Prediction

# --- lexicon --------------------------------------------------------------------------------------

# The vocabulary at both ends of a sequence model: embedding and softmax, adaptive and tied.


class Lexicon(nn.Module):
    """Embedding of tokens and softmax over them, with a narrower table for rarer tokens.

    Tokens are numbered from the most frequent to the rarest. `cutoffs` part them into clusters, of
    which cluster i holds its vectors in a table E_i of `width // division**i` columns, and P_i maps
    those to the width of the model:

        embed(t) = scale P_i E_i[t]
        log p(t) = log_softmax(h C + c)[i] + log_softmax(h P_i E_i^T + b_i)[t]        (i > 0)

    The first softmax is over the tokens of cluster 0 and one entry for each other cluster, so that
    a frequent token costs that one alone. Without cutoffs it is the plain softmax over all tokens.
    A table is passed through only by the tokens that are in it.

    Tied, both ends share the tables and the P_i of all clusters but the first, as in
    Transformer-XL; there is no P_i at all with `division=1`. If the softmax then reads another
    width than that of the tables, its features first go through a matrix of their own.

    Args:
        vocabulary: number of tokens.
        width: width of the embeddings.
        features: width of what the softmax reads; None for the same.
        cutoffs: first token of each cluster but the first, increasing; () for one cluster.
        division: by what the tables of each cluster are narrower than those of the one before.
        tied: the softmax uses the tables of the embedding; else it has tables of its own, of
            `features // division**i` columns.
        dropout: share of the vocabulary that each call of `embed` sets to zero in training,
            wherever its words stand; the others are divided by 1 - dropout.
        scale: factor of the embeddings; None for sqrt(width), as in Transformer-XL.
        initial: standard deviation of all weights at the start; biases start at zero.

    Raises:
        ValueError: a number is out of range, the cutoffs do not increase within the vocabulary, a
            table would have no column, or there is a division without cutoffs.

    Source:
        Dai et al. 2019 (Transformer-XL); Grave et al. 2017 (adaptive softmax); Baevski and Auli
        2019 (adaptive embedding); Merity et al. 2018, sec. 4.3 (dropout of words).
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        *,
        features: int | None = None,
        cutoffs: Sequence[int] = (),
        division: int = 1,
        tied: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
        initial: float = 0.01,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.width = width
        self.features = width if features is None else features
        self.cutoffs = tuple(cutoffs)
        self.division = division
        self.tied = tied
        self.dropout = dropout
        self.scale = math.sqrt(width) if scale is None else scale
        self._check(initial)

        def weight(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(rows, columns).normal_(0.0, initial))

        def widths(whole: int) -> list[int]:
            return [whole // division**i for i in range(len(self.cutoffs) + 1)]

        edges = (0, *self.cutoffs, vocabulary)
        sizes = [high - low for low, high in itertools.pairwise(edges)]
        inner = widths(width)
        self.starts = edges[:-1]
        self.tables = nn.ParameterList(map(weight, sizes, inner))
        self.projections = nn.ParameterList(weight(width, n) for n in inner if division > 1)
        # The softmax's own: all of it, or of a tied one the first projection and what leads there.
        read, outer = (width, inner) if tied else (self.features, widths(self.features))
        self.adapter = weight(width, self.features) if read != self.features else None
        self.output_tables = nn.ParameterList([] if tied else map(weight, sizes, outer))
        own = outer[:1] if tied else outer
        self.output_projections = nn.ParameterList(weight(read, n) for n in own if division > 1)
        self.clusters = weight(len(self.cutoffs), outer[0]) if self.cutoffs else None
        self.biases = nn.ParameterList(
            torch.zeros(size + (0 if i else len(self.cutoffs))) for i, size in enumerate(sizes)
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens.

        Args:
            tokens: (batch, time), or any shape, integers in [0, vocabulary).

        Returns:
            (batch, time, width).
        """
        flat = tokens.reshape(-1)
        if not self.cutoffs:
            x = F.embedding(flat, self.tables[0])
        else:
            places = self._places(flat)
            pieces = []
            for i, place in enumerate(places):
                piece = F.embedding(flat[place] - self.starts[i], self.tables[i])
                pieces.append(F.linear(piece, self.projections[i]) if self.projections else piece)
            order = torch.cat(places)
            back = torch.empty_like(order).scatter_(
                0, order, torch.arange(len(order), device=order.device)
            )
            x = torch.cat(pieces).index_select(0, back)
        if self.training and self.dropout:
            mask = draws.for_batch(x.new_empty(self.vocabulary), draws.keep_mask(self.dropout))
            x = x * (mask / (1 - self.dropout))[flat, None]
        return (x * self.scale).reshape(*tokens.shape, self.width)

    def losses(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return -log p(target) of each target, in nats.

        Args:
            features: (batch, time, features), what the softmax reads.
            targets: (batch, time), integers below the vocabulary; those below 0 are left out.

        Returns:
            (batch, time); 0, without a gradient, where the target is left out.
        """
        flat, wanted = self._read(features), targets.reshape(-1)
        head = wanted
        for i, cutoff in enumerate(self.cutoffs):
            head = torch.where(wanted >= cutoff, self.cutoffs[0] + i, head)
        head = head.clamp(min=-1)
        losses = F.cross_entropy(self._logits(flat, 0), head, ignore_index=-1, reduction="none")
        if self.cutoffs:
            for i, place in enumerate(self._places(wanted)[1:], start=1):
                logits = self._logits(flat.index_select(0, place), i)
                inside = wanted[place] - self.starts[i]
                tail = F.cross_entropy(logits, inside, reduction="none")
                losses = losses.index_add(0, place, tail)
        return losses.reshape(targets.shape)

    def log_probs(self, features: Tensor) -> Tensor:
        """Return log p of every token, in nats.

        Args:
            features: (..., features), what the softmax reads.

        Returns:
            (..., vocabulary).
        """
        flat = self._read(features)
        head = F.log_softmax(self._logits(flat, 0), -1)
        frequent, *rare = head.split([len(self.tables[0]), *[1] * len(self.cutoffs)], -1)
        parts = [frequent]
        for i, share in enumerate(rare, start=1):
            parts.append(share + F.log_softmax(self._logits(flat, i), -1))
        return torch.cat(parts, -1).reshape(*features.shape[:-1], self.vocabulary)

    def _read(self, features: Tensor) -> Tensor:
        """Features in rows, of the width of the softmax."""
        flat = features.reshape(-1, features.shape[-1])
        return flat if self.adapter is None else F.linear(flat, self.adapter)

    def _logits(self, flat: Tensor, i: int) -> Tensor:
        """Logits within cluster i of features (rows, width); of the first with the clusters'."""
        if self.division > 1:
            shared = self.tied and i > 0
            flat = flat @ (self.projections if shared else self.output_projections)[i]
        table: Tensor = (self.tables if self.tied else self.output_tables)[i]
        if i == 0 and self.clusters is not None:
            table = torch.cat([table, self.clusters])
        logits = F.linear(flat, table, self.biases[i])
        # Not all devices' autocast widens what a softmax reads.
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _places(self, flat: Tensor) -> list[Tensor]:
        """Where the tokens (rows,) of each cluster stand; the device is waited for once."""
        cluster = torch.zeros_like(flat)
        for cutoff in self.cutoffs:
            cluster += flat >= cutoff
        counts = torch.bincount(cluster, minlength=len(self.cutoffs) + 1).tolist()
        return list(cluster.argsort(stable=True).split(counts))

    def _check(self, initial: float) -> None:
        if min(self.vocabulary, self.width, self.features, self.division) < 1:
            raise ValueError(
                "vocabulary, width, features and division must be positive; got "
                f"{self.vocabulary}, {self.width}, {self.features} and {self.division}"
            )
        if not (0 <= self.dropout < 1 and self.scale > 0 and initial >= 0):
            raise ValueError(
                "dropout must be in [0, 1), scale positive and initial not negative; got "
                f"{self.dropout}, {self.scale} and {initial}"
            )
        edges = (0, *self.cutoffs, self.vocabulary)
        if any(high <= low for low, high in itertools.pairwise(edges)):
            raise ValueError(
                "cutoffs are the first tokens of clusters, must increase and lie between 0 and the "
                f"vocabulary; got {self.cutoffs} for a vocabulary of {self.vocabulary}"
            )
        if self.division > 1 and not self.cutoffs:
            raise ValueError(
                f"division={self.division} makes the tables of rarer tokens narrower, and without "
                "cutoffs there are none: give cutoffs or leave division at 1"
            )
        for name in ("width",) if self.tied else ("width", "features"):
            width = getattr(self, name)
            if width // self.division ** len(self.cutoffs) < 1:
                raise ValueError(
                    f"with {len(self.cutoffs)} cutoffs and division={self.division} the last table "
                    f"would have no column: {name} is only {width}"
                )

    def extra_repr(self) -> str:
        shown = f"vocabulary={self.vocabulary}, width={self.width}, features={self.features}"
        if self.cutoffs:
            shown += f", cutoffs={self.cutoffs}, division={self.division}"
        return f"{shown}, tied={self.tied}"


# --- config ---------------------------------------------------------------------------------------

# What the configs of all sequence models say: the vocabulary, its embedding and softmax.


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


# --- base -----------------------------------------------------------------------------------------


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
