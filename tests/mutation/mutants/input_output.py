"""Mutants of what reads, writes and runs: the log's reader and writer, workers, comparing.

Each does the right thing slightly wrong, as `planted` does.
"""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["INPUT_OUTPUT"]

READER = "marshal_py.client.log_reader"
WRITER = "marshal_py.client.log_writer"
WORKERS = "marshal_py.consumer.handlers.workers"
COMPARE = "harvest.spark.compare"


def _m(campaign: str, name: str, module: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(f"{campaign}: {name}", module, (Edit(function, old, new),), campaign)


INPUT_OUTPUT: tuple[Mutant, ...] = (
    _m(
        "logs",
        "the record below a snapshot is read",
        READER,
        "LogReader._start_of",
        "return restored - 1",
        "return restored",
    ),
    _m(
        "logs",
        "a snapshot is anchored at the last record of a batch",
        READER,
        "LogReader._replay_batch",
        "last[p] = message",
        "last.setdefault(p, message)",
    ),
    _m(
        "logs",
        "the end of the snapshots is not the end of the log",
        READER,
        "LogReader._replay_batch",
        "elif message.topic() == topic:",
        "else:",
    ),
    _m(
        "logs",
        "a snapshot of another log is used never again",
        READER,
        "LogReader._distrust",
        "self._distrusted.add(p)",
        "pass",
    ),
    _m(
        "logs",
        "a snapshot of another log leaves no state",
        READER,
        "LogReader._distrust",
        "self.world.states[p] = self.wire.state(p)",
        "pass",
    ),
    _m(
        "logs",
        "a topic made anew is noticed by its id",
        READER,
        "LogReader._is_another",
        "return facts.topic_id != self._facts.topic_id",
        "return facts.partitions != self._facts.partitions",
    ),
    _m(
        "logs",
        "epochs that were given out are remembered",
        READER,
        "LogReader.open",
        "*(s.base + s.next_offset for s in self.world.states)",
        "*(s.base for s in self.world.states)",
    ),
    _m(
        "logs",
        "a truncation ends the reading",
        READER,
        "LogReader._on_error",
        "if error.code() in _TRUNCATED:",
        "if error.code() in _TRUNCATED and not self._was_served:",
    ),
    _m(
        "logs",
        "all replicas have a record, whatever is configured",
        WRITER,
        "LogWriter.__init__",
        '"acks": "all",',
        '"acks": config.get("acks", "all"),',
    ),
    _m(
        "logs",
        "an append of unknown outcome has failed",
        WRITER,
        "LogWriter._produce",
        "if error is None:",
        "if error is None or error.code() == KafkaError._MSG_TIMED_OUT:",
    ),
    _m(
        "logs",
        "all failures are told",
        WRITER,
        "LogWriter.take_failures",
        "while self._failures:",
        "if self._failures:",
    ),
    _m(
        "logs",
        "what was meant for another log is forgotten",
        WRITER,
        "LogWriter.start_over",
        "self._failures.clear()",
        "pass",
    ),
    _m(
        "logs",
        "a producer that failed while it was served is replaced",
        WRITER,
        "LogWriter.serve",
        "self._replace(error)",
        "pass",
    ),
    _m(
        "workers",
        "who raised has not succeeded",
        WORKERS,
        "ThreadWorkers._serve",
        "else:\n                    source.succeeded(task)",
        "source.succeeded(task)",
    ),
    _m(
        "workers",
        "a thread that was woken rests no more",
        WORKERS,
        "ThreadWorkers.wake",
        "self._resting -= woken",
        "pass",
    ),
    _m(
        "workers",
        "everybody who may work is woken",
        WORKERS,
        "AsyncWorkers._wake",
        "while self._idle and count > 0:",
        "if self._idle and count > 0:",
    ),
    _m(
        "workers",
        "a coroutine that cancels itself has failed",
        WORKERS,
        "AsyncWorkers._serve",
        "if _is_cancelled():",
        "if True:",
    ),
    _m(
        "workers",
        "a coroutine whose time is up is handed back",
        WORKERS,
        "AsyncWorkers._serve",
        "source.gave_up(task)",
        "source.succeeded(task)",
    ),
    _m(
        "workers",
        "a thread that does not return is told",
        WORKERS,
        "ThreadWorkers.stop",
        "return not any(thread.is_alive() for thread in self._threads)",
        "return True",
    ),
    _m(
        "reconcile",
        "what is altered stands between its neighbours",
        COMPARE,
        "_same_places",
        "and strange[at] < after[n]",
        "",
    ),
    _m(
        "reconcile",
        "a strange record stands for one row",
        COMPARE,
        "_same_places",
        "free[at] = at + 1",
        "pass",
    ),
    _m(
        "reconcile",
        "a fingerprint has the place of a row",
        COMPARE,
        "fingerprints",
        "(rows ^ (place * _A))",
        "(rows ^ (place * np.uint64(0)))",
    ),
    _m(
        "reconcile",
        "places are counted within a key",
        COMPARE,
        "fingerprints",
        "np.where(keys[1:] == keys[:-1], np.uint64(0), at[1:])",
        "np.uint64(0)",
    ),
    _m(
        "reconcile",
        "ranges include their ends",
        COMPARE,
        "within",
        "(numbers <= highs[at])",
        "(numbers < highs[at])",
    ),
    _m(
        "reconcile",
        "what was overtaken is told although it is there",
        COMPARE,
        "compare_key",
        "if position not in in_order or rows[n].flags & Flag.OVERTAKEN",
        "if position not in in_order",
    ),
)
