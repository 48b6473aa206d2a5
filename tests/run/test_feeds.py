"""Feeds: which tokens a step gets, on one process and on several."""

import pytest
import torch

from equilibria.run.tasks import Part
from equilibria.run.tasks.feed import Streams


def streams(count, rows, length, seed=0):
    return Streams(torch.arange(count), rows, length, seed)


@pytest.mark.parametrize("length", [1, 7, 10])
def test_the_parts_of_a_length_cover_it_in_equal_shares(length):
    for count in range(1, 12):
        parts = [range(length)[Part(index, count).of(length)] for index in range(count)]
        assert [x for part in parts for x in part] == list(range(length))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_target_is_the_token_after_its_input():
    feed = streams(103, 4, 5)
    for step in range(2 * feed.steps):
        batch = feed.batch(step)
        assert batch.inputs.shape == batch.targets.shape == (4, 5)
        assert torch.equal(batch.targets, batch.inputs + 1)


def test_streams_go_on_where_they_ended_until_a_pass_begins():
    feed = streams(230, 3, 6)
    for step in range(1, 3 * feed.steps):
        before, now = feed.batch(step - 1), feed.batch(step)
        assert now.begins == (step % feed.steps == 0)
        goes_on = torch.equal(now.inputs[:, 0], before.targets[:, -1])
        assert goes_on or now.begins


def test_a_pass_reads_no_token_twice_and_nearly_all():
    feed = streams(517, 4, 8)
    for number in range(3):
        steps = range(number * feed.steps, (number + 1) * feed.steps)
        asked = torch.cat([feed.batch(step).targets.flatten() for step in steps])
        assert len(asked.unique()) == len(asked) >= 517 - 4 * 8 - 8


def test_passes_begin_at_different_places_of_the_seed_alone():
    feed = streams(517, 4, 8)
    begins = [feed.begin(number) for number in range(20)]
    assert len(set(begins)) > 5
    assert begins == [streams(517, 4, 8).begin(number) for number in range(20)]
    assert begins != [streams(517, 4, 8, seed=1).begin(number) for number in range(20)]
    read = torch.cat([feed.batch(step).targets.flatten() for step in range(20 * feed.steps)])
    assert {*range(40, 480)} <= {*read.tolist()}


def test_processes_share_the_rows_of_a_batch():
    feed = streams(300, 6, 5)
    for step in (0, 1, feed.steps):
        whole = feed.batch(step)
        parts = [feed.batch(step, Part(index, 3)) for index in range(3)]
        assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
        assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)


@pytest.mark.parametrize(("count", "enough"), [(49, False), (50, True)])
def test_a_text_that_is_too_short_is_refused(count, enough):
    if enough:
        assert streams(count, 4, 10).steps == 1
        return
    with pytest.raises(ValueError, match="at least 50 training tokens, but this one has 49"):
        streams(count, 4, 10)
