"""What becomes of messages that a handler failed with: tried again, a dead letter, or the end."""

from __future__ import annotations

import logging
import random
import time

from marshal_py.client.kafka_clients import CONNECT_AGAIN_S
from marshal_py.consumer.core import ConsumerCore
from marshal_py.consumer.dead_letters import (
    DeadLetters,
    check_dead_letter_topics,
    dead_letter_topic_of,
    headers_of,
)
from marshal_py.consumer.handlers.ending import Ending
from marshal_py.consumer.handlers.options import Failure, HandlerOptions, Verdict
from marshal_py.consumer.handlers.schedule import Item
from marshal_py.consumer.handlers.tasks import Task, Tasks
from marshal_py.errors import (
    BrokerUnavailable,
    ConfigurationError,
    HandlerFailed,
    MarshalError,
)
from marshal_py.printable import text_of

__all__ = ["Retries"]

logger = logging.getLogger("marshal_py.consumer")


class Retries:
    """Decides for the tasks of one runner. Called by workers, at the same time.

    Ends `run` (`Ending.fail`) where nothing can be decided.
    """

    def __init__(
        self, core: ConsumerCore, options: HandlerOptions, tasks: Tasks, ending: Ending
    ) -> None:
        self._marshal = core.marshal
        self._topics = core.topics
        self._options = options
        self._tasks = tasks
        self._ending = ending
        self._dead_letters: DeadLetters | None = None
        self._random = random.Random()

    def prepare(self) -> None:
        """Look for the dead-letter topics, if there are to be dead letters.

        Raises `ConfigurationError`, and as `DeadLetters.check`.
        """
        if self._options.on_failure != "dead_letter":
            return
        check_dead_letter_topics(
            self._open_dead_letters(), self._topics, self._options.dead_letter_topic
        )

    def close(self) -> None:
        """Wait for the dead letters that were begun."""
        if self._dead_letters is not None:
            self._dead_letters.close()

    def _open_dead_letters(self) -> DeadLetters:
        settings = self._marshal.settings
        try:
            with self._tasks.lock:
                if self._dead_letters is None:
                    timeout_s = settings.connect_timeout_ms / 1000
                    self._dead_letters = DeadLetters(settings.kafka, timeout_s=timeout_s)
                return self._dead_letters
        except ConfigurationError as error:
            # The client writes with these settings: files of them are being replaced.
            time.sleep(CONNECT_AGAIN_S)
            raise BrokerUnavailable(f"no dead letter can be written: {error}") from None

    def failed(self, task: Task, error: BaseException) -> None:
        """The handler raised. May wait, for a dead letter to be written."""
        if not isinstance(error, Exception):
            self._ending.fail(error)
            self._hand_back(task)
            return
        with self._tasks.lock:
            self._tasks.attempt_failed(task)
            if len(task.items) > 1 and not self._options.at_most_once:
                self._split(task, error)
                return
        for item in task.items:
            item.attempts += 1
        item = task.items[0]
        if self._options.may_retry(item.source[0], error, item.attempts):
            self._again(task, error)
        elif self._ending.is_gone(task.part):
            self._leave_to_others(task, error)
        else:
            self._give_up(task, error)

    def _leave_to_others(self, task: Task, error: BaseException) -> None:
        """It failed for good, but under a claim that counts for nothing any more."""
        item = task.items[0]
        logger.warning(
            "%s: %s/%d at offset %d failed (attempts: %d): %s; its claim has ended, so it is left "
            "to others",
            self._marshal.client_id,
            *item.source,
            item.offset,
            item.attempts,
            _describe(error),
        )
        self._hand_back(task)

    def _hand_back(self, task: Task) -> None:
        with self._tasks.lock:
            self._tasks.abandon(task)

    def _split(self, task: Task, error: BaseException) -> None:
        """A batch failed. Under the lock."""
        if not self._ending.may_retry_at(task.part, time.monotonic()):
            self._tasks.abandon(task)
            return
        logger.warning(
            "%s: a batch of %d messages of %s/%d failed (%s); they come again one by one",
            self._marshal.client_id,
            len(task.items),
            *task.items[0].source,
            _describe(error),
        )
        self._tasks.split(task)

    def _again(self, task: Task, error: BaseException) -> None:
        item = task.items[0]
        retry = self._options.retry_of(item.source[0])
        delay_s = retry.delay_s(item.attempts, self._random.random())
        due_s = time.monotonic() + delay_s
        with self._tasks.lock:
            again = self._ending.may_retry_at(task.part, due_s)
            if again:
                self._tasks.retry(task, due_s, error)
            else:
                self._tasks.abandon(task)
        logger.warning(
            "%s: %s/%d at offset %d failed (attempt %d): %s; %s",
            self._marshal.client_id,
            *item.source,
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
        with self._tasks.lock:
            self._tasks.done(task)

    def _verdict(self, item: Item, error: BaseException, task: Task) -> Verdict:
        choice = self._options.on_failure
        if not callable(choice):
            return choice
        try:
            verdict = choice(Failure(item.payload, error, item.attempts, task.part.claim))
        except BaseException as problem:  # `sys.exit`, too, which `run` then does
            problem.__context__ = error
            self._ending.fail(problem)
            return "stop"
        if verdict not in ("dead_letter", "stop", "skip", "retry", None):
            self._ending.fail(
                ConfigurationError(
                    f"on_failure returned {verdict!r}; it may return 'dead_letter', 'stop', "
                    "'skip', 'retry', or None (the same as 'skip')"
                )
            )
            return "stop"
        if verdict == "retry" and self._options.at_most_once:
            self._ending.fail(
                ConfigurationError(
                    "on_failure returned 'retry': with mode='at_most_once' no message comes to a "
                    "handler twice"
                )
            )
            return "stop"
        return verdict or "skip"

    def _bury(self, item: Item, error: BaseException, task: Task) -> bool:
        """Write the dead letter, however long that takes. Returns False if it was not possible."""
        marshal = self._marshal
        is_text = marshal.settings.wire == "text"
        headers = headers_of(
            item.payload,
            error,
            attempts=item.attempts,
            group_id=marshal.group_id,
            client_id=marshal.client_id,
            epoch=None if is_text else task.part.claim.epoch,
        )
        message = item.payload
        key, value = item.raw or (message.key(), message.value())
        topic = dead_letter_topic_of(self._options.dead_letter_topic, item.source[0])
        while True:
            try:
                self._open_dead_letters().send(topic, key, value, headers)
                return True
            except BrokerUnavailable as problem:
                logger.error("%s: %s; trying again", marshal.client_id, problem)
                with self._tasks.lock:
                    if self._ending.is_ending(task.part):
                        self._tasks.abandon(task)
                        return False
            except MarshalError as problem:
                problem.__cause__ = error
                self._ending.fail(problem)
                self._hand_back(task)
                return False

    def _stop_for(self, item: Item, error: BaseException, task: Task) -> None:
        failure = HandlerFailed(
            f"the handler failed with {item.source[0]}/{item.source[1]} "
            f"at offset {item.offset} (attempts: {item.attempts}): {_describe(error)}"
        )
        failure.__cause__ = error
        self._ending.fail(failure)
        self._hand_back(task)

    def _count_given_up(self, item: Item, error: BaseException, verdict: Verdict) -> None:
        dead = verdict == "dead_letter"
        logger.error(
            "%s: %s/%d at offset %d %s (attempts: %d): %s",
            self._marshal.client_id,
            *item.source,
            item.offset,
            "is a dead letter now" if dead else "is skipped",
            item.attempts,
            _describe(error),
        )
        with self._tasks.lock:
            self._tasks.given_up(item, error, dead=dead)


def _describe(error: BaseException) -> str:
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
