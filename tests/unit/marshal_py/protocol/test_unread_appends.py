"""What a claimant remembers of the appends that it has not read yet (§5.12)."""

from __future__ import annotations

import pytest

from marshal_py.protocol import unread_appends
from marshal_py.protocol.unread_appends import Sent, UnreadAppends


def sent(at_ns: int, coordinator: int = 0) -> Sent:
    return Sent(at_ns, coordinator, "heartbeat", None)


def test_the_oldest_is_the_first_that_was_not_read() -> None:
    unread = UnreadAppends(1)
    assert unread.oldest_ns() is None
    for seq, at_ns in ((1, 10), (2, 20), (3, 30)):
        unread.add(seq, sent(at_ns))
    assert unread.oldest_ns() == 10
    unread.pop(1)
    assert unread.oldest_ns() == 20


def test_what_was_sent_by_a_time_includes_it() -> None:
    unread = UnreadAppends(1)
    for seq, at_ns in ((1, 10), (2, 20), (3, 30)):
        unread.add(seq, sent(at_ns))
    assert unread.sent_by(9) == []
    assert unread.sent_by(20) == [1, 2]


def test_those_that_are_forgotten_are_told_of_and_counted_by_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unread_appends, "MAX_UNREAD", 2)
    unread = UnreadAppends(2)
    assert unread.add(1, sent(10)) == unread.add(2, sent(20, 1)) == unread.add(3, sent(30)) == []
    assert unread.add(4, sent(40)) == [sent(10)]
    assert (unread.get(1), unread.get(2), len(unread)) == (None, sent(20, 1), 3)
    unread.pop(3)
    assert unread.add(5, sent(50)) == []  # the one that is forgotten for it was read


def test_one_that_is_disowned_is_kept_without_its_claim() -> None:
    unread = UnreadAppends(1)
    unread.add(1, Sent(10, 0, "claim", object()))  # type: ignore[arg-type]
    unread.disown(1)
    assert unread.pop(1) == Sent(10, 0, "claim", None)
    assert unread.pop(1) is None
    unread.add(2, sent(20))
    unread.clear()
    assert len(unread) == 0
    assert unread.oldest_ns() is None
