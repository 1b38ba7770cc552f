"""Who leads, as a candidate and as a watcher hear of it, without a log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.client.leader_election import Leader, Leadership, LeaderWatch, leader_topic
from marshal_py.errors import ClaimTimeout, Closed, InvalidArgument
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import MAX_TOPIC_LENGTH


class Driver:
    """Hands on events as the log brings them; hooks run at once."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.settings = SimpleNamespace(group_id="g", client_id="me")
        self.log = logging.getLogger("marshal_py")
        self.cell: Any = None
        self.world = SimpleNamespace(cell=lambda *_: self.cell)
        self.hooks = SimpleNamespace(call=lambda function: function())
        self.stopped = 0
        self.on_ended: list[Callable[[], None]] = []
        self.has_ended = False

    def listen(self, listen: Callable[..., None], start_over: Callable[..., None]) -> Any:
        self.tell, self.start_over = listen, start_over
        return self._stop

    def _stop(self) -> None:
        self.stopped += 1

    def check_open(self) -> None:
        raise Closed("the client has been closed")

    def end(self) -> None:
        self.has_ended = True
        for hear in list(self.on_ended):
            hear()


def claimed(client: str, epoch: int, *, name: str = "x", group: str = "g") -> ev.Event:
    return ev.Claimed(
        1, seq=0, epoch=epoch, interval_ms=5, previous_holder=None, previous_instance_id=None,
        previous_epoch=0, client_id=client, instance_id="i", group_id=group,
        topic=leader_topic(name), partition=0,
    )  # fmt: skip


def released(client: str, epoch: int) -> ev.Event:
    return ev.Released(
        1, seq=0, epoch=epoch, next_offset=-1, client_id=client, instance_id="i", group_id="g",
        topic=leader_topic("x"), partition=0,
    )  # fmt: skip


def watch(driver: Any, said: list[Any]) -> LeaderWatch:
    return LeaderWatch(driver, "x", lambda old, new: said.append((old, new)))


def test_a_watch_hears_of_its_own_name_in_its_own_group_alone() -> None:
    driver, said = Driver(), list[Any]()
    watching = watch(driver, said)
    driver.tell(0, [claimed("a", 1, name="y"), claimed("a", 1, group="h")])
    assert (watching.current, said) == (None, [])
    driver.tell(0, [claimed("a", 1)])
    driver.tell(0, [released("a", 1), claimed("b", 2)])
    a, b = Leader("a", "i", 1), Leader("b", "i", 2)
    assert said == [(None, a), (a, None), (None, b)]
    assert watching.wait(1, timeout_s=0) == b
    assert watching.wait(2, timeout_s=0) is None, "its epoch is not above"


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_watch_whose_callback_raises_knows_what_came_with_it(
    caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    driver, said = Driver(), list[Any]()

    def fail(old: Leader | None, new: Leader | None) -> None:
        said.append(new)
        raise kind("of the user's own")

    watching = LeaderWatch(driver, "x", fail)  # type: ignore[arg-type]
    driver.tell(0, [claimed("a", 1), released("a", 1), claimed("b", 2)])
    assert said == [Leader("a", "i", 1), None, Leader("b", "i", 2)]
    assert watching.current == Leader("b", "i", 2)
    assert "me: on_change of the leader of 'x' raised" in caplog.text


def test_who_waits_for_a_leader_hears_that_the_client_or_the_watch_is_closed() -> None:
    for way in ("client", "watch"):
        driver, said = Driver(), list[Any]()
        watching = LeaderWatch(driver, "x")  # type: ignore[arg-type]

        def wait(watching: LeaderWatch = watching, said: list[Any] = said) -> None:
            try:
                said.append(watching.wait())
            except Closed as error:
                said.append(str(error))

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        (driver.end if way == "client" else watching.close)()
        waiting.join(10)
        assert said == ["the client has been closed" if way == "client" else None]
        driver.tell(0, [claimed("a", 1)])
        assert watching.wait() == Leader("a", "i", 1), "what it knows it tells"
        watching.close()
        assert driver.on_ended == []
        driver.end()
        assert watching.wait(epoch_above=1) is None, "who has closed the watch need not be told"


def test_what_a_watch_has_read_at_its_start_is_no_change() -> None:
    driver, said = Driver(), list[Any]()
    driver.cell = SimpleNamespace(holder="b", instance_id="i", epoch=2)
    watching = watch(driver, said)
    driver.tell(0, [claimed("a", 1), claimed("b", 2)])
    assert (watching.current, said) == (Leader("b", "i", 2), [])


def test_of_a_log_that_begins_anew_a_watch_believes_lower_epochs() -> None:
    driver, said = Driver(), list[Any]()
    driver.cell = SimpleNamespace(holder="b", instance_id="i", epoch=2)
    watching = watch(driver, said)
    driver.start_over("the log was made anew")
    assert said == [], "the same leader is no change"
    driver.cell = SimpleNamespace(holder="a", instance_id="i", epoch=1)
    driver.start_over("the log was made anew")
    assert said == [(Leader("b", "i", 2), Leader("a", "i", 1))]
    with watching:
        pass
    assert driver.stopped == 1


class Claim:
    held = True
    epoch = 7
    on_lost: Callable[[Any], None]

    def __init__(self) -> None:
        self.releases: list[bool] = []

    def release(self, *, wait: bool, timeout_s: float = 0.0) -> None:
        self.releases.append(wait)
        if wait:
            raise ClaimTimeout("slow")


class Registry:
    """Has one claim; `error` is what waiting for it ends with."""

    def __init__(self) -> None:
        self.claim = Claim()
        self.asked = 0
        self.error: BaseException | None = None
        self.driver = SimpleNamespace(lock=threading.RLock())

    def want(self, *_: object) -> Claim:
        self.asked += 1
        return self.claim

    def give_up(self, claim: Claim) -> None:
        self.asked -= 1
        if not self.asked:
            claim.release(wait=False)

    def wait_held(self, *_: object) -> Iterator[Any]:
        if self.error is not None:
            raise self.error
        yield from ()


def candidate() -> tuple[Registry, Leadership]:
    registry: Any = Registry()
    return registry, Leadership(registry, "x")


@pytest.mark.parametrize("error", [ClaimTimeout("later"), KeyboardInterrupt()])
def test_who_is_not_elected_does_not_stand_on(error: BaseException) -> None:
    registry, leadership = candidate()
    registry.error = error
    with pytest.raises(type(error)) as raised:
        list(leadership.campaign_steps(1.0))
    assert registry.claim.releases == [False]
    assert (leadership.held, leadership.epoch) == (False, -1)
    if isinstance(error, ClaimTimeout):
        assert "not elected leader of 'x'" in str(raised.value)


@pytest.mark.parametrize("error", [ClaimTimeout("later"), KeyboardInterrupt(), GeneratorExit()])
def test_who_has_lapsed_and_waits_in_vain_keeps_the_claim_that_may_come_back(
    error: BaseException,
) -> None:
    """In asyncio, a time-out cancels (`GeneratorExit`)."""
    registry, leadership = candidate()
    list(leadership.campaign_steps(1.0))
    registry.error = error
    with pytest.raises(type(error)):
        list(leadership.campaign_steps(1.0))
    assert registry.claim.releases == []


def test_a_hook_is_looked_up_when_it_is_due_and_a_slow_release_is_no_failure() -> None:
    registry, leadership = candidate()
    lost: list[Leadership] = []
    with leadership:
        assert (leadership.held, leadership.epoch) == (True, 7)
        registry.claim.on_lost(registry.claim)
        leadership.on_lost = lost.append
        registry.claim.on_lost(registry.claim)
    assert lost == [leadership]
    assert registry.claim.releases == [True]


def test_a_name_fits_into_that_of_a_topic() -> None:
    longest = MAX_TOPIC_LENGTH - len("leader:")
    assert leader_topic("x" * longest) == "leader:" + "x" * longest
    for name in ("", "x" * (longest + 1), 7):
        with pytest.raises(InvalidArgument, match="leader name = "):
            leader_topic(name)  # type: ignore[arg-type]


def test_who_has_its_position_set_leads_no_more() -> None:
    """By an operator, say: nobody else leads before somebody has claimed it."""
    driver, said = Driver(), list[Any]()
    watching = watch(driver, said)
    placed = ev.PositionSet(
        2, seq=0, next_offset=0, client_id="op", instance_id="i", group_id="g",
        topic=leader_topic("x"), partition=0,
    )  # fmt: skip
    driver.tell(0, [claimed("a", 1), placed])
    assert said == [(None, Leader("a", "i", 1)), (Leader("a", "i", 1), None)]
    assert watching.current is None


def test_each_hook_of_a_leadership_is_called_for_what_it_is_named_after() -> None:
    registry, leadership = candidate()
    called: list[str] = []
    leadership.on_lost = lambda _: called.append("lost")
    leadership.on_lapsed = lambda _: called.append("lapsed")
    leadership.on_regained = lambda _: called.append("regained")
    list(leadership.campaign_steps(1.0))
    claim: Any = registry.claim
    for hook in (claim.on_lapsed, claim.on_regained, claim.on_lost):
        hook(claim)
    assert called == ["lapsed", "regained", "lost"]


def test_who_resigns_waits_as_long_as_it_is_told_to() -> None:
    registry, leadership = candidate()
    given: list[dict[str, Any]] = []
    registry.claim.release = lambda **how: given.append(how)  # type: ignore[method-assign]
    leadership.resign()  # there is nothing to hand over
    assert leadership.wait_lost(0)
    assert (leadership.remaining_ms, leadership.reason) == (0.0, None)
    list(leadership.campaign_steps(1.0))
    registry.claim.wait_lost = lambda timeout_s: given.append({"lost": timeout_s})  # type: ignore[attr-defined]
    leadership.wait_lost(1.5)
    assert given.pop() == {"lost": 1.5}
    leadership.resign(timeout_s=2.5)
    leadership.resign(wait=False)
    assert given == [{"wait": True, "timeout_s": 2.5}, {"wait": False, "timeout_s": 10.0}]


def test_of_a_log_that_begins_anew_a_watch_is_told_in_its_turn() -> None:
    """Under the driver's lock, a slow callback would delay heartbeats; and order counts."""
    driver, said = Driver(), list[Any]()
    watching = watch(driver, said)
    later: list[Callable[[], None]] = []
    driver.hooks.call = later.append
    driver.cell = SimpleNamespace(holder="a", instance_id="i", epoch=1)
    driver.start_over("the log was made anew")
    assert (watching.current, said) == (None, [])
    for hook in later:
        hook()
    assert said == [(None, Leader("a", "i", 1))]
