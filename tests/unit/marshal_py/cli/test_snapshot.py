"""`marshal snapshot`: what it says of the snapshots that it wrote."""

from __future__ import annotations

import json

import pytest

from marshal_py.cli import snapshot as module
from tests.support.marshal_command import without_brokers


def test_what_was_written_is_told_of_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"coordinator": 3, "next_offset": 12_345, "size_bytes": 678}]
    monkeypatch.setattr(module, "write_snapshots", lambda _: ("me", rows))
    done = without_brokers("snapshot")
    assert done.stdout.splitlines()[1].split() == ["3", "12,345", "678"]
    document = json.loads(without_brokers("snapshot", "--topic", "mine", "--json").stdout)
    assert document == {"topic": "mine.snapshots", "writer": "me", "written": rows}


def test_nothing_new_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "write_snapshots", lambda _: ("me", []))
    done = without_brokers("snapshot")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing new since the newest snapshots" in done.stderr
