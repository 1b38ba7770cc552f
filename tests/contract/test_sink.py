"""What every sink must do (harvest/core/interfaces/sink.py)."""

from __future__ import annotations

import pytest

from tests.contract.conftest import SinkBench, row


def always() -> bool:
    return True


def test_rows_are_published_in_order_with_key_and_value(sinks: SinkBench) -> None:
    sink = sinks.sink()
    sink.prepare()
    assert sink.open(always) is None
    rows = [row(n, sinks.topic) for n in range(500)] + [row(500, sinks.topic, value=None)]
    assert sink.deliver(rows[:200], "one") is None
    assert sink.deliver(rows[200:], "two") is None
    sink.close()
    assert sinks.published() == [(r.key, r.value) for r in rows]


def test_the_checkpoint_is_what_was_delivered_last(sinks: SinkBench) -> None:
    first = sinks.sink()
    assert first.open(always) is None
    for n in range(3):
        assert first.deliver([row(n, sinks.topic)], f"checkpoint {n}") is None
    assert sinks.sink().open(always) == ("checkpoint 2" if first.atomic else None)
    assert first.open(always) == ("checkpoint 2" if first.atomic else None)


def test_opening_fences_the_writer_before(sinks: SinkBench) -> None:
    old, new = sinks.sink(), sinks.sink()
    if not old.atomic:
        pytest.skip("only transactions fence")
    old.open(always)
    assert old.deliver([row(1, sinks.topic)], "old") is None
    assert new.open(always) == "old"
    assert old.deliver([row(2, sinks.topic)], "zombie") is not None
    assert new.deliver([row(3, sinks.topic)], "new") is None
    assert old.deliver([row(4, sinks.topic)], "zombie") is not None
    assert [value for _, value in sinks.published()] == [b"v1", b"v3"]
    assert new.open(always) == "new"


def test_nothing_is_published_once_the_lease_is_lost(sinks: SinkBench) -> None:
    held = True
    sink = sinks.sink()
    sink.open(lambda: held)
    held = False
    failure = sink.deliver([row(1, sinks.topic)], "late")
    assert failure is not None
    assert failure.undelivered is None or failure.undelivered == {1}
    assert sinks.published() == []


def test_after_a_failure_nothing_is_published_until_opened(sinks: SinkBench) -> None:
    sink = sinks.sink()
    sink.open(always)
    bad = row(2, sinks.topic, header_keys=(b"a",), header_values=())
    failure = sink.deliver([row(1, sinks.topic), bad, row(3, sinks.topic, "other")], "bad")
    assert failure is not None
    assert 2 in failure.errors
    if sink.atomic:
        assert failure.undelivered is None
        assert sinks.published() == []
    else:
        assert failure.undelivered is not None
        acknowledged = {1, 3} - failure.undelivered
        assert {value for _, value in sinks.published()} == {f"v{n}".encode() for n in acknowledged}
    before = sinks.published()
    assert sink.deliver([row(4, sinks.topic)], "refused") is not None
    assert sinks.published() == before
    assert sink.open(always) is None
    assert sink.deliver([row(5, sinks.topic)], "good") is None
    assert sinks.published()[len(before) :] == [(b"k", b"v5")]


def test_a_sink_that_was_never_opened_refuses(sinks: SinkBench) -> None:
    assert sinks.sink().deliver([row(1, sinks.topic)], "no") is not None
    assert sinks.published() == []
