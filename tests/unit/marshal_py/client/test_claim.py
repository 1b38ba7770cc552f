"""One claim, and several that are waited for together, with a driver of the test's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py import Claim
from marshal_py.client.claim import core_of
from marshal_py.client.claims import ClaimRegistry
from marshal_py.client.waiting import Steps
from marshal_py.errors import ClaimTimeout, Closed, DuplicateClientId, NotHeld
from marshal_py.protocol.claimant import ClaimState, Holding, Notice

SEQ = 7


class Driver:
    """Hooks run at once; each claim of messages is number `SEQ`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.now_ns = 0
        self.log = logging.getLogger("marshal_py")
        self.settings = SimpleNamespace(client_id="me", wire="msgpack")
        self.hooks = SimpleNamespace(start=lambda: None, call=lambda hook: hook())
        self.claimant = SimpleNamespace(claim_messages=lambda *_: SEQ)
        self.running = True
        self.did: list[str] = []

    def clock(self) -> int:
        return self.now_ns

    def check_open(self) -> None: ...
    def carry_out(self) -> None: ...
    def refresh_offsets(self) -> None:
        self.did.append("refresh")


def held(driver: Any) -> Claim:
    holding = Holding("t", 0, 0)
    holding.state, holding.lease_until_ns, holding.acquired = ClaimState.HELD, 100, True
    return Claim(driver, holding)


@pytest.mark.parametrize("kind", ["messages_claimed", "messages_rejected"])
@pytest.mark.parametrize("is_lapsed", [False, True])
def test_messages_are_only_delivered_if_the_lease_stands_when_the_log_has_answered(
    kind: Any, is_lapsed: bool
) -> None:
    """Whoever has taken over meanwhile may have them."""
    driver = Driver()
    claim = held(driver)
    core = core_of(claim)
    with driver.lock:
        steps = core.claim_messages(9, 1.0)
        wait = next(steps)
        claim.hear(Notice(kind, core.holding, "epoch", SEQ + 1))
        assert not wait.predicate()
        claim.hear(Notice(kind, core.holding, "epoch", SEQ))
        assert wait.predicate()
        driver.now_ns = 100 * is_lapsed
        with pytest.raises(StopIteration) as end:
            steps.send(True)
    assert end.value.value is (kind == "messages_claimed" and not is_lapsed)


@pytest.mark.parametrize(
    ("call", "did"),
    [
        (lambda claim: claim.commit(5), ["commit"]),
        (lambda claim: claim.commit(5, wait=True), ["refresh", "commit at once"]),
        (lambda claim: claim.release(wait=False), ["release"]),
        (lambda claim: _unsent(claim).release(wait=False), ["refresh", "release"]),
    ],
    ids=["later", "at once", "as it is", "with metadata"],
)
def test_a_heartbeat_that_goes_at_once_for_one_claim_has_the_positions_of_all(
    call: Callable[[Claim], None], did: list[str]
) -> None:
    driver = Driver()

    def commit(holding: Holding, next_offset: int, _: int, *, flush: bool) -> None:
        driver.did.append("commit at once" if flush else "commit")
        holding.stored_offset = next_offset if flush else -1

    driver.claimant.commit = commit
    driver.claimant.release = lambda *_: driver.did.append("release")
    call(held(driver))
    assert driver.did == did


def _unsent(claim: Claim) -> Claim:
    core_of(claim).holding.metadata = b"not in the log yet"
    return claim


@pytest.mark.parametrize(
    ("timeout_s", "lost", "waits"), [(1.5, False, [1.5]), (90, True, [60]), (None, True, [60])]
)
def test_the_end_of_a_claim_is_waited_for_until_its_lease_ends_or_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float | None, lost: bool, waits: list[float]
) -> None:
    driver = Driver()
    claim = held(driver)
    core: Any = core_of(claim)
    core.holding.lease_until_ns, waited = 60_000_000_000, list[float]()

    def wait(wait_s: float) -> None:
        waited.append(wait_s)
        driver.now_ns += int(wait_s * 1e9)

    core.not_held = SimpleNamespace(wait=wait)
    monkeypatch.setattr("time.monotonic", lambda: driver.now_ns / 1e9)
    assert claim.wait_lost(timeout_s) is lost
    assert waited == waits


@pytest.mark.parametrize("acquired", [False, True])
def test_who_never_had_a_claim_does_not_lose_it(acquired: bool) -> None:
    driver, lost = Driver(), list[Claim]()
    claim = held(driver)
    claim.on_lost = lost.append
    core_of(claim).holding.acquired = acquired
    with driver.lock:
        claim.hear(Notice("lost", core_of(claim).holding, "taken over"))
    assert lost == [claim] * acquired


def test_claims_that_are_waited_for_together_have_one_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, waits = 100.0, list[float | None]()

    def wait_held(timeout_s: float | None) -> Steps[bool]:
        nonlocal now_s
        waits.append(timeout_s)
        now_s += 3.0
        yield from ()
        return True

    monkeypatch.setattr("time.monotonic", lambda: now_s)
    one: Any = SimpleNamespace(_core=SimpleNamespace(wait_held=wait_held))
    driver: Any = SimpleNamespace()
    registry = ClaimRegistry(driver)
    for timeout_s in (5.0, None):
        list(registry.wait_held([one] * 3, timeout_s))
    assert waits == [5.0, 2.0, 0.0, None, None, None]


def test_work_has_stopped_before_a_claim_is_given_back_to_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, did = Driver(), list[str]()
    claim = held(driver)
    monkeypatch.setattr(claim, "release", lambda *, wait: did.append(f"release, wait={wait}"))
    with driver.lock:
        claim.hear(Notice("paused", core_of(claim).holding))
    assert did == [], "who has nothing to stop waits for the claimant"
    claim.on_pause = lambda _: did.append("stop")
    with driver.lock:
        claim.hear(Notice("paused", core_of(claim).holding))
    assert did == ["stop", "release, wait=False"]


@pytest.mark.parametrize("kind", ["lapsed", "paused", "lost", "released"])
def test_who_waits_for_the_end_of_a_claim_is_woken_by_whatever_ends_it(kind: Any) -> None:
    """By the lease alone it would last much longer; and it is asked anew when it is regained."""
    driver = Driver()
    claim = held(driver)
    core, asked = core_of(claim), list[float | None]()
    core.holding.lease_until_ns = 3_600_000_000_000

    def ends(timeout_s: float | None = None) -> bool:
        asked.append(timeout_s)
        core.holding.state = ClaimState.LAPSED
        with driver.lock:
            claim.hear(Notice(kind, core.holding, "taken over"))
        return wait(0)

    wait, core.not_held.wait = core.not_held.wait, ends  # type: ignore[assignment, method-assign]
    assert claim.wait_lost()
    assert (asked, core.not_held.is_set()) == ([3_600.0], True)
    with driver.lock:
        claim.hear(Notice("regained", core.holding))
    assert not core.not_held.is_set()


class Claimant:
    """Has one cell; knows what was let go of."""

    duplicate_instance_id: str | None = None

    def __init__(self) -> None:
        self.holding = Holding("t", 0, 0)
        self.released: list[Holding] = []

    def want(self, *_: object, **__: object) -> Holding:
        return self.holding

    def release(self, holding: Holding, _: int) -> None:
        self.released.append(holding)


def registry_of_one() -> tuple[Any, Claimant, ClaimRegistry]:
    driver: Any = Driver()
    driver.claimant = claimant = Claimant()
    return driver, claimant, ClaimRegistry(driver)


@pytest.mark.parametrize("how", ["waiting", "lost", "released", "closed"])
def test_a_try_is_over_when_anything_decides_it(how: Any) -> None:
    driver, claimant, registry = registry_of_one()
    with driver.lock:
        steps = registry.try_claim("t", 0, 10.0)
        wait = next(steps)
        assert not wait.predicate()
        driver.on_stopped() if how == "closed" else driver.on_notice(Notice(how, claimant.holding))
        assert wait.predicate()
        with pytest.raises(StopIteration) as end:
            steps.send(True)
    assert end.value.value is None


def test_a_try_that_is_broken_off_is_given_up() -> None:
    """As by a time-out of asyncio: the claim would be won some day, for nobody."""
    driver, claimant, registry = registry_of_one()
    with driver.lock:
        steps = registry.try_claim("t", 0, 10.0)
        next(steps)
        assert claimant.released == []
        steps.close()
    assert claimant.released == [claimant.holding]


@pytest.mark.parametrize("kind", ["lost", "released"])
def test_of_claims_that_have_ended_nothing_is_kept(kind: Any) -> None:
    """A program that runs for years claims ever more."""
    driver, claimant, registry = registry_of_one()
    registry.want("t", 0), registry.want("t", 0)
    with driver.lock:
        driver.on_notice(Notice(kind, claimant.holding))
    assert (registry._claims, dict(registry._asked)) == ({}, {})


def test_of_verdicts_that_nobody_waits_for_nothing_is_kept() -> None:
    """Those of consumers, that hear of them otherwise, and those that come too late."""
    driver = Driver()
    claim = held(driver)
    core = core_of(claim)
    with driver.lock:
        claim.hear(Notice("messages_claimed", core.holding, "", SEQ + 1))
        steps = core.claim_messages(9, 1.0)
        next(steps)
        with pytest.raises(StopIteration) as end:
            steps.send(False)
        claim.hear(Notice("messages_claimed", core.holding, "", SEQ))
    assert end.value.value is False
    assert (core._verdicts, core._awaited) == ({}, set())


def test_what_a_closed_client_has_let_go_of_need_not_be_released() -> None:
    """A block of a claim may end after that of its client."""
    driver: Any = Driver()
    driver.running, driver.claimant = False, None
    with held(driver) as claim:
        claim.release()


def test_the_hooks_of_a_claim_have_a_thread_when_the_first_is_called() -> None:
    driver, did = Driver(), list[str]()
    claim = held(driver)
    driver.hooks.start = lambda: did.append("start")
    with driver.lock:
        claim.hear(Notice("lapsed", core_of(claim).holding))
        assert did == [], "who sets no hook needs none"
        claim.on_lapsed = lambda _: did.append("lapsed")
        claim.hear(Notice("lapsed", core_of(claim).holding))
    assert did == ["start", "lapsed"]


@pytest.mark.parametrize(("duplicate", "kind"), [(None, NotHeld), ("i.2", DuplicateClientId)])
def test_who_waits_for_a_claim_is_told_of_another_process_of_its_name(
    duplicate: str | None, kind: type[Exception]
) -> None:
    driver, claimant, registry = registry_of_one()
    claimant.duplicate_instance_id = duplicate
    with driver.lock:
        steps = registry.wait_held([registry.want("t", 0)], 10.0)
        next(steps)
        driver.on_notice(Notice("lost", claimant.holding, "it has another process"))
        with pytest.raises(kind):
            steps.send(True)


@pytest.mark.parametrize(
    ("stored", "ends", "kind"),
    [(5, False, None), (5, True, None), (4, True, NotHeld), (4, False, ClaimTimeout)],
)
def test_who_waits_for_an_offset_is_told_whether_it_is_stored_and_why_not(
    stored: int, ends: bool, kind: type[Exception] | None
) -> None:
    driver: Any = Driver()
    driver.claimant = SimpleNamespace(commit=lambda *_, **__: None)
    claim = held(driver)
    core = core_of(claim)
    with driver.lock:
        steps = core.commit(5, True, 1.0)
        wait = next(steps)
        assert not wait.predicate()
        core.holding.stored_offset = stored
        if ends:
            core.end()
        assert wait.predicate() is (kind is not ClaimTimeout)
        with pytest.raises(kind or StopIteration):
            steps.send(wait.predicate())


def test_who_waits_for_a_claim_goes_on_when_it_has_ended() -> None:
    driver, _, registry = registry_of_one()
    with driver.lock:
        steps = core_of(registry.want("t", 0)).wait_held(None)
        wait = next(steps)
        assert not wait.predicate()
        driver.on_stopped()
        assert wait.predicate()
        with pytest.raises(StopIteration) as end:
            steps.send(True)
    assert end.value.value is False


@pytest.mark.parametrize(
    "call",
    [
        lambda claim: claim.commit(5),
        lambda claim: claim.claim_messages(5),
        lambda claim: claim.set_position(5),
        lambda claim: core_of(claim).propose(5),
    ],
    ids=["commit", "claim messages", "set position", "propose"],
)
def test_of_a_closed_client_nothing_is_asked_in_vain(call: Callable[[Claim], object]) -> None:
    """It would wait for an answer that nobody reads."""
    driver: Any = Driver()
    driver.claimant = None

    def closed() -> None:
        raise Closed("the client has been closed")

    driver.check_open = closed
    with pytest.raises(Closed):
        call(held(driver))


@pytest.mark.parametrize("running", [True, False])
def test_metadata_goes_at_once_if_that_is_wanted_and_the_client_runs(running: bool) -> None:
    driver: Any = Driver()
    driver.running = running
    driver.claimant = SimpleNamespace(
        set_metadata=lambda _, metadata: driver.did.append(metadata),
        renew=lambda *_: driver.did.append("renew"),
    )
    claim = held(driver)
    claim.set_metadata(b"later")
    claim.set_metadata(b"now", flush=True)
    assert driver.did == [b"later", b"now", *["refresh", "renew"] * running]


def test_each_hook_of_a_claim_is_called_for_what_it_is_named_after() -> None:
    driver, called = Driver(), list[str]()
    claim = held(driver)
    claim.on_lost = lambda _: called.append("lost")
    claim.on_lapsed = lambda _: called.append("lapsed")
    claim.on_regained = lambda _: called.append("regained")
    kinds: list[Any] = ["acquired", "lapsed", "regained", "stored", "lost"]
    with driver.lock:
        for kind in kinds:
            claim.hear(Notice(kind, core_of(claim).holding))
    assert called == ["lapsed", "regained", "lost"]


def test_of_its_claims_a_client_holds_those_whose_leases_stand() -> None:
    driver, claimant, registry = registry_of_one()
    claim = registry.want("t", 0)
    assert registry.held() == []
    claimant.holding.state, claimant.holding.lease_until_ns = ClaimState.HELD, 100
    assert registry.held() == [claim]
    driver.now_ns = 100
    assert registry.held() == []


@pytest.mark.parametrize(
    ("holder", "says"),
    [
        ("other", "t/0 was not won within 1.0 s: other holds it (epoch 7, interval 5000 ms)"),
        (None, "t/0 was not won within 1.0 s: no answer from the log"),
    ],
)
def test_who_cannot_win_a_claim_is_told_who_has_it(holder: str | None, says: str) -> None:
    driver, _, registry = registry_of_one()
    driver.settings.group_id = "g"
    cell = SimpleNamespace(holder=holder, held=holder is not None, epoch=7, interval_ms=5_000)
    driver.world = SimpleNamespace(paused=lambda _: False, cell=lambda *_: cell)
    with driver.lock:
        steps = registry.wait_held([registry.want("t", 0)], 1.0)
        next(steps)
        with pytest.raises(ClaimTimeout) as raised:
            steps.send(False)
    assert str(raised.value) == says
