"""When another process of one's name is one too many, by a clock that the test sets."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.client.structured_logs import Fields
from marshal_py.consumer import assignment as module
from marshal_py.consumer.assignment import Assignment
from marshal_py.consumer.held_partition import Stage
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.errors import BrokerUnavailable, Closed, DuplicateClientId
from marshal_py.protocol.events import Beat


class Member:
    """Wants one partition, which the instance `holder` holds; an interval is a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        self.holder = "twin"
        self.part = SimpleNamespace(stage=Stage.WANTED, key=("t", 0))
        self.wakeup = Wakeup()
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        marshal: Any = SimpleNamespace(
            failure=None,
            client_id="me",
            instance_id="mine",
            group_id="g",
            settings=SimpleNamespace(wire="binary", interval_ms=1_000),
            cell=lambda *_: SimpleNamespace(instance_id=self.holder),
        )
        fakes: Any = SimpleNamespace(
            all=lambda: [self.part], is_affected_by=lambda _: False, is_behind=False
        )
        log = Fields(logging.getLogger("marshal_py.consumer"), {})
        self.assignment = Assignment(
            marshal, fakes, fakes, fakes, fakes, fakes, fakes, log, self.wakeup
        )

    def hear(
        self, seconds: int, instance: str = "twin", client: str = "me", group: str = "g"
    ) -> None:
        """Hear so many heartbeats, one a second."""
        for _ in range(seconds):
            self.now_s += 1
            self.assignment._on_events(0, [Beat(0, client, instance, group, 0, 1, 0, 1)])

    def look(self) -> bool:
        """Whether it gives up."""
        self.assignment._look_for_a_twin(self.now_s)
        return isinstance(self.wakeup.failure, DuplicateClientId)


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Member:
    return Member(monkeypatch)


def test_who_has_nothing_gives_up_when_its_twin_has_all_for_three_intervals(member: Member) -> None:
    member.hear(3)
    assert not member.look()
    member.hear(1)
    assert member.look()


@pytest.mark.parametrize(
    ("instance", "client", "group"),
    [("twin", "me", "other"), ("twin", "other", "g"), ("mine", "me", "g")],
)
def test_whoever_is_of_another_group_or_name_is_no_twin(
    member: Member, instance: str, client: str, group: str
) -> None:
    member.holder = instance
    member.hear(9, instance, client, group)
    assert not member.look()


def test_a_twin_that_has_gone_or_that_was_started_anew_is_waited_for(member: Member) -> None:
    member.hear(3, instance="before")
    member.hear(3)
    assert not member.look()
    member.hear(1)
    member.now_s += 2.5  # silent for so long
    assert not member.look()


def test_who_holds_something_or_wants_what_a_third_one_holds_goes_on(member: Member) -> None:
    member.hear(9)
    member.part.stage = Stage.ACTIVE
    assert not member.look()
    member.part.stage = Stage.WANTED
    member.holder = "third"
    assert not member.look()


def test_each_round_hears_what_the_kafka_client_tells_while_nobody_fetches(member: Member) -> None:
    heard: list[bool] = []
    assignment: Any = member.assignment
    assignment._partitions = SimpleNamespace(all=list, tell_of_lost=lambda: None)
    assignment._claims = SimpleNamespace(round=lambda _: None)
    assignment._fetcher = SimpleNamespace(hear=lambda: heard.append(True))
    assignment._round()
    assert heard == [True]


def test_where_the_client_was_closed_before_nobody_looks_at_topics_any_more(
    member: Member,
) -> None:
    """It would be for as long as the process lives, with another Kafka client."""
    stopped: list[bool] = []
    assignment: Any = member.assignment
    assignment._topics = SimpleNamespace(stop=lambda: stopped.append(assignment._stopped.is_set()))
    assignment.close(0.0, 0.0, release=True)
    assert stopped == [True]


@pytest.mark.parametrize("problem", [BrokerUnavailable("down"), Closed("elsewhere"), ValueError()])
def test_who_closes_does_not_wait_for_a_round_that_fails(
    member: Member, problem: Exception
) -> None:
    """Nothing of it would ever be given back."""
    assignment: Any = member.assignment
    left: list[Any] = [member.part]
    assignment._partitions = SimpleNamespace(
        all=lambda: list(left), remove=left.remove, tell_of_lost=lambda *, now: None
    )
    assignment._wait_s = lambda: 0.0

    def fail() -> None:
        assignment._stopped.set()  # there would be no end
        raise problem

    assignment._round, assignment._closing = fail, True
    assignment._run()
    assert left == []
    assert assignment._settled.is_set()
