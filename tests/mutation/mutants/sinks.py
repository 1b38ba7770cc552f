"""Mutants of what talks to destinations; unit tests must notice them, for no history plays it."""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["SINKS"]


def _sink(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    edits = (Edit(function, old, new),)
    return Mutant(f"sinks: {name}", f"harvest.{module}", edits, "sinks")


def _idempotent(name: str, function: str, old: str, new: str) -> Mutant:
    return _sink("sinks.kafka.idempotent", name, f"_Line.{function}", old, new)


SINKS: tuple[Mutant, ...] = (
    _idempotent(
        "a delivery is not settled before the one before",
        "_settle",
        "while deliveries and deliveries[0].decided and deliveries[0].succeeded:",
        "while done := next((d for d in deliveries if d.decided and d.succeeded), None):\n"
        "                deliveries.remove(done)\n"
        "                deliveries.appendleft(done)",
    ),
    _idempotent(
        "a failure is settled when all is decided",
        "_settle",
        "all(d.decided for d in deliveries)",
        "deliveries[0].decided",
    ),
    _idempotent(
        "after a failure nothing is handed over",
        "submit",
        "if self._reason is None:\n            self._hand_over(delivery)",
        "self._hand_over(delivery)",
    ),
    _idempotent(
        "the lease is asked before a delivery",
        "submit",
        "not self._still_held()",
        "False",
    ),
    _idempotent(
        "the lease is asked while the broker is silent",
        "_run",
        "if not self._still_held():",
        "if False:",
    ),
    _idempotent(
        "an error is no acknowledgement",
        "_reported",
        "if error is None:",
        "if True:",
    ),
    _idempotent(
        "a lost report is not waited for",
        "_run",
        "self._write_off()",
        "pass",
    ),
    _idempotent(
        "what was acknowledged is not undelivered",
        "_failure",
        "- acknowledged",
        "",
    ),
    _sink(
        "sinks.kafka.producers",
        "a full queue is waited for",
        "produce",
        "make_room()",
        "break",
    ),
    _sink(
        "sinks.kafka.settings",
        "an empty key is a key",
        "producer_settings",
        '"partitioner": _partitioner(settings)',
        '"partitioner": settings.get("partitioner", "consistent_random")',
    ),
    _sink(
        "core.kafka_headers",
        "two arrays of two lengths are told",
        "_fitting_texts",
        "if len(keys) != len(values):",
        "if False:",
    ),
    _sink(
        "core.dispatcher",
        "nothing is given up before another is confirmed",
        "Dispatcher.finished",
        "its_own |= destination.confirmed > self._confirmed_before[token]",
        "its_own = True",
    ),
    _sink(
        "core.dispatcher",
        "one message that fails does not open the breaker",
        "Destination.learn",
        "if not (outcome.unavailable or self.failed_others):",
        "if False:",
    ),
    _sink(
        "core.dispatcher",
        "what is gone is sent nothing more",
        "Destination.room",
        "if self.gone or ",
        "if ",
    ),
    _sink(
        "core.relay",
        "a term marks nothing while a purge of an earlier one is under way",
        "RelayScheduler.step",
        "self._purges_foreign = bool(self._purging)",
        "pass",
    ),
    _sink(
        "core.relay",
        "no row is set aside for another of its id",
        "RelayScheduler._add_dead_letters",
        "if row.id not in self._succeeded",
        "",
    ),
    _sink(
        "core.relay",
        "nothing is set aside while a mark may find other rows",
        "RelayScheduler._add_dead_letters",
        "if self._marking or self._adding",
        "if self._adding",
    ),
)
