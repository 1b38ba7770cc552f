"""What becomes of messages that a handler failed with: tried again, a dead letter, or the end."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

from marshal_py.consumer.handlers.dead_letters import headers_of
from marshal_py.consumer.handlers.options import Failure, Verdict
from marshal_py.consumer.handlers.schedule import Item
from marshal_py.errors import (
    BrokerUnavailable,
    ConfigurationError,
    HandlerFailed,
    MarshalError,
)

if TYPE_CHECKING:
    from marshal_py.consumer.handlers.runner import Runner, Task

__all__ = ["Failures"]

logger = logging.getLogger("marshal_py.consumer")


class Failures:
    """Decides for the tasks of one runner. Called by workers, at the same time."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._handling = runner.handling
        self._core = runner._core
        self._random = random.Random()

    def failed(self, task: Task, error: BaseException) -> None:
        """The handler raised. May wait, for a dead letter to be written."""
        if not isinstance(error, Exception):
            self._runner.crashed(error)
            self._runner.gave_up(task)
            return
        with self._runner.lock:
            self._runner._counts["failures"] += 1
            if len(task.items) > 1 and not self._core.delivery.claims_messages:
                self._split(task, error)
                return
        for item in task.items:
            item.attempts += 1
        item = task.items[0]
        if self._handling.may_retry(error, item.attempts):
            self._again(task, error)
        else:
            self._give_up(task, error)

    def _split(self, task: Task, error: BaseException) -> None:
        """A batch failed. Under the lock."""
        self._runner._tasks.discard(task)
        if self._runner._is_ending(task):
            self._runner._abandon(task)
            return
        self._runner._counts["retries"] += 1
        logger.warning(
            "%s: a batch of %d messages of %s/%d failed (%s); they come again one by one",
            self._core.marshal.client_id,
            len(task.items),
            *task.items[0].partition,
            _describe(error),
        )
        self._runner._workers.wake(self._runner._schedule.split(task.items))

    def _again(self, task: Task, error: BaseException) -> None:
        item = task.items[0]
        delay_s = self._handling.retries.delay_s(item.attempts, self._random.random())
        due_s = time.monotonic() + delay_s
        with self._runner.lock:
            self._runner._tasks.discard(task)
            again = self._runner._may_retry_at(task, due_s)
            if again:
                self._runner._counts["retries"] += 1
                self._runner._troubles.failing(item.partition, item.offset, error)
                self._runner._schedule.retry(item, due_s)
            else:
                self._runner._abandon(task)
        logger.warning(
            "%s: %s/%d at offset %d failed (attempt %d): %s; %s",
            self._core.marshal.client_id,
            *item.partition,
            item.offset,
            item.attempts,
            _describe(error),
            f"trying again in {delay_s * 1000:.0f} ms" if again else "it is handed back",
        )

    def _give_up(self, task: Task, error: BaseException) -> None:
        for item in task.items:
            verdict = self._verdict(item, error, task)
            if verdict == "retry":
                self._again(task, error)
                return
            if verdict == "dead_letter" and not self._bury(item, error, task):
                return
            if verdict == "stop":
                self._stop_for(item, error, task)
                return
            self._count_given_up(item, error, verdict)
        with self._runner.lock:
            self._runner._tasks.discard(task)
            self._runner._done(task.items)

    def _verdict(self, item: Item, error: BaseException, task: Task) -> Verdict:
        choice = self._handling.on_failure
        if not callable(choice):
            return choice
        try:
            verdict = choice(Failure(item.payload, error, item.attempts, task.part.claim))
        except Exception as problem:
            problem.__context__ = error
            self._runner.crashed(problem)
            return "stop"
        if verdict not in ("dead_letter", "stop", "skip", "retry", None):
            self._runner.crashed(
                ConfigurationError(
                    f"on_failure returned {verdict!r}; it may return 'dead_letter', 'stop', "
                    "'skip', 'retry', or None (the same as 'skip')"
                )
            )
            return "stop"
        if verdict == "retry" and self._core.delivery.claims_messages:
            self._runner.crashed(
                ConfigurationError(
                    "on_failure returned 'retry': with mode='at_most_once' no message comes to a "
                    "handler twice"
                )
            )
            return "stop"
        return verdict or "skip"

    def _bury(self, item: Item, error: BaseException, task: Task) -> bool:
        """Write the dead letter, however long that takes. Returns False if it was not possible."""
        marshal = self._core.marshal
        is_text = marshal.settings.wire == "text"
        headers = headers_of(
            item,
            error,
            group_id=marshal.group_id,
            client_id=marshal.client_id,
            epoch=None if is_text else task.part.claim.epoch,
        )
        message = item.payload
        key, value = item.raw or (message.key(), message.value())
        topic = self._handling.dead_letter_topic_of(item.partition[0])
        while True:
            try:
                self._runner._letters().send(topic, key, value, headers)
                return True
            except BrokerUnavailable as problem:
                logger.error("%s: %s; trying again", marshal.client_id, problem)
                with self._runner.lock:
                    if self._runner._is_ending(task):
                        self._runner._tasks.discard(task)
                        self._runner._abandon(task)
                        return False
            except MarshalError as problem:
                problem.__cause__ = error
                self._runner.crashed(problem)
                self._runner.gave_up(task)
                return False

    def _stop_for(self, item: Item, error: BaseException, task: Task) -> None:
        failure = HandlerFailed(
            f"the handler failed with {item.partition[0]}/{item.partition[1]} "
            f"at offset {item.offset} (attempts: {item.attempts}): {_describe(error)}"
        )
        failure.__cause__ = error
        self._runner.crashed(failure)
        self._runner.gave_up(task)

    def _count_given_up(self, item: Item, error: BaseException, verdict: Verdict) -> None:
        dead = verdict == "dead_letter"
        logger.error(
            "%s: %s/%d at offset %d %s (attempts: %d): %s",
            self._core.marshal.client_id,
            *item.partition,
            item.offset,
            "is a dead letter now" if dead else "is skipped",
            item.attempts,
            _describe(error),
        )
        with self._runner.lock:
            self._runner._counts["dead_lettered" if dead else "skipped"] += 1
            self._runner._troubles.given_up(item.partition, item.offset, error, dead=dead)


def _describe(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
