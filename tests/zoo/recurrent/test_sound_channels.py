"""Which channel of a recording is heard."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import soundfile

from equilibria.run.data import DataError
from equilibria.zoo.recurrent.data import load

TONE = 0.6 * np.sin(np.arange(1600) * 0.07)


def test_a_channel_is_chosen(tmp_path):
    for label, number in itertools.product("ab", range(2)):
        path = tmp_path / label / f"{number}.flac"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, np.stack([TONE, -TONE], 1), 16000)
    with pytest.raises(DataError, match=r"the 2 channels of .*flac cancel .*--task.channel 1"):
        load(tmp_path)
    assert load(tmp_path, channel=2).train.inputs.shape[2] == 32
    with pytest.raises(DataError, match=r"has 2 channels: expected --task\.channel 1 to 2"):
        load(tmp_path, channel=3)
