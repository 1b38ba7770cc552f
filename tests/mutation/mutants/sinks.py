"""Mutants of what talks to destinations: histories of whole harvesters, or unit tests, notice."""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["SINKS"]


def _sink(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    edits = (Edit(function, old, new),)
    campaign = "relays" if module in ("core.dispatcher", "core.relay") else "sinks"
    return Mutant(f"{campaign}: {name}", f"harvest.{module}", edits, campaign)


def _idempotent(name: str, function: str, old: str, new: str) -> Mutant:
    return _sink("sinks.kafka.idempotent", name, f"_Line.{function}", old, new)


def _batch(name: str, function: str, old: str, new: str) -> Mutant:
    return _sink("core.dispatcher", f"batches: {name}", f"Dispatcher.{function}", old, new)


_BATCHES = (
    _batch(
        "what has failed goes in no request of others",
        "_follows",
        "and message.token not in self._retries\n",
        "",
    ),
    _batch(
        "a message before its time stays behind",
        "_follows",
        "message.not_before_ms <= now_ms",
        "True",
    ),
    _batch(
        "a request is bounded in bytes",
        "_start",
        "joins &= size + value <= destination.policy.batch_bytes",
        "pass",
    ),
    _batch(
        "a request is bounded in messages",
        "_start",
        "joins = 0 < records < most",
        "joins = 0 < records",
    ),
    _batch(
        "a destination is tried with one message",
        "_start",
        "1 if destination.trips else destination.policy.batch_records",
        "destination.policy.batch_records",
    ),
    _batch(
        "what has failed is sent alone",
        "_start",
        "(row_id, key[2]) in self._retries",
        "False",
    ),
    _batch("what was not tried is not blamed", "finished", "if outcome.untried:", "if False:"),
    _batch("a request counts once", "finished", "if not message.joined and ", "if "),
    _batch(
        "a request is one failure of its destination",
        "finished",
        "if asked and not outcome.shared:",
        "if asked:",
    ),
)


def _fan_out(name: str, function: str, old: str, new: str) -> Mutant:
    return _sink("core.relay", f"fan-out: {name}", f"RelayScheduler.{function}", old, new)


_FAN_OUT = (
    _fan_out(
        "who has a row is not sent it again",
        "_offered",
        "if message.lane in known.settled:",
        "if False:",
    ),
    _fan_out(
        "a row is decided when all its messages are", "_look_at", "if known.open:", "if False:"
    ),
    _fan_out(
        "another row of the id was sent to nobody",
        "_remember",
        "settled is not None and settled[0] == fingerprint(known.row)",
        "settled is not None",
    ),
    _fan_out(
        "who has a row is remembered when it is forgotten",
        "_forget",
        "if known.settled:",
        "if False:",
    ),
    _fan_out(
        "what is purged is gone for good",
        "step",
        "self._known[row_id].settled.clear()",
        "pass",
    ),
    _fan_out(
        "who had a row before the term is known",
        "step",
        "self._settled = {**settled, **self._settled}",
        "pass",
    ),
    _fan_out(
        "a row that is given up is set aside though it is shed elsewhere",
        "_look_at",
        "known.shed.clear()",
        "return",
    ),
    _sink(
        "core.dead_letters",
        "fan-out: who stops at bad rows sets none aside",
        "BadRowFilter.waits",
        'if self.policy.on_bad_row == "stop":',
        "if False:",
    ),
)


def _columns(name: str, function: str, old: str, new: str) -> Mutant:
    return _sink("core.extra_columns", f"columns: {name}", function, old, new)


_COLUMNS = (
    _columns("NULL is no header", "with_extra", "if value is not None])", "if True])"),
    _columns("the row's own headers stay", "with_extra", "(keys or ()) + ", ""),
    _columns("what is selected behind stays", "with_extra", ", *row[end:])", ")"),
    _columns("a partition is one that there can be", "_partition", "<= _MAX_PARTITION", "> -1"),
    _columns(
        "a time that does not say is UTC",
        "_timestamp_ms",
        "at if at.tzinfo else at.replace(tzinfo=UTC)",
        "at",
    ),
    _columns(
        "a moment that is no time to the producer", "_timestamp_ms", "0 < found", "0 <= found"
    ),
)


def _transactional(name: str, function: str, old: str, new: str) -> Mutant:
    return _sink(
        "sinks.kafka.sink", f"transactions: {name}", f"TransactionalSink.{function}", old, new
    )


_TRANSACTIONS = (
    _transactional(
        "the checkpoint is read when all others are fenced",
        "open",
        "producer = self._fence()\n        checkpoint = self._read_checkpoint()",
        "checkpoint = self._read_checkpoint()\n        producer = self._fence()",
    ),
    _transactional(
        "a step that timed out is not done",
        "_insist",
        "if not error.args[0].retriable():\n                    raise",
        "if not error.args[0].retriable():\n                    raise\n                return",
    ),
    _transactional(
        "the position is part of it, whichever goes first",
        "_deliver",
        "if not position_first:",
        "if False:",
    ),
    _transactional(
        "what has failed has failed",
        "_transact",
        "        return problem\n",
        "        return None\n",
    ),
    _transactional(
        "after a failure nothing is delivered until it is opened again",
        "_failed",
        "self._give_up()\n",
        "pass\n",
    ),
    _transactional(
        "the id is that of the outbox",
        "__init__",
        'Producers(config, f"harvest.{name}")',
        'Producers(config, f"harvest.{name}.{time.monotonic_ns()}")',
    ),
    _transactional(
        "who has given up is asked why",
        "_failure_of",
        "problem.__cause__ or problem",
        "problem",
    ),
    _transactional(
        "a producer that could not begin is given up",
        "_fence",
        "            give_up(producer)\n",
        "            return producer\n",
    ),
)

_REFUSALS = (
    _sink(
        "sinks.kafka.refusals",
        "refusals: of a batch that is too large no row is blamed",
        "RowErrors.refused",
        "if alone or len(rows) == 1:",
        "if True:",
    ),
    _sink(
        "sinks.kafka.refusals",
        "refusals: a row that is too large alone is blamed",
        "RowErrors.refused",
        "blamed |= alone or set(suspects)",
        "pass",
    ),
    _sink(
        "sinks.kafka.refusals",
        "refusals: what is certain is blamed",
        "RowErrors.refused",
        "if self._codes[i] in _CERTAIN",
        "if False",
    ),
    Mutant(
        "sinks: refusals: who is not told of a row counts none",
        "marshal_py.client.kafka_clients",
        (Edit("give_up", "producer.purge()", "pass"),),
        "sinks",
    ),
)

_LINE = (
    _idempotent(
        "what waits is given up when the sink is closed",
        "close",
        "_purge(self._producer)\n",
        "pass\n",
    ),
    _idempotent(
        "who heard nothing of a row has no acknowledgement",
        "_write_off",
        "delivery.reported = delivery.handed_over",
        "delivery.acknowledged.update(row[0] for row in delivery.rows)\n"
        "                    delivery.reported = delivery.handed_over",
    ),
    _idempotent(
        "a row that the producer refuses is a failure",
        "_hand_over",
        'self._fail(f"row {error.row_id}: {error}")',
        "pass",
    ),
    _idempotent(
        "nothing counts as handed over before it is",
        "submit",
        "delivery.all_handed_over = True\n        self._settle()",
        "self._settle()",
    ),
)


def _relayed(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    edits = (Edit(function, old, new),)
    return Mutant(f"relays: {name}", f"harvest.{module}", edits, "relays")


_RELAYED = (
    _relayed(
        "sinks.http.endpoint",
        "an answer that is no success is none",
        "HttpSink._exchange",
        "if answer.status in self._endpoint.expected:",
        "if True:",
    ),
    _relayed(
        "sinks.http.endpoint",
        "a message that the receiver refuses is given up",
        "HttpSink._failure",
        "lasting = status in self._endpoint.refused",
        "lasting = False",
    ),
    _relayed(
        "sinks.http.exchange",
        "a connection that has not answered is not used again",
        "Connection._exchange",
        "self._reusable = False\n",
        "self._reusable = True\n",
    ),
    _relayed(
        "sinks.kafka.destination",
        "what a broker refuses with others is sent alone",
        "KafkaDestination.send",
        "if failure is not None and failure.code() in _OF_THE_BATCH:",
        "if False:",
    ),
    _relayed(
        "sinks.kafka.destination",
        "what is not acknowledged in time is a failure",
        "_Live.produce",
        "return failures[0] if failures else None",
        "return None",
    ),
    _relayed(
        "core.routes",
        "what can go nowhere holds up its key at each destination",
        "Router.messages",
        "if self._several:\n                names = sorted",
        "if False:\n                names = sorted",
    ),
    _relayed(
        "runtime.relay_leader",
        "what is set aside is known when it is opened",
        "RelayLeader._open",
        "waiting = dict(self.dead_letters.waiting_keys())",
        "waiting = {}",
    ),
)


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
        "_hand_over",
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
    *_TRANSACTIONS,
    *_REFUSALS,
    *_LINE,
    *_RELAYED,
    *_BATCHES,
    *_FAN_OUT,
    *_COLUMNS,
)
