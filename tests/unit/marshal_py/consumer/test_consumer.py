"""What a `Consumer` hands on to the parts that it is made of, and in which order."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marshal_py import AcknowledgeType, Consumer
from marshal_py.consumer.deserializers import Deserializers
from marshal_py.consumer.handlers.options import Retry
from marshal_py.consumer.iteration import Iteration
from marshal_py.errors import BrokerUnavailable, ConfigurationError, InvalidArgument, NotHeld


@pytest.fixture
def consumer() -> Consumer:
    """One that was never started."""
    return Consumer("127.0.0.1:1", group_id="g", topics="t")


def test_who_has_no_time_to_wait_is_given_what_has_come() -> None:
    """Also by `poll(0)`, which looked at the clock first: then it was too late."""
    fetched: list[Any] = []
    waits: list[float] = []
    run: Any = SimpleNamespace(part=SimpleNamespace(range=None, begin=lambda _: None))

    def fetch(_: int, wait_s: float) -> int:
        waits.append(wait_s)
        fetched.append(run)
        return 1

    delivery = SimpleNamespace(
        next_run=lambda: fetched.pop() if fetched else None,
        began=lambda: None,
        awaits_log=False,
        fetch_size=1,
    )
    well: Any = SimpleNamespace(failure=None)
    kafka: Any = SimpleNamespace(fetch=fetch, idle_wait_s=1.0)
    closing = threading.Event()
    iteration = Iteration(
        well,
        kafka,
        cast(Any, delivery),
        Deserializers(None, None),
        well,
        start=int,
        closing=closing,
    )
    assert iteration.next_run(0) is run
    assert waits == [0.0]


def test_who_waits_says_for_how_long(consumer: Consumer) -> None:
    core: Any = consumer._core
    asked: list[float] = []
    core.shared = SimpleNamespace(lag=asked.append)
    core.partitions = SimpleNamespace(commit=asked.append)
    consumer.lag(timeout_s=1.5)
    consumer.commit(2.5)
    assert asked == [1.5, 2.5]


def test_a_rejected_message_is_done_once_its_dead_letter_is_written(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    message: Any = "a message"
    core: Any = consumer._core
    core.shared = SimpleNamespace(part_of=lambda _: None)
    did: list[Any] = []
    monkeypatch.setattr(consumer, "ack", did.append)
    core.reject = lambda *rejected: did.append(rejected)
    consumer.acknowledge(message, AcknowledgeType.REJECT, reason="no such customer")
    assert did == [(message, "no such customer"), message]

    def fail(*_: object) -> None:
        raise BrokerUnavailable("down")

    core.reject = fail
    with pytest.raises(BrokerUnavailable):
        consumer.acknowledge(message, AcknowledgeType.REJECT)
    assert len(did) == 2, "it comes again"


def test_whoever_still_works_on_a_message_is_told_when_its_lease_has_lapsed(
    consumer: Consumer,
) -> None:
    message: Any = SimpleNamespace(topic=lambda: "t", partition=lambda: 0)
    core: Any = consumer._core
    claim = SimpleNamespace(held=True)
    core.shared = SimpleNamespace(part_of=lambda _: SimpleNamespace(claim=claim))
    consumer.acknowledge(message, AcknowledgeType.RENEW)
    claim.held = False
    with pytest.raises(NotHeld, match="t/0"):
        consumer.acknowledge(message, AcknowledgeType.RENEW)


@pytest.mark.parametrize("asked", [None, 2.5])
def test_a_run_ends_what_a_loop_had_in_hand_and_knows_that_it_was_told_to_stop(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, asked: float | None
) -> None:
    did: list[Any] = []

    def note(*what: Any) -> Any:
        return lambda *more: did.append((*what, *more))

    core: Any = consumer._core
    core.iteration = SimpleNamespace(
        enter=note("enter"), settle=note("settle"), leave=note("leave")
    )
    monkeypatch.setattr(consumer, "close", note("close"))
    runner: Any = SimpleNamespace(stop=note("stop"), run=note("run"), stats=lambda: None)
    if asked is not None:
        consumer.stop(asked)
    consumer._run(runner)
    stops = [] if asked is None else [("stop", asked)]
    assert did == [("enter",), ("settle",), *stops, ("run",), ("leave",), ("close",)]


def test_claims_are_those_that_are_held(consumer: Consumer) -> None:
    core: Any = consumer._core
    claims = [SimpleNamespace(held=held) for held in (True, False, True)]
    core.claims = lambda: claims
    assert consumer.claims() == [claims[0], claims[2]]


@pytest.mark.parametrize("offset", [-1, 2**63, True, 1.5, "7", None])
def test_nobody_goes_on_at_what_is_no_offset(consumer: Consumer, offset: Any) -> None:
    with pytest.raises(InvalidArgument, match="offset = "):
        consumer.seek("t", 0, offset)


@pytest.mark.parametrize(
    ("mirror_offsets", "groups"), [(True, ["g"]), ("for exporters", ["for exporters"]), (False, [])]
)
def test_positions_are_mirrored_under_the_groups_own_name_or_another(
    monkeypatch: pytest.MonkeyPatch, mirror_offsets: bool | str, groups: list[str]
) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        "marshal_py.consumer.offset_mirror.OffsetMirror", lambda _, group, *__: made.append(group)
    )
    Consumer("127.0.0.1:1", group_id="g", topics="t", mirror_offsets=mirror_offsets)
    assert made == groups


def test_what_is_rejected_goes_where_failures_of_the_run_go(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    core: Any = consumer._core
    topics: list[str] = []
    monkeypatch.setattr(core, "write_rejected", topics.append)
    monkeypatch.setattr(consumer, "_run", lambda _: None)
    consumer.run(print, on_failure="skip", dead_letter_topic="{topic}.bad")
    assert topics == []
    consumer.run(print, on_failure="dead_letter", dead_letter_topic="{topic}.bad")
    assert topics == ["{topic}.bad"]


def test_a_retry_for_a_topic_that_is_not_consumed_is_told_before_it_runs(
    consumer: Consumer,
) -> None:
    with pytest.raises(ConfigurationError, match="'orders' is none of the topics"):
        consumer.run(print, retry={"orders": Retry()})
