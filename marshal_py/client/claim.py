"""`Claim`: a claim on one partition of one topic, as the user has it.

`ClaimCore` is what its blocking and its asyncio face share: what was heard of the claim, and the
calls that wait, as generators (see `waiting`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Self, TypeVar

from marshal_py.client.driver import Driver
from marshal_py.client.forks import OfOneProcess
from marshal_py.client.waiting import ObservableCondition, Steps, Wait, block
from marshal_py.errors import ClaimTimeout, NotHeld, NotInVersion1
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.claimant import ClaimState, Holding, Notice
from marshal_py.protocol.holding import metadata_unsent
from marshal_py.protocol.world import MS

__all__ = ["NO_EPOCH", "Claim", "ClaimCore", "core_of"]

T = TypeVar("T")

Hook = Callable[["Claim"], None]

NO_EPOCH: Final = (
    "claim.epoch: records of version 1 (wire='text') carry no fencing epoch, and Go "
    "clients would not honour one. Use wire='msgpack', after `marshal group migrate`"
)


class ClaimCore:
    """One claim between the driver, which tells of it, and whoever waits for what it tells.

    Everything but `held` and `remaining_ms` is called under the driver's lock; the calls that wait
    return generators that `waiting.block` and `waiting.drive` carry out.
    """

    def __init__(self, driver: Driver, holding: Holding) -> None:
        self.driver = driver
        self.holding = holding
        """The claim as the claimant has it: for reading."""
        self.changed = ObservableCondition(driver.lock)
        self.not_held = threading.Event()
        """Set while a lease that was held is not."""
        self.decided = False
        """Acquired, ended, or found to be held by somebody else for now."""
        self.ended = threading.Event()
        self.on_notice: Callable[[Notice], None] | None = None
        """Hears of everything at once, in the driver and under the lock: be quick."""
        self.tells_epochs = False
        """Whether its holder tells the leader epoch that goes with a position (§5.10)."""
        self._verdicts: dict[int, str | None] = {}
        """seq of a claim of messages → why it was rejected, None if it was accepted."""
        self._awaited: set[int] = set()

    @property
    def held(self) -> bool:
        """Whether the holder may act now."""
        holding = self.holding
        return holding.state is ClaimState.HELD and self.driver.clock() < holding.lease_until_ns

    @property
    def remaining_ms(self) -> float:
        """Milliseconds that are left of the lease; 0 when it is not held."""
        if not self.held:
            return 0.0
        return max(0, self.holding.lease_until_ns - self.driver.clock()) / MS

    @property
    def log_fields(self) -> dict[str, object]:
        """What a log record says of it."""
        h = self.holding
        return {"topic": h.topic, "partition": h.partition, "epoch": h.epoch}

    # What the driver tells

    def hear(self, notice: Notice) -> None:
        """Take in a notice, and wake whoever waits for it."""
        if self.on_notice is not None:
            self.on_notice(notice)
        match notice.kind:
            case "stored":
                pass
            case "waiting":
                self.decided = True
            case "acquired" | "regained":
                self.not_held.clear()
                self.decided = True
            case "lapsed" | "paused":
                self.not_held.set()
            case "messages_claimed" | "messages_rejected":
                if notice.number not in self._awaited:
                    return
                is_claimed = notice.kind == "messages_claimed"
                self._verdicts[notice.number] = None if is_claimed else notice.detail
            case "duplicate_client_id":
                return
            case "lost" | "released":
                self.end()
                return
        self.changed.notify_all()

    def end(self) -> None:
        """Nothing more will be told of it."""
        self.ended.set()
        self.not_held.set()
        self.decided = True
        with self.changed:
            self.changed.notify_all()

    # The calls that wait

    def commit(self, next_offset: int, wait: bool, timeout_s: float) -> Steps[None]:
        """See `Claim.commit`."""
        driver, holding = self.driver, self.holding
        driver.check_open()
        if wait:
            driver.refresh_offsets()  # the heartbeat carries all claims
        if next_offset > holding.next_offset and not self.tells_epochs:
            told = ClaimMetadata.decode(holding.metadata)
            if told.leader_epoch >= 0:  # of the position before
                driver.claimant.set_metadata(holding, told.with_leader_epoch(-1).encode())
        driver.claimant.commit(holding, next_offset, driver.clock(), flush=wait)
        driver.carry_out()
        if not wait:
            return
        done = yield Wait(
            self.changed,
            lambda: holding.stored_offset >= next_offset or self.ended.is_set(),
            timeout_s,
        )
        if holding.stored_offset >= next_offset:
            return
        if done:
            raise NotHeld(f"{self!r} ended before offset {next_offset} was stored")
        raise ClaimTimeout(
            f"offset {next_offset} was not stored within {timeout_s} s; it goes with the next "
            "heartbeat that comes through"
        )

    def claim_messages(self, proposed_offset: int, timeout_s: float) -> Steps[bool]:
        """See `Claim.claim_messages`."""
        self.driver.check_open()
        seq = self.driver.claimant.claim_messages(
            self.holding, proposed_offset, self.driver.clock()
        )
        self._awaited.add(seq)
        self.driver.carry_out()
        try:
            yield Wait(
                self.changed, lambda: seq in self._verdicts or self.ended.is_set(), timeout_s
            )
        finally:
            self._awaited.discard(seq)
        return self._verdicts.pop(seq, "no answer") is None and self.held

    def release(self, wait: bool, timeout_s: float) -> Steps[None]:
        """See `Claim.release`."""
        driver = self.driver
        if not driver.running:
            return
        if metadata_unsent(self.holding):  # a heartbeat goes before, and carries all claims
            driver.refresh_offsets()
        driver.claimant.release(self.holding, driver.clock())
        driver.carry_out()
        if wait and not (yield Wait(self.changed, self.ended.is_set, timeout_s)):
            raise ClaimTimeout(f"the release of {self!r} was not seen within {timeout_s} s")

    def wait_held(self, timeout_s: float | None) -> Steps[bool]:
        """See `Claim.wait_held`."""
        yield Wait(self.changed, lambda: self.held or self.ended.is_set(), timeout_s)
        return self.held

    def propose(self, proposed_offset: int) -> int:
        """Claim messages without waiting, under the lock or not.

        Returns the seq of the notice that tells the verdict. Raises as `claim_messages` does.
        """
        driver = self.driver
        with driver.lock:
            driver.check_open()
            seq = driver.claimant.claim_messages(self.holding, proposed_offset, driver.clock())
            driver.carry_out()
            return seq

    def __repr__(self) -> str:
        h = self.holding
        return f"<Claim {h.topic}/{h.partition} {h.state.value} epoch={h.epoch}>"


class Claim(OfOneProcess):
    """A claim on one partition of one topic: a lease in time, and an epoch that fences for ever.

    Act only while `held` is true, and hand `epoch` to whatever the work writes to: a process that
    was suspended between looking and acting is stopped by the epoch, not by the lease (§5.4).

    For any thread. A context manager that releases at the end.
    """

    def __init__(self, driver: Driver, holding: Holding) -> None:
        self._core = ClaimCore(driver, holding)
        """For the rest of this library; no part of the public interface."""
        self.on_lost: Hook | None = None
        """Called once, in the hook thread, when the log says that the claim is somebody else's."""
        self.on_lapsed: Hook | None = None
        """Called when the lease ran out: no heartbeat came back in time. It may be regained."""
        self.on_regained: Hook | None = None
        """Called when a heartbeat came back after a lapse, and nobody had taken over."""
        self.on_pause: Hook | None = None
        """Called when an operator paused the group; return, or `release`, once work has stopped."""

    topic = property(lambda self: self._core.holding.topic, doc="The topic, real or virtual.")
    partition = property(lambda self: self._core.holding.partition, doc="The partition number.")

    @property
    def epoch(self) -> int:
        """The fencing token: the log offset of the accepted claim. Larger for every new holder.

        Raises `NotInVersion1` with wire="text".
        """
        if self._core.driver.settings.wire == "text":
            raise NotInVersion1(NO_EPOCH)
        return self._core.holding.epoch

    @property
    def held(self) -> bool:
        """Whether the holder may act now. False the moment the lease lapses, network or not.

        Takes no lock and asks nobody: cheap enough for every message.
        """
        return self._core.held

    @property
    def remaining_ms(self) -> float:
        """Milliseconds that are left of the lease; 0 when it is not held."""
        return self._core.remaining_ms

    @property
    def next_offset(self) -> int:
        """The next offset to process, as committed here; −1 when there is no position yet."""
        return self._core.holding.next_offset

    @property
    def stored_offset(self) -> int:
        """The next offset to process, as the log has it: what another holder would see."""
        return self._core.holding.stored_offset

    @property
    def claimed_offset(self) -> int:
        """Every message below it was claimed for at-most-once delivery; −1: none was."""
        return self._core.holding.claimed_offset

    @property
    def position(self) -> int:
        """Where a new holder starts: the larger of `next_offset` and `claimed_offset`.

        −1: nobody has stored a position yet.
        """
        return max(self._core.holding.next_offset, self._core.holding.claimed_offset)

    @property
    def metadata(self) -> bytes:
        """What heartbeats publish with the claim: set here, or left by the holder before."""
        return self._core.holding.metadata

    @property
    def reason(self) -> str | None:
        """Why the claim ended, in words; None while it has not."""
        return self._core.holding.reason

    def commit(self, next_offset: int, *, wait: bool = False, timeout_s: float = 10.0) -> None:
        """Store the next offset to process.

        It goes with the next heartbeat; with `wait`, at once, and the call returns when it is in
        the log. Offsets only go up: a smaller one is ignored. Raises `NotHeld` when the claim is
        released or lost, or is lost while waiting; `ClaimTimeout` after `timeout_s`.
        """
        self._block(self._core.commit(next_offset, wait, timeout_s))

    def claim_messages(self, proposed_offset: int, *, timeout_s: float = 10.0) -> bool:
        """Claim every message below `proposed_offset` for at-most-once delivery (§5.11).

        Returns True when the log accepted it and the lease stands: now, and only now, deliver them.
        False when it did not, or nobody knows: do not deliver. Raises `NotHeld` when the claim is
        released or lost already.
        """
        return self._block(self._core.claim_messages(proposed_offset, timeout_s))

    def set_metadata(self, metadata: bytes, *, flush: bool = False) -> None:
        """Publish up to 256 bytes with the claim, from the next heartbeat on, or (`flush`) at once.

        They stay with the cell: the next holder finds them in `metadata`, and publishes them until
        it sets others.
        """
        driver = self._core.driver
        with driver.lock:
            driver.claimant.set_metadata(self._core.holding, metadata)
            if flush and driver.running:
                driver.refresh_offsets()  # the heartbeat carries all claims
                driver.claimant.renew(self._core.holding, driver.clock())
                driver.carry_out()

    def set_position(self, next_offset: int) -> None:
        """Set the position, even back, and end the claim: whoever claims next goes on there.

        For a position that has lost its meaning, as the topic was made anew or truncated; stop
        acting on the claim before. Does not wait: the claim has ended (`reason`) when the log has
        it. It is tried until then: a claim whose position is being set goes to nobody with another
        one while this client runs. Raises `NotHeld`, `Closed`.
        """
        driver = self._core.driver
        with driver.lock:
            driver.check_open()
            driver.claimant.set_position(self._core.holding, next_offset, driver.clock())
            driver.carry_out()

    def release(self, *, wait: bool = True, timeout_s: float = 10.0) -> None:
        """Give the claim back. Stop acting on it before you call this.

        `held` is false from here on, and the next claimant need not wait. With `wait`, returns when
        the release is in the log; raises `ClaimTimeout` if that takes longer than `timeout_s` (it
        goes on being tried). A claim that has ended already is left as it is.
        """
        self._block(self._core.release(wait, timeout_s))

    def wait_held(self, timeout_s: float | None = None) -> bool:
        """Wait until the claim is held, for the first time or again after a lapse.

        Returns True when it is, False when it ended instead (see `reason`) or after `timeout_s`.
        """
        return self._block(self._core.wait_held(timeout_s))

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the right to act ends: the lease lapsed, or the claim was lost or released.

        Returns True when it did, False after `timeout_s`. After a lapse the claim may be regained
        (`held` is true again); call it anew.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.held:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            # The driver tells of the end; the lease itself needs nobody to tell.
            lease_s = self.remaining_ms / 1000
            self._core.not_held.wait(lease_s if left is None else min(lease_s, left))
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ClaimTimeout):
            self.release()

    def __repr__(self) -> str:
        return repr(self._core)

    def _block(self, steps: Steps[T]) -> T:
        return block(self._core.driver.lock, steps)

    # What the driver tells

    def hear(self, notice: Notice) -> None:
        """Take in a notice under the lock, log it, and have its hook called. For the driver."""
        was_acquired = self._core.holding.acquired
        self._core.hear(notice)
        if notice.kind == "regained":
            self._log(logging.INFO, "%s: %r regained", self)
            self._call(self.on_regained)
        elif notice.kind == "lapsed":
            self._log(logging.WARNING, "%s: the lease of %r lapsed", self)
            self._call(self.on_lapsed)
        elif notice.kind == "paused":
            self._log(logging.INFO, "%s: the group was paused; %r ends", self)
            if self.on_pause is not None:
                self._call(_pause_then_release(self.on_pause))
        elif notice.kind == "lost" and was_acquired:
            if self._core.holding.repositioned:  # its end was asked for
                self._log(logging.INFO, "%s: %r: its position was set: %s", self, notice.detail)
            else:
                self._log(logging.WARNING, "%s: %r lost: %s", self, notice.detail)
            self._call(self.on_lost)

    def _log(self, level: int, text: str, *values: object) -> None:
        driver = self._core.driver
        driver.log.log(level, text, driver.settings.client_id, *values, extra=self._core.log_fields)

    def _call(self, hook: Hook | None) -> None:
        if hook is not None:
            hooks = self._core.driver.hooks
            hooks.start()
            hooks.call(partial(hook, self))


def _pause_then_release(on_pause: Hook) -> Hook:
    def hook(claim: Claim) -> None:
        on_pause(claim)
        claim.release(wait=False)

    return hook


def core_of(claim: Claim) -> ClaimCore:
    """Return what a claim shares with the coroutines that use it: for this library only."""
    return claim._core  # noqa: SLF001
