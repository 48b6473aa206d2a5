"""Damaged archives: read as a reference reads them, or refused with a DataError."""

import io
import tarfile

from hypothesis import given
from mutations import FUZZ, bounded, mutated, put

from equilibria.run.data import DataError
from equilibria.run.data.storage import read_errors
from equilibria.zoo.io import archive
from equilibria.zoo.vision.data.shards.index import parse_archive
from packed import tar


@FUZZ
@given(content=mutated(tar(), tar(tarfile.GNU_FORMAT), archive.gzip.compress(tar(), mtime=0)))
def test_archives(root, content):
    path = put(root / "a.tar", content)
    with bounded(len(content)):
        try:
            with read_errors(path, *archive.DAMAGED):
                found = dict(archive.read_tar(path, lambda name: True))
        except DataError as error:
            assert str(path) in str(error)
            found = None
        try:
            samples = parse_archive(content, "a shard")
        except DataError as error:
            assert "a shard" in str(error)
            samples = None
    if found is not None:
        with tarfile.open(fileobj=io.BytesIO(content)) as opened:
            expected = {}
            for entry in opened:
                file = opened.extractfile(entry)
                if file is not None and entry.isfile():
                    expected[entry.name.removeprefix("./")] = file.read()
        assert found == expected
    if samples is not None:
        assert found is not None
