"""What a consumer tells of itself: unwell is never called well."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.client.claim import Claim
from marshal_py.consumer.held_partition import Stage
from marshal_py.consumer.looking import Health, assignment, health
from marshal_py.errors import AccessDenied, BrokerUnavailable
from marshal_py.protocol.holding import Holding


def part(topic: str, partition: int, stage: Stage = Stage.ACTIVE, **more: Any) -> Any:
    fields = {
        "topic": topic,
        "partition": partition,
        "stage": stage,
        "claim": SimpleNamespace(epoch=7, held=True),
        "holding": SimpleNamespace(paused=False),
        "done_above": lambda: (10, [(12, 15), (20, 21)]),
        "is_paused": False,
        "slot": None,
        "suspended": False,
        **more,
    }
    return SimpleNamespace(**fields)


class Core:
    """A consumer that is well."""

    def __init__(self, *parts: Any) -> None:
        self.partitions = SimpleNamespace(all=lambda: list(parts))
        self.delivery = SimpleNamespace(claims_messages=False, position=lambda _: 10)
        self.wakeup = SimpleNamespace(failure=None)
        self.fetcher = SimpleNamespace(problem=None)
        settings = SimpleNamespace(wire="msgpack")
        self.marshal = SimpleNamespace(failure=None, refused=None, settings=settings)
        self.closing = threading.Event()
        self.started = True
        self.assignment = SimpleNamespace(is_alive=True)


def told(core: Core, stuck: int = 0) -> Health:
    fake: Any = core
    return health(fake, stuck)


def test_a_consumer_that_works_is_well() -> None:
    assert told(Core(part("t", 0))) == Health(True, ())
    assert told(Core()).ok, "others may have all partitions"


def test_each_reason_to_be_unwell_is_told() -> None:
    def unwell(says: str, stuck: int = 0, **changes: Any) -> None:
        core = Core(part("t", 0))
        for name, value in changes.items():
            setattr(core, name, value)
        found = told(core, stuck)
        assert not found.ok
        assert len(found.problems) == 1
        assert says in found.problems[0]

    failed = SimpleNamespace(failure=BrokerUnavailable("nobody answers"))
    closing = threading.Event()
    closing.set()
    unwell("it is closed", closing=closing)
    unwell("not started yet", started=False)
    unwell("BrokerUnavailable: nobody answers", wakeup=failed)
    unwell("BrokerUnavailable: nobody answers", marshal=failed)
    refused = SimpleNamespace(
        failure=None, refused=AccessDenied("lacks Write on topic '__marshal'")
    )
    unwell("AccessDenied: lacks Write on topic", marshal=refused)
    unwell("nothing is fetched for now: ssl", fetcher=SimpleNamespace(problem="ssl"))
    unwell(
        "its thread that claims partitions has ended", assignment=SimpleNamespace(is_alive=False)
    )
    unwell("2 handlers do not return", stuck=2)


def test_leases_that_have_lapsed_are_named() -> None:
    parts = [part("t", p, suspended=p != 1) for p in range(6)]
    found = told(Core(*parts))
    assert found == Health(False, ("the leases of 5 partitions have lapsed: t/0, t/2, t/3",))
    assert len(told(Core(*parts), stuck=1).problems) == 2


def test_a_lease_that_lapses_is_seen_while_on_assigned_keeps_who_looks_after_leases() -> None:
    """As when it waits for a database, and the brokers are gone, too."""
    lapsed = SimpleNamespace(epoch=7, held=False)
    found = told(Core(part("t", 0), part("t", 1, claim=lapsed)))
    assert found == Health(False, ("the leases of 1 partitions have lapsed: t/1",))
    for stage in (Stage.WANTED, Stage.DRAINING, Stage.RELEASING):
        assert told(Core(part("t", 0, stage, claim=lapsed))).ok
    paused = part("t", 0, claim=lapsed, holding=SimpleNamespace(paused=True))
    assert told(Core(paused)).ok, "an operator has paused its group"


@pytest.mark.parametrize("at_most_once", [False, True])
def test_partitions_that_are_worked_on_with_what_is_done_above_gaps(at_most_once: bool) -> None:
    core: Any = Core(
        part("u", 0, Stage.DRAINING, is_paused=True),
        part("t", 0, Stage.WANTED),
        part("t", 2, slot=SimpleNamespace(number=1)),
        part("t", 2, slot=SimpleNamespace(number=0)),
        part("t", 1, Stage.RELEASING),
    )
    core.delivery.claims_messages = at_most_once
    found = assignment(core)
    told = [(p.topic, p.partition, p.slot, p.paused, p.epoch, p.position) for p in found]
    assert told == [
        ("t", 2, 0, False, 7, 10),
        ("t", 2, 1, False, 7, 10),
        ("u", 0, None, True, 7, 10),
    ]
    done = (0, 0) if at_most_once else (4, 2)
    assert [(p.done_above, p.gaps) for p in found] == [done] * 3


def test_partitions_of_version_1_have_no_epoch_and_are_told_all_the_same() -> None:
    """`/metrics` asks for them."""
    core: Any = Core()
    core.marshal.settings.wire = "text"
    driver: Any = SimpleNamespace(settings=core.marshal.settings, lock=threading.RLock())
    held = part("t", 0, claim=Claim(driver, Holding("t", 0, 0)))
    core.partitions.all = lambda: [held]
    assert [(p.epoch, p.position) for p in assignment(core)] == [(-1, 10)]
