"""What must not be given back: runs on their way from the log's verdict to the user."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.held_partition import HeldPartition, Run, Stage


class _Message:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def __len__(self) -> int:
        return 1


@pytest.fixture
def consumer() -> Any:
    """The parts of a consumer at most once, that was never connected, in the middle of its loop."""
    made: Any = Consumer("127.0.0.1:1", group_id="g", topics="t", mode="at_most_once")._core
    made.iteration.is_looping = True
    return made


def held(consumer: Any) -> HeldPartition:
    claim: Any = SimpleNamespace(
        topic="t",
        partition=0,
        held=True,
        claimed_offset=10,
        _core=SimpleNamespace(
            holding=SimpleNamespace(lease_until_ns=2**62), ended=threading.Event()
        ),
    )
    part = HeldPartition(claim, manual=False)
    part.stage = Stage.ACTIVE
    return part


def test_a_run_that_is_taken_is_found_at_every_moment(consumer: Any) -> None:
    """The loop fetches more before it begins; a partition given back meanwhile would lose it."""
    part = held(consumer)
    consumer.delivery._proposed.append(Run(part, [_Message(0), _Message(9)]))
    seen = []
    consumer.delivery._top_up = lambda *_: seen.append(consumer.busy_with(part))
    run = consumer.iteration.next_run(0.0)
    assert run is not None
    assert seen == [True, True]
    assert consumer.busy_with(part)
    part.finish(run)
    assert not consumer.busy_with(part)


def test_a_run_that_is_put_back_is_found_at_every_moment(consumer: Any) -> None:
    part = held(consumer)
    part.stage = Stage.DRAINING
    run = Run(part, [_Message(0), _Message(9)])
    part.begin(run)
    seen = []
    finish = part.finish

    def spy(*args: Any, **kwargs: Any) -> None:
        finish(*args, **kwargs)
        seen.append(consumer.busy_with(part))

    part.finish = spy  # type: ignore[method-assign]
    next(run.rest)
    consumer.iteration._put_back(run, 0)
    assert seen == [True]
