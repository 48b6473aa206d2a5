"""Chains of nodes whose class only the first node knows: how far does a network carry it?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from equilibria.checks import check_within
from equilibria.zoo.graph.data.graph import SPLITS, Graph, add_reverse, make_masks
from equilibria.zoo.graph.data.sets import NodeSet, digest
from equilibria.zoo.io.remote import Entry, Files, Remote

SHARES = (0.05, 0.1)
"""Of training and of validation nodes; the rest are test nodes."""

FEATURES = 100
"""Features of a node, of which one for each class is used."""


def chains(
    length: int,
    *,
    classes: int = 2,
    chains: int = 20,
    directed: bool = True,
    features: int = FEATURES,
    noise: float = 0.0,
    shares: Sequence[float] = SHARES,
    seed: int = 0,
) -> Graph:
    """Draw the masks of chains: nodes ``0 -> 1 -> ... -> length - 1``, several for each class.

    All features are 0, but that of its class is 1 in the first node of each chain; the target of
    every node is the class of its chain. Without `directed`, each edge is there both ways.

    Args:
        length: Nodes of a chain.
        classes: Number of classes.
        chains: Chains of each class.
        directed: Whether messages go along the chain only.
        features: Of each node, at least as many as classes.
        noise: Uniform numbers in [-noise, noise) are added to all features.
        shares: Of training and of validation nodes, drawn at random from all chains together.
        seed: The same arguments give the same graph on every machine.

    Returns:
        One graph of ``classes * chains * length`` nodes, with masks.

    Raises:
        ValueError: If a number is too small, or a part would have no node.

    Source: Gu et al. 2020 (IGNN), section 5; with the split 5/10/85 of Liu et al. 2021 (EIGNN),
    section 5.2.
    """
    check_within("[2, inf)", length=length, classes=classes)
    check_within("[1, inf)", chains=chains)
    check_within("[0, inf)", noise=noise)
    if features < classes:
        raise ValueError(f"features is {features}, and {classes} classes need one each")
    generator = torch.Generator().manual_seed(seed)
    count = classes * chains * length
    nodes = torch.arange(count).reshape(-1, length)
    edges = torch.stack([nodes[:, :-1].flatten(), nodes[:, 1:].flatten()])
    y = torch.arange(classes).repeat_interleave(chains * length)
    x = noise * (2 * torch.rand(count, features, generator=generator) - 1)
    x[nodes[:, 0], y[nodes[:, 0]]] += 1
    order = torch.randperm(count, generator=generator)
    sizes = [int(share * count) for share in shares]
    sizes.append(count - sum(sizes))
    if len(sizes) != 3 or min(sizes) < 1:
        raise ValueError(
            f"shares are {', '.join(map(str, shares))} of {count} nodes: expected two, with "
            "at least one node left for each of train, valid and test: take more or longer chains"
        )
    masks = make_masks(dict(zip(SPLITS, order.split(sizes), strict=True)), count)
    return Graph(x, edges if directed else add_reverse(edges, count), y=y, masks=masks)


def read(
    files: Files, *, length: int = 50, classes: int = 2, directed: bool = True, **options: Any
) -> NodeSet:
    """Chains as a data set: one graph, whose masks divide its nodes.

    Args:
        files: Of no use: nothing is read.
        length: As `chains` takes it, like all others.
        classes: Number of classes.
        directed: Whether messages go along the chain only.
        options: What else `chains` takes.
    """
    graph = chains(length, classes=classes, directed=directed, **options)
    kind = "directed" if directed else "undirected"
    return NodeSet(
        name=files.entry.name,
        title=f"{kind} chains of length {length}, {classes} classes",
        source=files.source,
        train=(graph,),
        valid=(graph,),
        test=(graph,),
        labels=tuple(map(str, range(classes))),
        checksum=digest([graph]),
    )


CHAINS = Entry(
    name="chains",
    title="Chains",
    read=read,
    remotes=(Remote(files=(), addresses=("generated here",), license="none needed"),),
)
