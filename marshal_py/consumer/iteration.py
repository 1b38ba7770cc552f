"""The loop over a consumer: messages one by one or in batches, while the lease stands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

from confluent_kafka import Message

from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.client.signals import hush
from marshal_py.consumer.delivery import Delivery
from marshal_py.consumer.deserializers import Deserializers, restore
from marshal_py.consumer.fetcher import Fetcher
from marshal_py.consumer.held_partition import Batch, HeldPartition, Run, Stage
from marshal_py.consumer.wakeup import Wakeup

__all__ = ["Iteration"]

LOOK_S: Final = 0.0005
"""For each message the lease is looked at by a clock that is quick to read but stands still while
the whole machine sleeps; when that has gone on by so much, by the one that does not."""


class Iteration:
    """What a loop over a consumer sees: messages, or batches.

    One thread at a time is in the loop. `start` is called when it is entered; once `closing` is
    set, only what was claimed (at most once) still goes out.
    """

    def __init__(
        self,
        marshal: Marshal,
        fetcher: Fetcher,
        delivery: Delivery,
        deserializers: Deserializers,
        wakeup: Wakeup,
        *,
        start: Callable[[], object],
        closing: threading.Event,
    ) -> None:
        self.hand: Run | None = None
        """The run that the loop is in, kept when it leaves the loop and comes back."""
        self.thread: int | None = None
        """Which thread entered the loop last."""
        self.is_looping = False
        self.is_loop = True
        self.others_acknowledge = False
        """Whether a thread that was not in the loop has acknowledged something."""
        self.keeps_raw = False
        """Keys and values are kept as they came until their messages are acknowledged."""
        self._raw: list[tuple[Any, Any, Any]] = []
        """The messages that were handed out last, with their keys and values as they came."""
        self._marshal = marshal
        self._fetcher = fetcher
        self._delivery = delivery
        self._deserializers = deserializers
        self._wakeup = wakeup
        self._start = start
        self._closing = closing

    def messages(self, *, idle_timeout_s: float | None = None) -> Iterator[Message]:
        """See `Consumer.messages`."""
        return self._messages(idle_timeout_s)

    def _messages(self, idle_timeout_s: float | None, *, polls: bool = False) -> Iterator[Message]:
        # As against `yield from`, `chain` spends nothing on each message.
        messages = chain.from_iterable(self._runs(idle_timeout_s, polls=polls))
        return map(self.deserialize, messages) if self._deserializers else messages

    def deserialize(self, message: Message) -> Message:
        """Return the message as the deserializers make it. Raises `DeserializationFailed`."""
        self._raw = [(message, message.key(), message.value())]
        self._keep_raw()
        try:
            self._deserializers.apply(message)
        except Exception:
            raise  # it names the message
        except BaseException:  # Ctrl-C: nobody has it
            _restore_all(self._raw)
            if self.hand is not None:
                self.hand.take_back()
            raise
        return message

    def raw_of(self, part: HeldPartition, message: Message) -> tuple[Any, Any]:
        """Return key and value of a message of `part` that was handed out, as they came."""
        for each, key, value in self._raw:
            if each is message:
                return key, value
        offset: Any = message.offset()
        return part.raw.get(offset, (message.key(), message.value()))

    def _keep_raw(self) -> None:
        run = self.hand
        if self.keeps_raw and run is not None and run.part.manual:
            run.part.raw |= {message.offset(): (key, value) for message, key, value in self._raw}

    def batches(self, *, idle_timeout_s: float | None = None) -> Iterator[Batch]:
        """See `Consumer.batches`."""
        self.enter()
        try:
            while True:
                self.settle()  # at first, what comes again is put back: a batch is taken whole
                run_or_none = self.next_run(idle_timeout_s)
                if run_or_none is None:
                    return
                self.hand = run_or_none
                batch = self.take_batch(run_or_none)
                if batch is not None:
                    yield batch
        except KeyboardInterrupt as error:
            hush(error)
            raise
        finally:
            self.leave()

    def poll(self, timeout_s: float = 1.0) -> Message | None:
        """See `Consumer.poll`."""
        return next(self._messages(timeout_s, polls=True), None)

    def _runs(self, idle_timeout_s: float | None, *, polls: bool) -> Iterator[Iterator[Message]]:
        """The loop. Keeps no name for a run: it is freed before the next is fetched (`FETCH`)."""
        self.enter(polls=polls)
        try:
            while True:
                if self.hand is None:
                    self.hand = self.next_run(idle_timeout_s)
                    if self.hand is None:
                        return
                yield self.hand_out(self.hand)
        except KeyboardInterrupt as error:
            hush(error)
            raise
        finally:
            self.leave(polls=polls)

    def hand_out(self, run: Run) -> Iterator[Message]:
        """Hand out what is left of the run in hand, for as long as that is allowed."""
        part, holding, now_s = run.part, run.part.holding, time.monotonic
        clock, look_s, until_ns = driver_of(self._marshal).clock, 0.0, -1
        for message in run.rest:
            # Every single time: the process may have been stopped since the last one.
            if now_s() >= look_s or holding.lease_until_ns is not until_ns or not part.flows:
                looked_s, until_ns = now_s(), holding.lease_until_ns
                left_s = (until_ns - clock()) / 1e9
                if (left_s <= 0 or not part.flows) and not self._may_hand_out(part):
                    self._put_back(run, run.handed_out - 1)
                    return
                look_s = looked_s + min(LOOK_S, left_s)
            yield message
        part.finish(run)
        self.hand = None
        if part.range is not None and run.end >= part.range.end:
            self._wakeup.wake()

    def take_batch(self, run: Run) -> Batch | None:
        """Return the run in hand as a batch, None if it may not be handed out now."""
        part = run.part
        if not self._may_hand_out(part):
            self._put_back(run, 0)
            return None
        messages = run.left
        if not messages:  # all of it was acknowledged before
            part.finish(run)
            self.hand = None
            return None
        if self._deserializers:
            raw = [(message, message.key(), message.value()) for message in messages]
            try:
                messages = [self._deserializers.apply(message) for message in messages]
            except BaseException:
                _restore_all(raw)
                raise
            self._raw = raw
            self._keep_raw()
        run.be(run.messages, iter(()), whole=True)
        if part.is_cut:  # meanwhile: what of it is left comes again
            _restore_all(self._raw)
            self._put_back(run, 0)
            return None
        return Batch(messages, part.claim)

    def settle(self) -> None:
        """The run in hand is done, as far as it was handed out."""
        run, self.hand = self.hand, None
        if run is None:
            return
        if rest := run.left:  # a loop over messages was left in the middle
            self._delivery.take_back(Run(run.part, rest))
            run.part.finish(run, returned=rest[0])  # last: it must be found somewhere, always
        else:
            run.part.finish(run)

    def enter(self, *, polls: bool = False, starts: bool = True) -> None:
        """This thread is in the loop from now on. Starts the consumer, if need be (`starts`).

        What an earlier loop left unfinished comes again, unless this one only `polls`.
        """
        if starts:
            self._start()
        self.thread = threading.get_ident()
        self.is_looping = True
        run = self.hand
        if run is None or polls or self._delivery.claims_messages:
            return
        if not run.part.manual:
            _restore_all(self._raw)
        self._raw = []
        run.part.rewind(run)

    def leave(self, *, polls: bool = False) -> None:
        """Nobody is in the loop. Who `polls` works on what was handed out until the next poll."""
        run = self.hand
        if not polls or run is None or not run.handed_out:
            self.is_looping = False

    # Ranges: see `Work`

    def cut(self, part: HeldPartition, give_back: Callable[[int], None]) -> None:
        """Call `give_back` with the first message that was not handed out."""
        with part.cut_lock:
            give_back(part.cut())

    def next_offset(self, part: HeldPartition) -> int:
        """Return the first message that was not handed out."""
        return part.next_offset

    def progress(self) -> object | None:
        """Return which message the loop is at; None: it waits for one."""
        run = self.hand
        if run is None or not self.is_looping:
            return None
        return run.part.claim.epoch, run.messages[0].offset(), run.handed_out

    def busy_with(self, part: HeldPartition) -> bool:
        """Whether something of `part` is in the user's hands, or must still go there."""
        if part.manual:
            return part.outstanding > 0
        if not self.is_looping and self._closing.is_set():
            return False  # nobody will come for it
        if self._delivery.has_claimed(part):
            return True
        run = part.run
        # What was claimed and not handed out goes out when the loop comes back.
        return run is not None and (
            self.is_looping or (self._delivery.claims_messages and bool(run.left))
        )

    def acknowledge(self, part: HeldPartition, offset: int) -> None:
        """The message at `offset` is done. From any thread."""
        if threading.get_ident() != self.thread:
            self.others_acknowledge = True
        part.acknowledge(offset)
        if part.stage is Stage.DRAINING or part.is_over:
            self._wakeup.wake()

    def _may_hand_out(self, part: HeldPartition) -> bool:
        """Whether a message that was fetched (at most once: and claimed) may still go out."""
        if part.is_cut or (part.is_paused and not self._delivery.claims_messages):
            return False
        if not part.claim.held:
            return False
        return self._delivery.delivers(part)

    def _put_back(self, run: Run, at: int) -> None:
        """The loop may not hand out the message with the number `at`, nor what follows it, now."""
        part = run.part
        rest = run.messages[at:]
        if self._delivery.delivers(part):
            again = Run(part, rest)  # the lease has lapsed: it may come back
            again.seq = run.seq
            self._delivery.park(again)
        else:
            self._delivery.drop(len(rest))
        part.finish(run, returned=rest[0])  # last: it must be found somewhere, always
        self.hand = None
        self._wakeup.wake()

    def next_run(self, idle_timeout_s: float | None) -> Run | None:
        """Return what to hand out next, None when closing, or after `idle_timeout_s`."""
        give_up_s = None if idle_timeout_s is None else time.monotonic() + idle_timeout_s
        delivery, fetcher = self._delivery, self._fetcher
        is_idle = is_late = False
        while not self._closing.is_set() or delivery.owes:
            if self._wakeup.failure is not None:
                raise self._wakeup.failure
            if self._marshal.failure is not None:
                raise self._marshal.failure
            run = delivery.next_run()
            if run is not None:
                if run.part.range is not None and not run.part.first_s:
                    self._wakeup.wake()  # the next one may be asked for
                run.part.begin(run)
                delivery.began()
                return run
            if is_late:
                return None
            # Then what has come is still looked for: there may have been no time to wait.
            is_late = give_up_s is not None and time.monotonic() >= give_up_s
            if delivery.awaits_log:
                continue
            wait_s = fetcher.idle_wait_s if is_idle else 0.0
            if give_up_s is not None:
                wait_s = min(wait_s, max(0.0, give_up_s - time.monotonic()))
            is_idle = not fetcher.fetch(delivery.fetch_size, wait_s)
        return None


def _restore_all(raw: list[tuple[Any, Any, Any]]) -> None:
    """Give messages the keys and values that they came with."""
    for message, key, value in raw:
        restore(message, (key, value))
