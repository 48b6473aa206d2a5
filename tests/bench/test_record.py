"""A result's file says where its figures come from."""

import json
import math
import re

from equilibria.bench import record
from equilibria.bench.record import Table


def test_a_file_says_what_was_run_where_and_when(tmp_path):
    table = Table(title="t", columns=["a", "b, ms"], rows=[["x", math.nan], ["y", 1.5]], note="n")
    path = record.write(
        tmp_path / "new", "name", command="make it", tables=[table], note="all", peers=("scipy",)
    )
    assert path == tmp_path / "new" / "name.json"
    file = json.loads(path.read_text())
    assert file["command"] == "make it" and file["note"] == "all"
    assert file["tables"][0]["rows"] == [["x", None], ["y", 1.5]]
    assert {"equilibria", "torch", "numpy", "scipy"} == set(file["versions"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", file["date"])
    assert re.match(r"\d+ cores", file["machine"])
    assert file["commit"] is None or re.match(r"[0-9a-f]{40}( and changes)?$", file["commit"])
    assert list(path.parent.iterdir()) == [path]


def test_the_commit_can_be_given_and_is_none_away_from_a_checkout(tmp_path, monkeypatch):
    path = record.write(tmp_path, "a", command="c", code="abc", columns=["x"], rows=[[1]])
    assert json.loads(path.read_text())["commit"] == "abc"
    assert json.loads(path.read_text())["rows"] == [[1]]
    monkeypatch.setattr(record, "SOURCE", tmp_path / "site-packages" / "equilibria")
    assert record.commit() is None


def test_versions_of_what_is_not_installed_are_left_out():
    assert "no-such-package" not in record.versions(("no-such-package",))


def test_the_digest_tells_one_source_from_another(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "SOURCE", tmp_path)
    (tmp_path / "a.py").write_text("1")
    first = record.source_digest()
    assert record.source_digest() == first
    (tmp_path / "a.py").write_text("2")
    changed = record.source_digest()
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, changed, record.source_digest()}) == 3
