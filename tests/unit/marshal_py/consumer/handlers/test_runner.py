"""What `Consumer.run` does with messages whose claim, handler or dead letter comes to nothing."""

from __future__ import annotations

import json
import math
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Message

from marshal_py.client.claim import core_of
from marshal_py.consumer.acknowledging import AcknowledgeType
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.dead_letters import PREFIX
from marshal_py.consumer.handlers.ending import Ending
from marshal_py.consumer.handlers.options import HandlerOptions, Retry
from marshal_py.consumer.handlers.runner import Runner
from marshal_py.consumer.handlers.tasks import NotBegun, TaskSource
from marshal_py.consumer.held_partition import HeldPartition, Run, Stage
from marshal_py.errors import BrokerUnavailable, DeadLetterFailed, HandlerFailed, MarshalError
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.claimant import ClaimState, Holding
from marshal_py.protocol.slots import slots_cell


def held(topic: str = "t", partition: int = 3) -> HeldPartition:
    """Partition t/3, or a slot of it, under a claim of its own, from offset 10 on."""
    holding = Holding(topic, partition, 0)
    core = SimpleNamespace(holding=holding, ended=threading.Event(), log_fields={})
    claim: Any = SimpleNamespace(topic=topic, partition=partition, epoch=7, held=True, _core=core)
    part = HeldPartition(claim, manual=True)
    part.start(10)
    part.stage = Stage.ACTIVE
    return part


def run_of(part: HeldPartition, *offsets: int) -> Run:
    made: list[Any] = [
        Message(topic="t", partition=3, offset=o, key=b"%d" % o, value=b"v") for o in offsets
    ]
    return Run(part, made)


class Delivery:
    """What was fetched: `runs`, which are owed. Counts what is handed back."""

    def __init__(self, *, claims_messages: bool) -> None:
        self.claims_messages = claims_messages
        self.runs: list[Run] = []
        self.dropped = 0
        self.is_over = False

    @property
    def owes(self) -> bool:
        return bool(self.runs)

    def next_run(self) -> Run | None:
        return self.runs.pop(0) if self.runs else None

    def drop(self, count: int) -> None:
        self.dropped += count

    def end(self) -> None:
        self.is_over = True

    def serve(self, *_: object) -> None: ...
    def began(self) -> None: ...
    def done(self, *_: object) -> None: ...


class AtOnce:
    """A worker that runs what is there whenever it is woken, unless it is `lazy`."""

    def __init__(self, *, lazy: bool = False) -> None:
        self.lazy = lazy
        self.handled: list[int] = []

    def start(self, source: TaskSource) -> None:
        self.source = source

    def wake(self, _: int) -> None:
        while not self.lazy and (task := self.source.take(self)) is not None:
            self.handled += [item.offset for item in task.items]
            self.source.succeeded(task)

    def stop(self, _: float) -> bool:
        return True

    def has_caller(self) -> bool:
        return False

    def describe(self, _: Any) -> tuple[str, str]:
        return "worker", ""


class Ground:
    """A runner, with a consumer that does nothing."""

    def __init__(self, *, lazy: bool = True, **options: Any) -> None:
        self.delivery = Delivery(claims_messages=options.get("at_most_once", False))
        self.workers = AtOnce(lazy=lazy)
        core = mock.MagicMock(delivery=self.delivery, deserializers=(), closing=threading.Event())
        core.wakeup.failure = core.marshal.failure = None
        core.marshal.group_id, core.marshal.client_id = "g", "c"
        core.topics.counts = {}
        self.runner = Runner(core, HandlerOptions(print, **options), self.workers)
        self.workers.start(self.runner)

    def take(self) -> Any:
        with self.runner.lock:
            return self.runner.take(None)


def test_what_is_left_of_an_earlier_claim_is_dropped() -> None:
    ground, before, now = Ground(), held(), held()
    ground.runner._accept(run_of(before, 10, 11))
    before.claim.held = False  # type: ignore[misc]
    ground.runner._accept(run_of(now, 10, 11, 12))
    tasks = [ground.take() for _ in range(4)]
    assert [(task.part, task.items[0].offset) for task in tasks if task is not None] == [
        (now, 10),
        (now, 11),
        (now, 12),
    ]
    assert ground.delivery.dropped == 2
    assert ground.runner.stats().handed_back == 2


@pytest.mark.parametrize("how", ["fails", "is interrupted", "is no dead letter"])
def test_what_came_under_a_later_claim_is_not_dropped_with_a_task_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    attempts = 1 if how == "is no dead letter" else 5
    ground = Ground(ordering="partition", on_failure="dead_letter", retry=Retry(attempts=attempts))
    letters = mock.Mock(send=mock.Mock(side_effect=BrokerUnavailable("down")))
    monkeypatch.setattr(ground.runner._retries, "_open_dead_letters", lambda: letters)
    before, now = held(), held()
    ground.runner._accept(run_of(before, 10, 11))
    task = ground.take()
    before.claim.held = False  # type: ignore[misc]
    core_of(before.claim).ended.set()
    ground.runner._accept(run_of(now, 10, 11, 12))
    assert ground.take() is None, "a handler is at work on what comes before them"
    ground.workers.lazy = False
    if how == "is interrupted":
        ground.runner.gave_up(task)
    else:
        ground.runner.failed(task, ValueError("no"))
    assert ground.workers.handled == [10, 11, 12]
    assert (before.position(), now.position()) == (10, 13)
    stats = ground.runner.stats()
    assert (stats.handed_back, stats.buffered, stats.running) == (2, 0, 0)


@pytest.mark.parametrize("why", ["it stops", "it failed for good", "it is given back"])
def test_what_was_fetched_as_a_message_was_handed_back_does_not_overtake_it(why: str) -> None:
    """The loop had looked whether to go on, and queues what it had fetched."""
    retry = Retry(attempts=1 if why == "it failed for good" else 5, backoff_ms=60_000)
    ground, part = Ground(ordering="partition", retry=retry), held()
    ground.runner._accept(run_of(part, 10))
    task = ground.take()
    if why == "it stops":
        ground.runner.stop()
    elif why == "it is given back":
        part.stage = Stage.DRAINING
    ground.runner.failed(task, ValueError("no"))
    ground.runner._accept(run_of(part, 11, 12))
    assert ground.take() is None
    assert part.position() == 10
    stats = ground.runner.stats()
    assert (stats.handed_back, stats.buffered) == (3, 0)
    assert ground.delivery.dropped == 3


class Mute(Exception):
    def __str__(self) -> str:
        raise AttributeError("code")


@pytest.mark.parametrize(("on_failure", "position"), [("skip", 11), ("stop", 10)])
def test_what_fails_with_an_error_that_has_no_text_has_failed_as_others(
    on_failure: Any, position: int
) -> None:
    ground, part = Ground(on_failure=on_failure, retry=Retry(attempts=2, backoff_ms=0)), held()
    ground.runner._accept(run_of(part, 10))
    for _ in range(2):
        ground.runner._tasks.schedule.due(math.inf)
        ground.runner.failed(ground.take(), Mute())
    assert part.position() == position
    ended_with = ground.runner._ending.error
    assert (ended_with is None) == (on_failure == "skip")
    if ended_with is not None:
        assert isinstance(ended_with, HandlerFailed)
        assert isinstance(ended_with.__cause__, Mute)


def test_what_a_handler_was_interrupted_with_is_handed_back_with_what_waits_behind_it() -> None:
    ground, part = Ground(ordering="partition"), held()
    ground.runner._accept(run_of(part, 10, 11))
    ground.runner.gave_up(ground.take())
    assert part.position() == 10
    assert ground.delivery.dropped == 2
    stats = ground.runner.stats()
    assert (stats.handed_back, stats.buffered, stats.running) == (2, 0, 0)
    assert ground.take() is None


@pytest.mark.parametrize("problem", [BrokerUnavailable("down"), DeadLetterFailed("too large")])
def test_a_message_whose_dead_letter_is_not_written_is_not_done(
    monkeypatch: pytest.MonkeyPatch, problem: MarshalError
) -> None:
    ground, part = Ground(on_failure="dead_letter", retry=Retry(attempts=1)), held()
    letters = mock.Mock(send=mock.Mock(side_effect=problem))
    monkeypatch.setattr(ground.runner._retries, "_open_dead_letters", lambda: letters)
    ground.runner._accept(run_of(part, 10))
    ground.runner.stop()
    ground.runner.failed(ground.take(), ValueError("bad"))
    assert letters.send.call_count == 1
    assert part.position() == 10
    stats = ground.runner.stats()
    assert (stats.dead_lettered, stats.handed_back, stats.buffered) == (0, 1, 0)
    assert ground.runner._ending.error is (
        problem if isinstance(problem, DeadLetterFailed) else None
    )


@pytest.mark.parametrize("kind", [KeyError, SystemExit])
def test_where_nothing_was_decided_the_message_is_handed_back_and_run_ends(
    kind: type[BaseException],
) -> None:
    """Also `sys.exit`: run would wait for the rest of its drain time for what nobody works on."""
    problem, bad = kind("of the user's own"), ValueError("bad")
    decide = mock.Mock(side_effect=problem)
    ground, part = Ground(on_failure=decide, retry=Retry(attempts=1)), held()
    ground.runner._accept(run_of(part, 10))
    ground.runner.failed(ground.take(), bad)
    assert ground.runner._ending.error is problem
    assert problem.__context__ is bad
    assert part.position() == 10
    stats = ground.runner.stats()
    assert (stats.skipped, stats.handed_back, stats.buffered, stats.running) == (0, 1, 0, 0)


@pytest.mark.parametrize("decoded", [False, True])
def test_a_dead_letter_is_the_message_as_it_came_and_names_the_claim(
    monkeypatch: pytest.MonkeyPatch, decoded: bool
) -> None:
    ground, part = Ground(on_failure="dead_letter", retry=Retry(attempts=1)), held()
    letters = mock.Mock()
    monkeypatch.setattr(ground.runner._retries, "_open_dead_letters", lambda: letters)
    ground.runner._accept(run_of(part, 10))
    task = ground.take()
    if decoded:  # as deserializers do it
        (item,) = task.items
        item.raw = item.payload.key(), item.payload.value()
        item.payload.set_key(10)
        item.payload.set_value({"v": 1})
    ground.runner.failed(task, ValueError("bad"))
    ((topic, key, value, headers), _) = letters.send.call_args
    assert (topic, key, value) == ("t.dlq", b"10", b"v")
    assert dict(headers)[f"{PREFIX}epoch"] == b"7"
    assert part.position() == 11
    assert ground.runner.stats().dead_lettered == 1


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_what_a_handler_rejects_is_a_dead_letter_as_it_came(mode: Any, batch_size: Any) -> None:
    consumer = Consumer("127.0.0.1:1", group_id="g", topics="t", mode=mode, decode=json.loads)
    core: Any = consumer._core
    workers, part = AtOnce(lazy=True), held()
    options = HandlerOptions(print, at_most_once=mode == "at_most_once", batch_size=batch_size)
    core.handlers = runner = Runner(core, options, workers)
    workers.start(runner)
    core.shared = SimpleNamespace(part_of=lambda _: part)
    core.rejections = mock.Mock()
    run = Run(part, [Message(topic="t", partition=3, offset=10, key=b"k", value=b'{"a": 1}')])
    runner._accept(run)
    with runner.lock:
        task = runner.take(None)
    assert task is not None
    given = runner.given_to_handler(task)
    message = given if batch_size is None else given[0]
    assert message.value() == {"a": 1}
    consumer.acknowledge(message, AcknowledgeType.REJECT, reason="no such customer")
    core.rejections.write.assert_called_once_with(
        message, (b"k", b'{"a": 1}'), part, "no such customer"
    )


@pytest.mark.parametrize("is_lost", [False, True])
def test_no_handler_is_called_whose_lease_lapsed_while_its_message_was_read(is_lost: bool) -> None:
    """Deserializers ask a schema registry, say, which may take its time."""
    part = held()
    claim: Any = part.claim

    def passes(_: Any) -> bool:
        claim.held = False
        return True

    ground = Ground(filter=passes, ordering="partition")
    ground.runner._accept(run_of(part, 10, 11))
    task = ground.take()
    with pytest.raises(NotBegun) as told:
        ground.runner.given_to_handler(task)
    if is_lost:
        core_of(claim).ended.set()
    ground.runner.failed(task, told.value)
    assert ground.take() is None
    stats = ground.runner.stats()
    assert (stats.failures, stats.handed_back, stats.running) == (0, 2 * is_lost, 0)
    claim.held = True
    ground.runner._look_after_partitions()
    again = ground.take()
    assert (again is None) if is_lost else (again.items == task.items)


def test_what_was_claimed_in_the_log_is_handled_before_run_ends() -> None:
    ground, part = Ground(lazy=False, at_most_once=True), held()
    ground.delivery.runs = [run_of(part, 10, 11), run_of(part, 12)]
    ground.runner.stop()
    ground.runner.run()
    assert ground.workers.handled == [10, 11, 12]
    assert ground.delivery.is_over
    assert ground.delivery.dropped == 0


def test_what_was_claimed_ahead_is_fetched_before_run_ends_though_it_filled_the_buffer() -> None:
    ground, part = Ground(lazy=False, at_most_once=True, drain_timeout_s=60.0), held()
    ground.runner._parts[part.key] = part
    ground.runner._throttled.add(part.key)
    core: Any = ground.runner._core
    core.partitions.throttle = lambda part, _: ground.delivery.runs.append(run_of(part, 11))
    ground.delivery.runs = [run_of(part, 10)]
    ground.runner.stop()
    ground.runner.run()
    assert sorted(ground.workers.handled) == [10, 11]


def test_what_is_queued_and_would_leave_a_gap_is_handled_before_run_ends() -> None:
    ground, part = Ground(drain_timeout_s=60.0), held()
    ground.runner._accept(run_of(part, 10, 11, 12))
    first, second = ground.take(), ground.take()
    ground.runner.succeeded(second)
    assert part.position() == 10

    def returns() -> None:  # while `run` waits
        ground.runner.succeeded(first)
        ground.workers.lazy = False

    with mock.patch.object(ground.runner, "_wait_for_room", side_effect=returns) as waited:
        ground.runner.stop()
        ground.runner.run()
    assert waited.called
    assert part.position() == 12
    assert ground.delivery.dropped == 1, "nobody had begun with the last one"


def test_a_partition_is_given_back_when_nothing_of_it_waits_or_runs() -> None:
    ground, part = Ground(), held()
    ground.runner._accept(run_of(part, 10, 11))
    for _ in range(2):
        assert ground.runner.busy_with(part)
        task = ground.take()
        assert ground.runner.busy_with(part)
        ground.runner.succeeded(task)
    assert not ground.runner.busy_with(part)


def test_what_runs_under_an_earlier_claim_is_waited_for() -> None:
    ground, before = Ground(), held()
    ground.runner._accept(run_of(before, 10))
    task = ground.take()
    ground.runner._accept(run_of(held(), 10))
    assert ground.runner.busy_with(before)
    ground.runner.succeeded(task)
    assert not ground.runner.busy_with(before)


def test_what_does_not_return_under_an_earlier_claim_is_waited_for_in_the_drain_time() -> None:
    ground, before, now = Ground(drain_timeout_s=5.0), held(), held()
    ground.runner._accept(run_of(before, 10))
    ground.take()
    core_of(before.claim).ended.set()
    ground.runner._look_after_partitions()
    ground.runner._accept(run_of(now, 10, 11))
    ground.runner.succeeded(ground.take())
    now.stage = Stage.DRAINING
    ground.runner._look_after_partitions()
    assert ground.runner.busy_with(now)
    with mock.patch("time.monotonic", return_value=time.monotonic() + 3_600):
        ground.runner._look_after_partitions()
        assert not ground.runner.busy_with(now)


def test_without_a_lease_nothing_starts_until_it_comes_back() -> None:
    ground, part = Ground(), held()
    ground.runner._accept(run_of(part, 10))
    part.claim.held = False  # type: ignore[misc]
    assert ground.take() is None
    ground.runner._look_after_partitions()
    assert ground.take() is None
    part.claim.held = True  # type: ignore[misc]
    ground.runner._look_after_partitions()
    assert ground.take().items[0].offset == 10


def test_what_waits_for_another_attempt_wakes_a_worker_when_it_is_due() -> None:
    ground, part = Ground(retry=Retry(attempts=2, backoff_ms=60_000)), held()
    ground.runner._accept(run_of(part, 10))
    ground.runner.failed(ground.take(), ValueError("bad"))
    ground.workers.lazy = False
    ground.runner._look_after_partitions()
    assert ground.workers.handled == []
    with mock.patch("time.monotonic", return_value=time.monotonic() + 3_600):
        ground.runner._look_after_partitions()
    assert ground.workers.handled == [10]
    assert part.position() == 11


@pytest.mark.parametrize("at_most_once", [False, True])
def test_in_a_pause_nothing_starts_but_what_was_claimed_in_the_log(at_most_once: bool) -> None:
    ground, part = Ground(at_most_once=at_most_once), held()
    ground.runner._accept(run_of(part, 10))
    part.is_paused = True
    assert (ground.take() is not None) == at_most_once


@pytest.mark.parametrize("at_most_once", [False, True])
def test_who_stops_waits_for_nothing_that_is_paused_and_was_not_claimed(at_most_once: bool) -> None:
    """It would be for all of the drain time: what is paused does not run."""
    ground, part = Ground(drain_timeout_s=5.0, at_most_once=at_most_once), held()
    ground.runner._accept(run_of(part, 10, 11))
    first, second = ground.take(), ground.take()
    ground.runner.succeeded(second)
    with ground.runner.lock:  # as where its lease has lapsed
        ground.runner._tasks.running.discard(first)
        ground.runner._tasks.schedule.put_back(first.items)
    part.is_paused = True

    def goes_on() -> None:
        ground.workers.lazy = False
        ground.workers.wake(1)

    with mock.patch.object(ground.runner, "_wait_for_room", side_effect=goes_on) as waited:
        ground.runner.stop()
        ground.runner.run()
    assert waited.called == at_most_once
    assert ground.delivery.dropped == (not at_most_once)
    assert ground.workers.handled == [10] * at_most_once


@pytest.mark.parametrize("on_failure", ["stop", "dead_letter", "skip"])
@pytest.mark.parametrize("how", ["ended", "given back"])
def test_what_fails_for_good_under_a_claim_that_is_gone_is_left_to_others(
    monkeypatch: pytest.MonkeyPatch, on_failure: Any, how: str
) -> None:
    """It may have failed just because its epoch was refused, as it should be."""
    ground, part = Ground(on_failure=on_failure, retry=Retry(attempts=1)), held()
    letters = mock.Mock()
    monkeypatch.setattr(ground.runner._retries, "_open_dead_letters", lambda: letters)
    ground.runner._accept(run_of(part, 10))
    task = ground.take()
    if how == "ended":
        core_of(part.claim).ended.set()
    else:
        part.stage = Stage.RELEASING
    ground.runner.failed(task, ValueError("the epoch is too small"))
    assert ground.runner._ending.error is None
    assert not letters.send.called
    stats = ground.runner.stats()
    assert (stats.dead_lettered, stats.skipped, stats.handed_back) == (0, 0, 1)
    assert part.position() == 10


def test_a_partition_that_goes_waits_a_second_for_another_attempt_and_no_longer() -> None:
    ending, part, now_s = Ending(30.0), held(), time.monotonic()
    assert ending.may_retry_at(part, now_s + 99)
    part.stage = Stage.DRAINING
    ending.drain(part.key, now_s)
    assert ending.may_retry_at(part, now_s + 0.9)
    assert not ending.may_retry_at(part, now_s + 1.1)


def test_how_long_an_earlier_claim_was_waited_for_is_nothing_to_the_next_one() -> None:
    ground, before, now = Ground(drain_timeout_s=5.0), held(), held()
    ground.runner._accept(run_of(before, 10))
    ground.runner.succeeded(ground.take())
    before.stage = Stage.DRAINING
    ground.runner._look_after_partitions()
    core_of(before.claim).ended.set()
    ground.runner._look_after_partitions()
    with mock.patch("time.monotonic", return_value=time.monotonic() + 3_600):
        ground.runner._accept(run_of(now, 11))
        assert ground.take() is not None
        now.stage = Stage.DRAINING
        ground.runner._look_after_partitions()
        assert ground.runner.busy_with(now)


def test_what_was_handed_back_fails_here_no_more() -> None:
    ground, part = Ground(ordering="partition", retry=Retry(backoff_ms=0)), held()
    ground.runner._accept(run_of(part, 10, 11))
    ground.runner.failed(ground.take(), ValueError("bad"))
    ground.runner._look_after_partitions()
    assert ground.runner.troubles()[part.key].retrying == 1
    ground.runner.gave_up(ground.take())
    assert ground.runner.troubles()[part.key].retrying == 0


@pytest.mark.parametrize("how", ["goes on", "stops", "drains", "drains for long", "is gone"])
def test_a_batch_that_failed_comes_again_one_by_one_unless_its_partition_goes_at_once(
    how: str,
) -> None:
    """All of it, and what its keys have behind it, would come again elsewhere."""
    with mock.patch("time.monotonic", return_value=100.0):
        ground, part = Ground(batch_size=2), held()
        ground.runner._accept(run_of(part, 10, 11))
        task = ground.take()
        assert [item.offset for item in task.items] == [10, 11]
        if how == "stops":
            ground.runner.stop()
        elif how != "goes on":
            part.stage = Stage.RELEASING if how == "is gone" else Stage.DRAINING
            ground.runner._ending.drain(part.key, 98.9 if how == "drains for long" else 100.0)
        ground.runner.failed(task, ValueError("bad"))
        comes_again = how not in ("drains for long", "is gone")
        stats = ground.runner.stats()
        assert (stats.failures, stats.retries) == (1, comes_again)
        assert (stats.handed_back, stats.buffered) == ((0, 2) if comes_again else (2, 0))
        if how == "stops":
            ground.workers.lazy = False
            ground.runner._finish_what_runs()
            assert ground.workers.handled == [10, 11]
            assert part.position() == 12


@pytest.mark.parametrize(
    ("usual_s", "asked_s"), [(math.inf, None), (math.inf, math.inf), (30.0, math.inf)]
)
def test_who_waits_for_handlers_without_end_is_stopped_all_the_same(
    usual_s: float, asked_s: float | None
) -> None:
    """`run` went on, whatever signal came."""
    ending, part, now_s = Ending(usual_s), held(), time.monotonic()
    ending.drain(part.key, now_s)
    assert not ending.is_stopping
    ending.stop(asked_s)
    assert ending.is_stopping
    assert not ending.is_late
    assert 24 * 3_600 < ending.left_s < threading.TIMEOUT_MAX
    assert ending.may_retry_at(part, now_s)
    assert not ending.may_retry_at(part, now_s + 5)


def test_who_is_stopped_again_waits_no_longer_for_another_attempt() -> None:
    ending, part = Ending(30.0), held()
    with mock.patch("time.monotonic", return_value=100.0) as clock:
        ending.stop()
        assert ending.may_retry_at(part, 100.75)
        clock.return_value = 100.5
        ending.stop(20.0)
        assert ending.left_s == 20.0
        assert ending.may_retry_at(part, 100.75)
        assert not ending.may_retry_at(part, 101.25)


def test_fetching_goes_on_when_little_waits_and_little_is_done_ahead() -> None:
    ground, part = Ground(max_buffered=20, max_ahead=2), held()
    core: Any = ground.runner._core
    core.fetcher.active = {part.key: part, ("t", 4): None}
    throttled = core.partitions.throttle
    ground.runner._accept(run_of(part, *range(10, 16)))
    ground.runner._throttle()
    throttled.assert_called_once_with(part, True)
    tasks = [ground.take() for _ in range(6)]
    for task in tasks[1:]:
        ground.runner.succeeded(task)
    ground.runner._throttle()
    assert throttled.call_count == 1, "little waits, but much is done ahead of the first"
    ground.runner.succeeded(tasks[0])
    ground.runner._throttle()
    throttled.assert_called_with(part, False)


def test_fetching_does_not_go_on_while_much_waits_though_nothing_is_done_ahead() -> None:
    ground, part = Ground(max_buffered=20), held()
    core: Any = ground.runner._core
    core.fetcher.active = {part.key: part, ("t", 4): None}
    ground.runner._accept(run_of(part, *range(10, 14)))
    ground.runner._throttled.add(part.key)
    ground.runner._throttle()
    core.partitions.throttle.assert_not_called()
    ground.runner.succeeded(ground.take())
    ground.runner.succeeded(ground.take())
    ground.runner._throttle()
    core.partitions.throttle.assert_called_once_with(part, False)


def test_how_old_a_message_is_counts_once_though_its_batch_failed() -> None:
    ground, part = Ground(batch_size=2), held()
    made: list[Any] = [
        Message(topic="t", partition=3, offset=offset, value=b"v", timestamp=(1, stamp_ms))
        for offset, stamp_ms in ((10, 1_000), (11, 1_000), (12, -1))  # the last one has none
    ]
    ground.runner._accept(Run(part, made))
    ground.runner.failed(ground.take(), ValueError("bad"))
    for _ in range(3):
        ground.runner.succeeded(ground.take())
    stats = ground.runner.stats()
    assert (stats.ages["t"].count, stats.durations["t"].count) == (2, 4)


def test_what_fails_while_its_lease_has_lapsed_is_told_when_that_is_regained() -> None:
    ground, part = Ground(retry=Retry(attempts=None)), held()
    told = ground.runner._core.partitions.publish
    ground.runner._accept(run_of(part, 10))
    task = ground.take()
    part.holding.state = ClaimState.LAPSED
    ground.runner.failed(task, ValueError("no"))
    ground.runner._publish()
    told.assert_not_called()  # type: ignore[attr-defined]
    part.holding.state = ClaimState.HELD
    for _ in range(2):
        ground.runner._publish()
    [call] = told.call_args_list  # type: ignore[attr-defined]
    assert call.args[0] is part
    assert call.args[1](ClaimMetadata()).offset == 10


def test_no_more_is_fetched_than_there_is_room_for_by_number_and_by_size() -> None:
    """Of how large messages are, those that came last tell; one fetch brings 1,000 at most."""
    assert Ground(max_buffered_bytes=1_000_000_000).runner._how_many() == 1_000
    ground, part = Ground(max_buffered=100, max_buffered_bytes=50_000), held()
    assert ground.runner._how_many() == 50
    ground.runner._accept(run_of(part, *range(10, 30)))
    size = ground.runner.stats().buffered_bytes
    assert ground.runner._how_many() == (50_000 - size) // 900, "a tenth nearer to what came"
    ground.runner._accept(run_of(part, *range(30, 105)))
    assert ground.runner._how_many() == 5
    ground.runner._accept(run_of(part, *range(105, 120)))
    assert ground.runner._how_many() == 1, "who asks for something is given something"


def test_a_handler_that_does_not_return_in_time_works_on_nothing_any_more() -> None:
    """`on_revoked` waits for what does."""
    ground, part = Ground(drain_timeout_s=0), held()
    ground.runner._accept(run_of(part, 10))
    assert ground.take() is not None
    ground.workers.stop = lambda _: False  # type: ignore[method-assign]
    assert ground.runner.runs(part)
    ground.runner._wind_up()
    assert not ground.runner.runs(part)
    said = ground.runner._core.log.error.call_args.args  # type: ignore[attr-defined]
    assert said[2:] == (1, "t", 3, 10)


def test_failures_of_a_slot_go_by_the_topic_that_its_messages_are_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hour = Retry(attempts=2, backoff_ms=3_600_000, max_backoff_ms=3_600_000)
    ground = Ground(retry={"t": hour}, on_failure="dead_letter", dead_letter_topic="{topic}.dead")
    sent: list[str] = []
    letters = SimpleNamespace(send=lambda topic, *_: sent.append(topic))
    monkeypatch.setattr(ground.runner._retries, "_open_dead_letters", lambda: letters)
    part, schedule = held(slots_cell("t", 3, 4), 1), ground.runner._tasks.schedule
    ground.runner._accept(run_of(part, 10))
    ground.runner.failed(ground.take(), ValueError("no"))
    assert schedule.due(time.monotonic() + 2_000) == 0
    assert schedule.due(time.monotonic() + 5_000) == 1
    ground.runner.failed(ground.take(), ValueError("no"))
    assert sent == ["t.dead"]
