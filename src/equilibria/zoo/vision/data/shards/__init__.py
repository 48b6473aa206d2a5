"""Samples in shards: tar archives in WebDataset layout, read one after the other.

In a shard the files of a sample follow each other and share their name up to the first dot, as in
``000017.jpg``, ``000017.cls``. Where the shards are and how many samples each has is in an index,
JSON as `widsindex` writes it:
``{"shardlist": [{"url": "train-000.tar", "nsamples": 1000}, ...]}``.
"""

from equilibria.zoo.vision.data.shards.index import (
    Raw,
    Shard,
    count,
    read_index,
    samples,
    write_index,
)

__all__ = ["Raw", "Shard", "count", "read_index", "samples", "write_index"]
