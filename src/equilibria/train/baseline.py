"""What a trigram model makes of the text that a run has learnt."""

from __future__ import annotations

import json
from typing import Any

from equilibria.data.text import Trigram
from equilibria.tasks.language import LanguageTask
from equilibria.train import files
from equilibria.train.run import Folder


def trigram(task: LanguageTask, folder: Folder, split: str) -> dict[str, Any]:
    """Return perplexity and bits a token of an interpolated trigram model on a split.

    Bits a character too, where `LanguageTask.per_character` knows them.

    It is fitted to the training part of the same text, its weights to the validation part. The
    figures are kept in the run folder, and found there the next time.

    Args:
        task: of the run.
        folder: of the run.
        split: one of the task's.
    """
    known: dict[str, Any] = {}
    if folder.trigram.is_file():
        try:
            known = json.loads(folder.trigram.read_text("utf-8"))
        except ValueError:
            known = {}  # it is made anew
    if known.get("data") != task.checksum:
        known = {"data": task.checksum, "splits": {}}
    if split not in known["splits"]:
        bits = Trigram.fit(task.corpus).bits(task.corpus.splits[split])
        known["splits"][split] = {"perplexity": 2.0**bits, "bits": bits}
        files.write_json(folder.trigram, known)
    found = {name: known["splits"][split][name] for name in ("perplexity", "bits")}
    return {**found, **task.per_character(split, found["bits"])}
