"""The harvester and its threads, on fakes: elections, faults, stopping."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.core.interfaces.listener import WakeSignal
from harvest.core.interfaces.mark_store import MarkStore
from harvest.core.mark import Limits
from harvest.core.row import Row
from harvest.errors import (
    ConfigurationError,
    SinkHangs,
    SinkUnavailable,
    StoreUnavailable,
    TableMissing,
)
from harvest.outbox.record import OutboxRecord
from harvest.runtime import harvester as module
from harvest.runtime import leadership, publisher
from harvest.runtime.action_threads import ActionThread
from harvest.runtime.events import (
    Event,
    LeaderAcquired,
    LeaderFenced,
    LeaderRefreshed,
    LeaderRevoked,
)
from harvest.runtime.harvester import Harvester
from harvest.runtime.leadership import Tools
from harvest.runtime.lease import Lease
from harvest.runtime.mark_leader import MarkTools
from harvest.runtime.wake import WakeEvent
from harvest.testing.memory_broker import MemoryBroker, MemorySink
from harvest.testing.memory_table import MemoryMarkStore, MemoryTable
from tests.support.interleave import Case, explore

WAIT_S = 20.0
LIMITS = Limits(io_error_backoff_ms=1, max_io_error_backoff_ms=5, max_poll_interval_ms=5)


class FakeLease:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.lost = threading.Event()

    @property
    def held(self) -> bool:
        return not self.lost.is_set()

    @property
    def remaining_ms(self) -> float:
        return 1_000.0 if self.held else 0.0

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        return self.lost.wait(timeout_s)


class FakeCandidacy:
    """Elects whoever stands, unless `refuse` is set."""

    interval_s = 0.05

    def __init__(self) -> None:
        self.leases: list[FakeLease] = []
        self.condition = threading.Condition()
        self.refuse = False
        self.resigned = 0
        self.stands = threading.Event()
        self.withdrawn = threading.Event()
        self._leads = False

    def start(self, wake: Callable[[], None]) -> None: ...

    def elected(self) -> list[tuple[int, Lease]]:
        if self._leads or self.refuse or not self.stands.is_set():
            return []
        self._leads = True
        lease = FakeLease(len(self.leases))
        with self.condition:
            self.leases.append(lease)
            self.condition.notify_all()
        return [(0, lease)]

    def stand(self, leading: Collection[int]) -> None:
        del leading
        self.stands.set()

    def withdraw(self) -> None:
        self.stands.clear()
        self.withdrawn.set()

    def resign(self, shard: int, *, wait: bool = False) -> None:
        del shard, wait
        self._leads = False
        self.stands.clear()
        with self.condition:
            self.resigned += 1
            self.condition.notify_all()

    def close(self) -> None: ...

    def wait_for(self, elections: int) -> FakeLease:
        with self.condition:
            assert self.condition.wait_for(lambda: len(self.leases) >= elections, WAIT_S)
        return self.leases[elections - 1]


class CountingBroker(MemoryBroker):
    """A broker that can be waited for."""

    def wait_for(self, count: int) -> list[int]:
        for _ in range(int(WAIT_S * 500)):
            if len(self.published) >= count:
                break
            threading.Event().wait(0.002)
        return [row.id for row in self.published]


class Bench:
    def __init__(self) -> None:
        self.table = MemoryTable()
        self.broker = CountingBroker()
        self.candidacy = FakeCandidacy()
        self.events: list[Event] = []
        self.stores: list[MemoryMarkStore] = []
        self.sinks: list[MemorySink] = []
        self.harvester = Harvester(
            self.candidacy,
            self.tools(),
            warm_standby=True,
            on_event=self.events.append,
            drain_timeout_s=WAIT_S,
        )

    def tools(
        self, store: Callable[[], MarkStore] | None = None, *, limits: Limits = LIMITS
    ) -> Callable[[int], Tools]:
        make = store or self.store
        return lambda _: MarkTools(make(), make(), self.sink(), limits)

    def store(self) -> MarkStore:
        self.stores.append(MemoryMarkStore(self.table))
        return self.stores[-1]

    def sink(self) -> MemorySink:
        self.sinks.append(MemorySink(self.broker))
        return self.sinks[-1]

    def insert(self, count: int) -> list[int]:
        return self.table.insert(*(OutboxRecord("t", "k", str(n)) for n in range(count)))

    @contextmanager
    def running(self) -> Iterator[threading.Thread]:
        thread = threading.Thread(target=self.harvester.run, daemon=True)
        thread.start()
        try:
            yield thread
        finally:
            self.harvester.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_rows_are_published_once_in_order_and_purged(bench: Bench) -> None:
    ids = bench.insert(1_000)
    with bench.running():
        assert bench.broker.wait_for(1_000) == ids
    assert bench.table.committed == {}
    assert bench.harvester.stats.published == 1_000


def test_the_events_of_a_life_in_good_order(bench: Bench) -> None:
    bench.insert(1)
    with bench.running():
        bench.broker.wait_for(1)
    assert [type(event) for event in bench.events] == [
        LeaderAcquired,
        LeaderRefreshed,
        LeaderRevoked,
    ]
    assert bench.candidacy.resigned == 1


def test_a_lost_lease_ends_the_work_and_the_next_election_resumes_it(bench: Bench) -> None:
    first = bench.insert(10)
    with bench.running():
        bench.broker.wait_for(10)
        bench.candidacy.leases[0].lost.set()
        bench.candidacy.wait_for(2)
        second = bench.insert(10)
        assert bench.broker.wait_for(20) == first + second
    assert LeaderFenced(0) in bench.events
    assert bench.candidacy.resigned == 2


@pytest.mark.parametrize("fault", ["refused", "unknown, published", "unknown, lost"])
def test_a_delivery_fault_repeats_and_loses_nothing(bench: Bench, fault: str) -> None:
    with bench.running():
        bench.candidacy.wait_for(1)
        bench.sinks[0].fault = fault  # type: ignore[assignment]
        ids = bench.insert(5)
        bench.broker.wait_for(5)
        ids += bench.insert(5)
        assert bench.broker.wait_for(10) == ids


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_database_fault_repeats_and_loses_nothing(bench: Bench, fault: str, which: int) -> None:
    with bench.running():
        bench.candidacy.wait_for(1)
        bench.stores[which].fail_next = fault  # type: ignore[assignment]
        ids = bench.insert(5)
        bench.broker.wait_for(5)
        ids += bench.insert(5)
        assert bench.broker.wait_for(10) == ids
    assert bench.table.committed == {}


class FakeListener:
    def __init__(self) -> None:
        self.wake_event: WakeSignal = WakeEvent()

    def start(self, wake_event: WakeSignal) -> None:
        self.wake_event = wake_event
        wake_event.listening = True
        wake_event.wake()

    def close(self) -> None:
        self.wake_event.listening = False


def test_a_notification_wakes_an_idle_harvester_long_before_its_next_poll(bench: Bench) -> None:
    listener = FakeListener()
    bench.harvester = Harvester(
        bench.candidacy,
        bench.tools(limits=Limits(notified_poll_interval_ms=600_000)),
        listener=listener,
    )
    published = 0
    with bench.running():
        for count in (1, 3, 2):
            bench.insert(count)
            published += count
            listener.wake_event.wake()
            assert len(bench.broker.wait_for(published)) == published
    assert not listener.wake_event.listening


def test_stopping_does_not_wait_for_the_next_poll(bench: Bench) -> None:
    bench.harvester = Harvester(
        bench.candidacy,
        bench.tools(limits=Limits(notified_poll_interval_ms=600_000)),
        listener=FakeListener(),
    )
    with bench.running():
        bench.candidacy.wait_for(1)
    assert bench.candidacy.resigned == 1


def test_what_was_refused_is_forgotten_when_another_process_leads(bench: Bench) -> None:
    """Somebody has decided, and the other one found nothing wrong: else it would not lead still."""
    harvester = bench.harvester
    harvester._refusals[0] = "it is another server"
    bench.candidacy.refuse = True
    harvester._stands_again_s = time.monotonic() - 1
    harvester._round()
    assert harvester.refusal == "it is another server", "perhaps the other one looks right now"
    harvester._stands_again_s = time.monotonic() - module._REFUSES_S - 1
    harvester._round()
    assert harvester.refusal is None


def test_what_was_refused_is_not_forgotten_by_whoever_looks_again(bench: Bench) -> None:
    harvester, led = bench.harvester, module._LedShard(0, FakeLease(1))
    harvester._refusals[0] = "it is another server"
    harvester._led[0] = led
    harvester._stands_again_s = time.monotonic() - module._REFUSES_S - 1
    bench.candidacy.refuse = True
    harvester._round()
    assert harvester.refusal == "it is another server"


def test_a_refusal_is_told_while_another_one_comes(bench: Bench) -> None:
    """A thread that leads notes it, and others ask."""

    def case() -> Case:
        harvester = Harvester(bench.candidacy, bench.tools())
        harvester._refusals[0] = "it is another server"

        def ask() -> str | None:
            return harvester.refusal

        def note() -> None:
            harvester._refusals[1] = "so it is"

        def check(asked: str | None, _: None) -> None:
            assert asked == "it is another server"

        return Case(ask, note, check)

    explore(case, [module, sys.modules[__name__]], preemptions=1, grain="opcode")


def test_stopping_before_the_election(bench: Bench) -> None:
    bench.candidacy.refuse = True
    bench.insert(1)
    with bench.running():
        pass
    assert bench.broker.published == []
    assert bench.events == []


def test_a_standby_that_ends_closes_what_it_had_connected(bench: Bench) -> None:
    closed = threading.Semaphore(0)

    class Closing(MemoryMarkStore):
        def close(self) -> None:
            closed.release()
            super().close()

    bench.candidacy.refuse = True
    tools = bench.tools(lambda: Closing(bench.table))
    bench.harvester = Harvester(bench.candidacy, tools, warm_standby=True)
    with bench.running():
        assert bench.candidacy.stands.wait(WAIT_S)
    assert closed.acquire(blocking=False)
    assert closed.acquire(blocking=False)


def test_a_missing_table_is_told_at_once(bench: Bench) -> None:
    class Missing(MemoryMarkStore):
        def connect(self) -> None:
            raise TableMissing

    harvester = Harvester(
        bench.candidacy, bench.tools(lambda: Missing(bench.table)), warm_standby=True
    )
    with pytest.raises(TableMissing):
        harvester.run()
    assert bench.candidacy.leases == []


def test_an_outage_that_never_ends_does_not_hold_up_a_stop(bench: Bench) -> None:
    class Down(MemoryMarkStore):
        def mark(self, *_: object) -> list[Row]:
            raise StoreUnavailable

    down = [False]

    def store() -> MarkStore:
        return Down(bench.table) if down else MemoryMarkStore(bench.table)

    bench.harvester = Harvester(bench.candidacy, bench.tools(store), warm_standby=True)
    with bench.running():
        bench.candidacy.wait_for(1)
    assert bench.candidacy.resigned == 1


class Server:
    """A database server that can be out of reach."""

    def __init__(self, table: MemoryTable) -> None:
        self.table = table
        self.is_down = False

    def store(self) -> MarkStore:
        server = self

        class Store(MemoryMarkStore):
            def connect(self) -> None:
                if server.is_down:
                    raise StoreUnavailable
                super().connect()

            def mark(self, *arguments: Any) -> list[Row]:
                if server.is_down:
                    raise StoreUnavailable
                return super().mark(*arguments)

        return Store(self.table)


@pytest.fixture
def server(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Whether it can be reached again is tried all the time."""
    monkeypatch.setattr(module, "_TRY_S", 0.001)
    return Server(bench.table)


@pytest.mark.parametrize("warm", [True, False])
def test_a_leader_without_its_database_lets_others_lead_until_it_reaches_it_again(
    bench: Bench, server: Server, monkeypatch: pytest.MonkeyPatch, *, warm: bool
) -> None:
    monkeypatch.setattr(module, "_CUT_OFF_S", 0.05)
    candidacy = bench.candidacy
    bench.harvester = Harvester(candidacy, bench.tools(server.store), warm_standby=warm)
    with bench.running():
        first = bench.insert(5)
        assert bench.broker.wait_for(5) == first
        server.is_down = True
        assert candidacy.withdrawn.wait(WAIT_S)
        with candidacy.condition:
            assert candidacy.condition.wait_for(lambda: candidacy.resigned, WAIT_S)
        assert bench.harvester.state == "standing by"
        second = bench.insert(5)
        assert not candidacy.stands.wait(0.1), "others can lead for as long as it is cut off"
        assert len(candidacy.leases) == 1
        server.is_down = False
        assert bench.broker.wait_for(10) == first + second
    assert len(candidacy.leases) == 2


def test_who_is_elected_and_does_not_reach_the_database_stands_no_more_until_it_does(
    bench: Bench, server: Server
) -> None:
    candidacy = bench.candidacy
    server.is_down = True
    bench.harvester = Harvester(candidacy, bench.tools(server.store))
    with bench.running():
        ids = bench.insert(5)
        assert candidacy.withdrawn.wait(WAIT_S)
        assert len(candidacy.leases) == 1
        server.is_down = False
        assert bench.broker.wait_for(5) == ids
    assert len(candidacy.leases) == 2


def test_a_standby_without_a_database_does_not_stand(bench: Bench, server: Server) -> None:
    candidacy = bench.candidacy
    bench.harvester = Harvester(candidacy, bench.tools(server.store), warm_standby=True)
    with bench.running():
        lease = candidacy.wait_for(1)
        server.is_down = candidacy.refuse = True
        lease.lost.set()
        assert candidacy.withdrawn.wait(WAIT_S)
        server.is_down = candidacy.refuse = False
        ids = bench.insert(5)
        assert bench.broker.wait_for(5) == ids


@pytest.mark.parametrize(
    ("error", "reached"), [(StoreUnavailable, False), (SinkUnavailable, True), (TableMissing, True)]
)
def test_a_database_that_answers_is_reached_whatever_it_says(
    bench: Bench, error: type[Exception], *, reached: bool
) -> None:
    """Whoever then leads says what is wrong; who stood for nothing would be silent for ever."""

    class Store(MemoryMarkStore):
        def connect(self) -> None:
            raise error

    harvester = Harvester(bench.candidacy, bench.tools(lambda: Store(bench.table)))
    assert harvester._reaches_database() is reached


@pytest.mark.parametrize(("error", "kept"), [(StoreUnavailable, False), (SinkUnavailable, True)])
def test_a_standby_without_a_database_keeps_no_other_connection(
    bench: Bench, error: type[Exception], *, kept: bool
) -> None:
    """It connects anew every few seconds, for as long as the outage lasts."""
    closed: list[bool] = []

    def connect() -> None:
        raise error

    tools: Any = SimpleNamespace(connect=connect, close=lambda: closed.append(True))
    harvester = Harvester(bench.candidacy, lambda _: tools, warm_standby=True)
    harvester._connect_spare()
    assert (closed, harvester._spare) == (([], tools) if kept else ([True], None))


def test_a_standby_whose_tools_cannot_be_made_now_goes_on(bench: Bench) -> None:
    """As while a certificate is being replaced."""

    def unmade() -> MarkStore:
        raise SinkUnavailable("the certificates cannot be read")

    harvester = Harvester(bench.candidacy, bench.tools(unmade), warm_standby=True)
    harvester._connect_spare()
    assert harvester._spare is None
    assert harvester._reaches_database()


def test_who_could_not_begin_to_lead_does_not_try_again_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []

    class Lease(FakeLease):
        def wait_lost(self, timeout_s: float | None = None) -> bool:
            waited.append(timeout_s)
            return False

    class Down(MemorySink):
        def prepare(self) -> None:
            raise SinkUnavailable

    monkeypatch.setattr(bench, "sink", lambda: Down(bench.broker))
    harvester = Harvester(bench.candidacy, bench.tools())
    harvester._lead(module._LedShard(0, Lease(0)))
    assert waited == [bench.candidacy.interval_s]


def test_a_leader_whose_sink_is_out_of_reach_goes_on_leading(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ails Kafka ails all: and without it, the lease ends."""
    monkeypatch.setattr(module, "_CUT_OFF_S", 0.01)
    opened = threading.Semaphore(0)

    class Down(MemorySink):
        def open(self, *_: object) -> None:
            opened.release()
            raise SinkUnavailable

    monkeypatch.setattr(bench, "sink", lambda: Down(bench.broker))
    bench.harvester = Harvester(bench.candidacy, bench.tools())
    with bench.running():
        for _ in range(20):
            assert opened.acquire(timeout=WAIT_S)
        assert bench.harvester.stuck_s > 0.01
        assert not bench.candidacy.withdrawn.is_set()
    assert len(bench.candidacy.leases) == 1


def test_what_a_thread_did_not_foresee_ends_the_process(bench: Bench) -> None:
    class Broken(MemoryMarkStore):
        def mark(self, *_: object) -> list[Row]:
            raise ZeroDivisionError

    def broken() -> MarkStore:
        return Broken(bench.table)

    harvester = Harvester(bench.candidacy, bench.tools(broken), warm_standby=True)
    with pytest.raises(ZeroDivisionError):
        harvester.run()
    assert bench.candidacy.resigned == 1


def test_a_sink_that_hangs_ends_the_process_also_where_it_cannot_be_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "HANGS_AFTER_S", 0.0)
    monkeypatch.setattr(leadership, "_CLOSE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT_S", 0.01)
    forever = threading.Event()

    class Hung(MemorySink):
        def open(self, *_: object) -> None:
            forever.wait()

        def close(self) -> None:
            forever.wait()

    monkeypatch.setattr(bench, "sink", lambda: Hung(bench.broker))
    harvester = Harvester(bench.candidacy, bench.tools(), drain_timeout_s=0.01)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            harvester.run()
        except SinkHangs as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    resigned = bench.candidacy.resigned
    forever.set()
    assert len(raised) == resigned == 1


def test_what_the_configuration_forbids_is_raised_and_told_by_nobody_else(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def forbid(_: Event) -> None:
        raise ConfigurationError("no")

    harvester = Harvester(bench.candidacy, bench.tools(), warm_standby=True, on_event=forbid)
    with pytest.raises(ConfigurationError):
        harvester.run()
    assert not caplog.records


@pytest.mark.parametrize("error", [ConfigurationError, ZeroDivisionError])
def test_tools_that_cannot_be_made_end_the_leadership_and_the_process(
    bench: Bench, error: type[Exception]
) -> None:
    """As do those that cannot connect: the shard would be held, and published by nobody."""

    def unmade() -> MarkStore:
        raise error("the certificates cannot be read")

    harvester = Harvester(bench.candidacy, bench.tools(unmade))
    led = module._LedShard(0, FakeLease(0))
    harvester._lead(led)
    assert led.is_over, "and its claim is given back"
    with pytest.raises(error, match="certificates"):
        harvester.run()


def test_a_thread_merges_what_waits_and_keeps_the_order() -> None:
    started, proceed = threading.Event(), threading.Event()
    seen: list[list[int]] = []

    def work(actions: object) -> None:
        seen.append(list(actions))  # type: ignore[call-overload]
        started.set()
        assert proceed.wait(WAIT_S)

    thread: ActionThread[int] = ActionThread("test", work)
    thread.start(crashed)
    thread.put(0)
    assert started.wait(WAIT_S)
    for number in range(1, 5):
        thread.put(number)
    proceed.set()
    while sum(map(len, seen)) < 5:
        threading.Event().wait(0.001)
    assert thread.close(WAIT_S)
    assert seen == [[0], [1, 2, 3, 4]]


def test_closing_a_thread_drops_what_waits() -> None:
    started, proceed = threading.Event(), threading.Event()
    seen: list[object] = []

    def work(actions: object) -> None:
        seen.append(actions)
        started.set()
        assert proceed.wait(WAIT_S)

    thread: ActionThread[int] = ActionThread("test", work)
    thread.start(crashed)
    thread.put(0)
    assert started.wait(WAIT_S)
    thread.put(1)
    assert not thread.close(0.001)
    proceed.set()
    assert thread.close(WAIT_S)
    assert seen == [[0]]


def test_a_thread_that_crashes_says_so() -> None:
    heard: list[BaseException] = []
    told = threading.Event()

    def tell(error: BaseException) -> None:
        heard.append(error)
        told.set()

    def work(_: object) -> None:
        raise KeyError("x")

    thread: ActionThread[int] = ActionThread("test", work)
    thread.start(tell)
    thread.put(1)
    assert told.wait(WAIT_S)
    assert isinstance(heard[0], KeyError)
    assert thread.close(WAIT_S)


def crashed(error: BaseException) -> None:
    raise AssertionError from error
