"""Iterating: runs of messages, handed out one by one or in batches, while the lease stands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, Self, TypeAlias

from confluent_kafka import Message

from marshal_py.client.marshal import Marshal
from marshal_py.consumer.at_most_once import IDLE_WAIT_S, AtMostOnce
from marshal_py.consumer.fetcher import FETCH, MAX_FETCH
from marshal_py.consumer.held_partition import Batch, HeldPartition, Run, Stage

__all__ = ["Deserializer", "Iterating"]

Deserializer: TypeAlias = Callable[..., Any]

LOOK_S: Final = 0.0005
"""For each message the lease is looked at by a clock that is quick to read but stands still while
the whole machine sleeps; when that has gone on by so much, by the one that does not."""


class Iterating(AtMostOnce):
    """The part of a `Consumer` that a loop sees: messages, batches, `poll`."""

    def __init__(
        self,
        marshal: Marshal,
        kafka: Mapping[str, Any] | None,
        *,
        batch_size: int,
        at_most_once: bool,
        key_deserializer: Deserializer | None,
        value_deserializer: Deserializer | None,
    ) -> None:
        super().__init__(marshal, kafka, batch_size=batch_size, at_most_once=at_most_once)
        self._deserializers = (key_deserializer, value_deserializer)
        self._hand: Run | None = None
        """The run that the loop is in, kept when it leaves the loop and comes back."""
        self._loop_thread: int | None = None
        self._looping = False

    def start(self) -> Self:
        """Connect and begin to claim, if that has not been done. `Consumer` does it."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Message]:
        """Hand out messages, one by one, until `close`. See `messages`."""
        return self.messages()

    def messages(self, *, idle_timeout_s: float | None = None) -> Iterator[Message]:
        """Hand out messages until `close`, or until none came for `idle_timeout_s`.

        A message whose partition was lost meanwhile, or whose lease has lapsed, is not handed out.
        A loop that is left by `break` may be entered again: it goes on with the next message, and
        the last one counts as done only then; say `ack(message)` before `break` if it is.
        """
        if self._deserializers != (None, None):
            return map(self._deserialize, self._messages(idle_timeout_s))
        return self._messages(idle_timeout_s)

    def _messages(self, idle_timeout_s: float | None) -> Iterator[Message]:
        # As against `yield from`, `chain` spends nothing on each message.
        return chain.from_iterable(self._runs(idle_timeout_s))

    def batches(self, *, idle_timeout_s: float | None = None) -> Iterator[Batch]:
        """Hand out messages in batches, each of one partition, of at most `batch_size`.

        The lease is looked at for each batch. With `auto_ack`, a batch is done when the loop asks
        for the next. Otherwise as `messages`.
        """
        self._enter_loop()
        try:
            while True:
                self._settle_hand()
                run_or_none = self._next_run(idle_timeout_s)
                if run_or_none is None:
                    return
                self._hand = run_or_none
                batch = self._take_batch(run_or_none)
                if batch is not None:
                    yield batch
        finally:
            self._looping = False

    def poll(self, timeout_s: float = 1.0) -> Message | None:
        """Return the next message, None if there is none within `timeout_s`.

        The message before it is done (`auto_ack`).
        """
        messages = self.messages(idle_timeout_s=timeout_s)
        message = next(messages, None)
        del messages  # which ends the loop, but not the work on the message
        self._looping = message is not None
        return message

    def _runs(self, idle_timeout_s: float | None) -> Iterator[Iterator[Message]]:
        """The loop. Keeps no name for a run: it is freed before the next is fetched (`FETCH`)."""
        self._enter_loop()
        try:
            while True:
                if self._hand is None:
                    self._hand = self._next_run(idle_timeout_s)
                    if self._hand is None:
                        return
                yield self._hand_out(self._hand)
        finally:
            self._looping = False

    def _hand_out(self, run: Run) -> Iterator[Message]:
        """Hand out what is left of the run in hand, for as long as that is allowed."""
        part, holding, active, now_s = run.part, run.part.holding, Stage.ACTIVE, time.monotonic
        look_s, until_ns = 0.0, -1
        for message in run.rest:
            # Every single time: the process may have been stopped since the last one.
            if (
                now_s() >= look_s
                or holding.lease_until_ns is not until_ns
                or part.stage is not active
            ):
                looked_s, until_ns = now_s(), holding.lease_until_ns
                left_s = (until_ns - self.marshal.driver.clock()) / 1e9
                if (left_s <= 0 or part.stage is not active) and not self._may_hand_out(part):
                    self._put_back(run, message)
                    return
                look_s = looked_s + min(LOOK_S, left_s)
            yield message
        part.finish(run)
        self._hand = None

    def _take_batch(self, run: Run) -> Batch | None:
        """Return the run in hand as a batch, None if it may not be handed out now."""
        part = run.part
        if not self._may_hand_out(part):
            self._put_back(run, run.messages[0])
            return None
        messages = run.messages
        if self._deserializers != (None, None):
            messages = [self._deserialize(message) for message in messages]
        run.whole, run.rest = True, iter(())
        return Batch(messages, part.claim)

    def _settle_hand(self) -> None:
        """The run in hand is done, as far as it was handed out."""
        run, self._hand = self._hand, None
        if run is None:
            return
        if rest := list(run.rest):  # a loop over messages was left in the middle
            self._ready.appendleft(Run(run.part, rest))
            run.part.finish(run, returned=rest[0])  # last: the keeper must find it somewhere
        else:
            run.part.finish(run)

    def _enter_loop(self) -> None:
        self.start()
        self._loop_thread = threading.get_ident()
        self._looping = True

    def _may_hand_out(self, part: HeldPartition) -> bool:
        """Whether a message that was fetched (at most once: and claimed) may still go out."""
        if not part.claim.held:
            return False
        # What was claimed for at-most-once delivery goes out before the partition is given back.
        return part.stage is Stage.ACTIVE or (self._amo and part.stage is Stage.DRAINING)

    def _put_back(self, run: Run, message: Message) -> None:
        """The loop may not hand out `message`, nor what follows it, now."""
        part = run.part
        rest = [message, *run.rest]
        if part.stage is Stage.ACTIVE or (self._amo and part.stage is Stage.DRAINING):
            again = Run(part, rest)  # the lease has lapsed: it may come back
            again.seq = run.seq
            part.parked.appendleft(again)
            self._parked.append(part)
        part.finish(run, returned=message)  # last: the keeper must find it somewhere
        self._hand = None
        self._keeper.wake()

    def _next_run(self, idle_timeout_s: float | None) -> Run | None:
        """Return what to hand out next, None when closing, or after `idle_timeout_s`."""
        give_up_s = None if idle_timeout_s is None else time.monotonic() + idle_timeout_s
        while not self._closing.is_set() or self._proposed or (self._amo and self._owes()):
            if self._keeper.failure is not None:
                raise self._keeper.failure
            if self.marshal.failure is not None:
                raise self.marshal.failure
            run = self._next_claimed() if self._amo else self._next_ready()
            if run is not None:
                run.part.begin(run)
                self._passing = None
                return run
            if give_up_s is not None and time.monotonic() >= give_up_s:
                return None
            most = min(self._proposal_size, FETCH) if self._amo else MAX_FETCH
            if not self._proposed and not self._fetch(most):
                wait_s = IDLE_WAIT_S
                if give_up_s is not None:
                    wait_s = min(wait_s, max(0.0, give_up_s - time.monotonic()))
                self._fetch(most, wait_s)
        return None

    def _next_ready(self) -> Run | None:
        """At least once: the next run that was fetched and may be handed out."""
        if self._parked:
            self._unpark()
        ready = self._ready
        while ready:
            run = ready.popleft()
            part = run.part
            if part.stage is not Stage.ACTIVE:
                continue
            if part.parked or not part.claim.held:
                part.parked.append(run)
                self._parked.append(part)
                continue
            return run
        return None

    def _deserialize(self, message: Any) -> Any:
        from confluent_kafka.serialization import MessageField, SerializationContext

        key_deserializer, value_deserializer = self._deserializers
        headers = message.headers()
        if value_deserializer is not None:
            context = SerializationContext(message.topic(), MessageField.VALUE, headers)
            message.set_value(value_deserializer(message.value(), context))
        if key_deserializer is not None:
            context = SerializationContext(message.topic(), MessageField.KEY, headers)
            message.set_key(key_deserializer(message.key(), context))
        return message
