"""The genesis that a client makes, and what it reads of those that are there (§7.4)."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.client import genesis
from marshal_py.client.genesis import LOOKED_AT, counts_told, new_genesis, new_identity
from marshal_py.protocol.messages import MAX_BASE, Genesis, encode

SENDER = ("a", "i", "g", 7)


def made(above: int = -1, **more: Any) -> Genesis:
    return new_genesis(SENDER, previous="", above=above, partitions=8, **more)


def test_its_base_is_the_clock_or_lies_above_every_epoch_that_is_known() -> None:
    before_us = time.time_ns() // 1_000
    assert before_us <= made().base <= time.time_ns() // 1_000
    assert made(above=10**18).base == 10**18 + 1
    assert made(above=MAX_BASE).base == MAX_BASE


def test_it_has_an_identity_that_no_other_has_and_belongs_to_no_group() -> None:
    one, other = made(), made()
    assert one.identity != other.identity
    assert len(new_identity()) == 32
    assert made(identity="x").identity == "x"
    assert (one.client_id, one.instance_id, one.group_id, one.seq) == ("a", "i", "-", 7)
    assert one.made_ms == pytest.approx(one.base // 1_000, abs=1)


class Log:
    """Stands for `read_to_end`: the records of a topic by partition."""

    def __init__(self, records: dict[int, list[bytes]]) -> None:
        self.records = records

    def __call__(
        self,
        _config: Any,
        _topic: str,
        starts: dict[int, int],
        ends: dict[int, int],
        _deadline: Any,
    ) -> Any:
        for p, start in starts.items():
            for value in self.records[p][start : ends[p]]:
                yield SimpleNamespace(value=lambda value=value: value)


def told(monkeypatch: pytest.MonkeyPatch, **extents: tuple[int, int, list[bytes]]) -> set[int]:
    """`p0=(first, next, records)` and so on."""
    parts = {int(name[1:]): extent for name, extent in extents.items()}
    monkeypatch.setattr(genesis, "read_to_end", Log({p: e[2] for p, e in parts.items()}))
    return counts_told({}, "t", {p: (e[0], e[1]) for p, e in parts.items()}, 0.0)


def test_what_the_first_records_tell_is_found_behind_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = encode(made())
    late = [b"x"] * (LOOKED_AT - 1) + [record]
    assert told(monkeypatch, p0=(0, 0, []), p1=(0, LOOKED_AT, late)) == {8}
    assert told(monkeypatch, p0=(0, 1, [record])) == {8}, "nobody has claimed anything yet"
    too_late = [b"x"] * LOOKED_AT + [record]
    assert told(monkeypatch, p0=(0, LOOKED_AT + 1, too_late)) == set()


def test_a_partition_whose_first_records_are_gone_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert told(monkeypatch, p0=(3, 5, [encode(made())] * 5)) == set()
