"""Mutants of `Consumer.run`: fetching for handlers, order, retries, dead letters, giving back."""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["HANDLERS"]

RUNNER = "marshal_py.consumer.handlers.runner"
TASKS = "marshal_py.consumer.handlers.tasks"
RETRIES = "marshal_py.consumer.handlers.retries"
SCHEDULE = "marshal_py.consumer.handlers.schedule"
LETTERS = "marshal_py.consumer.dead_letters"
ENDING = "marshal_py.consumer.handlers.ending"


def _m(name: str, module: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(f"handlers: {name}", module, (Edit(function, old, new),), "handlers")


HANDLERS: tuple[Mutant, ...] = (
    _m(
        "messages of one key wait for one another",
        SCHEDULE,
        "Schedule.add",
        'elif key is None or self.ordering == "none":',
        "else:",
    ),
    _m(
        "what failed comes before what is behind it",
        SCHEDULE,
        "Schedule.retry",
        "key_queue.items.appendleft(item)",
        "key_queue.items.append(item)",
    ),
    _m(
        "what a lapsed lease held back comes first",
        SCHEDULE,
        "Schedule.put_back",
        "item.key_queue.items.appendleft(item)",
        "item.key_queue.items.append(item)",
    ),
    _m(
        "what was fetched is queued once",
        RUNNER,
        "Runner._queue",
        "for item in items:\n                    ready",
        "for item in [*items, items[-1]]:\n                    ready",
    ),
    _m(
        "all that was fetched is queued",
        RUNNER,
        "Runner._queue",
        "for item in items:\n                    ready",
        "for item in items[1:] or items:\n                    ready",
    ),
    _m(
        "what is left of an earlier claim is dropped",
        RUNNER,
        "Runner._queue",
        "self._let_go(part.key)  # what is left from an earlier claim",
        "pass",
    ),
    _m(
        "a partition is given back when nothing of it waits",
        RUNNER,
        "Runner.busy_with",
        "return self._parts.get(part.key) is part and self._tasks.schedule.open(part.key) > 0",
        "return False",
    ),
    _m(
        "what is done above a gap is told when a partition is given back",
        "marshal_py.consumer.partitions",
        "Partitions._give_back",
        "self._say_what_is_done(part, flush=bool(part.done_above()[1]))",
        "pass",
    ),
    _m(
        "a partition is given back when nothing of it runs",
        RUNNER,
        "Runner.busy_with",
        "if self._tasks.runs_of(part):",
        "if False:",
    ),
    _m(
        "a partition whose lease came back goes on",
        RUNNER,
        "Runner._look_after_partitions",
        "self._workers.wake(schedule.resume(partition))",
        "pass",
    ),
    _m(
        "who waits for another attempt is woken",
        RUNNER,
        "Runner._look_after_partitions",
        "self._workers.wake(schedule.due(now_s))",
        "schedule.due(now_s)",
    ),
    _m("nothing starts without a lease", TASKS, "Tasks.take", "part.claim.held and not", "not"),
    _m(
        "a pause starts nothing",
        TASKS,
        "Tasks.take",
        "part.claim.held and not is_paused and",
        "part.claim.held and",
    ),
    _m(
        "what was handled is done",
        TASKS,
        "Tasks.done",
        "part.acknowledge(item.offset)  # of",
        "pass  # of",
    ),
    _m(
        "what is abandoned is handed back",
        TASKS,
        "Tasks.abandon",
        "self.hand_back(task.part, dropped)",
        "pass",
    ),
    _m(
        "a message has all its attempts",
        RETRIES,
        "Retries.failed",
        "if self._options.may_retry(item.source[0], error, item.attempts):",
        "if item.attempts < 2 and self._options.may_retry(item.source[0], error, item.attempts):",
    ),
    _m(
        "attempts are counted",
        RETRIES,
        "Retries.failed",
        "item.attempts += 1",
        "item.attempts += 2",
    ),
    _m(
        "a dead letter is key and value as they came",
        RETRIES,
        "Retries._bury",
        "key, value = item.raw or (message.key(), message.value())",
        "value, key = item.raw or (message.key(), message.value())",
    ),
    _m(
        "a dead letter names the claim",
        RETRIES,
        "Retries._bury",
        "task.part.claim.epoch,",
        "task.part.claim.epoch + 1,",
    ),
    _m(
        "a dead letter of an unknown outcome is written again",
        RETRIES,
        "Retries._bury",
        'logger.error("%s: %s; trying again", marshal.client_id, problem)',
        "return True",
    ),
    _m(
        "a message counts as done when its dead letter is written",
        RETRIES,
        "Retries._give_up",
        'if verdict == "dead_letter" and not self._bury(item, error, task):',
        'if verdict == "dead_letter" and not self._bury(item, error, task) and False:',
    ),
    _m(
        "a dead letter is waited for",
        LETTERS,
        "DeadLetters.send",
        "while not delivered.is_set():",
        "if not delivered.is_set():",
    ),
    _m(
        "a dead letter that failed is no dead letter",
        LETTERS,
        "DeadLetters.send",
        "if problem is None:",
        "if problem is None or problem.code() == KafkaError._MSG_TIMED_OUT:",
    ),
    _m(
        "stopped, what runs is finished",
        RUNNER,
        "Runner._wind_up",
        "self._finish_what_runs()",
        "pass",
    ),
    _m(
        "a partition that goes waits a second for another attempt, and no longer",
        ENDING,
        "Ending.retry_by_s",
        "by_s = min(by_s, drain_by_s, began_s + PATIENCE_S)",
        "by_s = began_s",
    ),
)
