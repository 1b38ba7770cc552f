"""What wakes idle leaders, of one shard or of several."""

from __future__ import annotations

from harvest.runtime.wake import WakeEvent, WakeEvents


def test_a_call_that_came_before_the_wait_is_heard_and_one_before_the_read_is_not() -> None:
    event = WakeEvent()
    event.wake()
    assert event.wait(0)
    assert event.wait(0)
    event.clear()
    assert not event.wait(0)


def test_all_shards_are_woken_and_told_whether_somebody_listens() -> None:
    events = WakeEvents()
    first = events.add(0)
    assert not first.listening
    events.listening = True
    second = events.add(1)
    assert second.listening, "who comes later polls no more than the others"
    assert not first.wait(0)
    events.wake()
    assert (first.listening, second.listening) == (True, True)
    assert first.wait(0)
    assert second.wait(0)
    events.listening = False
    events.wake()
    assert (first.listening, second.listening) == (False, False)


def test_who_is_gone_is_not_woken() -> None:
    events = WakeEvents()
    gone, stays = events.add(0), events.add(1)
    events.remove(0)
    events.remove(0)
    events.wake()
    assert not gone.wait(0)
    assert stays.wait(0)
    again = events.add(0)
    events.wake()
    assert again.wait(0)
