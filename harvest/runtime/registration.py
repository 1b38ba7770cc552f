"""One claim per outbox: who harvests it is written down beside it (specs/HARVEST.md §20).

Claims are of a group and a mode. Two configurations that differ in either, or in the coordination
topic or the Kafka cluster, would both lead. So the first one is registered in the database, another
is refused, and `switch` is how one configuration follows the other.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass, replace
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from harvest.config.model import ReaperConfig
from harvest.core.interfaces.mark_store import Finding
from harvest.core.interfaces.source_store import SourceStore
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.range_checkpoint import Position
from harvest.core.source import Registration, Source, differences, registration_problem
from harvest.core.wal_position import WalPosition
from harvest.core.wal_slot import gone_back
from harvest.databases.postgres.attempts import attempts_name
from harvest.databases.registry import database
from harvest.errors import (
    CheckpointError,
    ConfigurationError,
    DatabaseChanged,
    HarvestError,
    SinkUnavailable,
)
from harvest.runtime.checkpoints import Checkpoints, alone
from harvest.runtime.parts import (
    make_any_store,
    make_range_store,
    make_record,
    make_store,
    make_wal_source,
)
from harvest.runtime.slot_changes import (
    begin_slot,
    drop_slot,
    goes_on,
    keep_source,
    leave_slot,
    refuse_dead_letters,
)
from harvest.sinks.kafka.clients import make_client
from harvest.sinks.kafka.settings import connection_settings

__all__ = [
    "Switch",
    "check_database",
    "check_registration",
    "check_source",
    "keep_source",
    "switch",
]

_ASK_TIMEOUT_S: Final = 15.0
_PAGE: Final = 5_000


def check_registration(config: ReaperConfig, store: SourceStore, *, dry_run: bool = False) -> None:
    """Register the configuration, if it is the first one of the outbox; not in a dry run.

    Raises `ConfigurationError` for another than the registered one, `SchemaError` where nothing can
    be registered, and `SinkUnavailable`.
    """
    ours = config.registration(_cluster_id(config))
    found = store.registration() if dry_run else store.register(ours)
    problem = None if found is None else registration_problem(found, ours)
    if problem is not None:
        raise ConfigurationError(
            f"{config.outbox}: {problem}: two configurations would publish rows twice; if the "
            "other one is used no more, run `harvest switch` with this one"
        )


@dataclass(frozen=True, slots=True)
class Switch:
    """What `switch` does, or would do.

    - `deleted`: rows that are published and were still in the table, which the new mode would
      publish again. `waiting`: rows that are left for the new configuration to publish; to wal
      mode, those that are published now, since they are from before the slot.
    - `published`: rows that were in the log, and that leaving wal mode publishes first.
    - `last_id`: in range mode, the id after which it goes on, by the lowest shard.
    """

    before: Registration
    after: Registration
    deleted: int = 0
    waiting: int = 0
    last_id: int | None = None
    published: int = 0


def switch(
    config: ReaperConfig, *, old: ReaperConfig | None = None, dry_run: bool = False
) -> Switch:
    """Let `config` harvest the outbox from now on, and carry over what was published.

    `old`: the configuration as it was. From wal mode its slot and publication are needed, where
    they have other names than those that are made of the outbox's, or records are messages.

    While no harvester of either configuration runs. Interrupted at any moment, it can be repeated:
    the new one is registered last. Raises `ConfigurationError`, `SchemaError`, `DatabaseChanged`,
    `SinkUnavailable` and `StoreUnavailable`.
    """
    ours = config.registration(_cluster_id(config))
    store = make_any_store(config)
    with contextlib.closing(store):
        if ours.mode != "wal":  # which asks less of the table
            store.connect()
        found = store.registration()
        if found is None:
            raise ConfigurationError(
                f"{config.outbox}: nobody is registered: start `harvest reap` with this one"
            )
        if registration_problem(found, ours) is None:
            if old is not None and old.mode == "wal" != ours.mode and not dry_run:
                drop_slot(old)  # it was interrupted before that
            return Switch(found, ours)
        if found.cluster != ours.cluster:
            raise ConfigurationError(
                f"{config.outbox}: it is harvested with the Kafka cluster {found.cluster!r} and "
                f"not {ours.cluster!r}: what was published is known there only; switch with a "
                "configuration of that cluster. If it is gone for good, delete the row of "
                f"{config.table.beside('registration')}: rows may be published again"
            )
        old = _configured(config, old, found)
        with contextlib.ExitStack() as stack:
            for one in (old,) if dry_run else (old, config):
                if one is old or _claims(old) != _claims(config):
                    stack.enter_context(alone(one, one.shards))
            if not dry_run:
                Checkpoints(old).fence()
            if found.mode == "wal":  # which compares slot and position when it is left
                _check_visit(old)
            else:
                check_source(old)
            if found.mode == "relay" != ours.mode:
                _refuse_half_sent(old)
            if found.mode != "wal" == ours.mode:
                refuse_dead_letters(old, ", with the configuration as it was")
            done = _carry_over(old, config, found, ours, dry_run=dry_run)
            if not dry_run:
                store.register_anew(ours)
                keep_source(config, store)
                if found.mode == "wal" != ours.mode:
                    drop_slot(old)  # which would keep the server's log
        return done


def check_source(config: ReaperConfig) -> None:
    """Make sure that the database is the one whose rows were published, as far as Kafka knows it.

    Raises `DatabaseChanged`, `SinkUnavailable` and `StoreUnavailable`; and in wal mode
    `CheckpointError` and `ConfigurationError`, where slot and position do not belong together.
    """
    if config.mode == "wal":
        position = Checkpoints(config).wal()
        if position is not None:
            with contextlib.closing(make_wal_source(config)) as source:
                source.begin(position)
        _check_visit(config)
        return
    record, store = make_record(config), make_any_store(config)
    with contextlib.closing(store), contextlib.closing(record):
        before = record.load()
        problem = None if before is None else _source_problem(config, before, store)
    if problem is not None:
        raise DatabaseChanged(
            f"{problem}; decide on that first, with the configuration that was used so far: "
            "see `harvest checkpoint accept --help`"
        )


def _check_visit(config: ReaperConfig) -> None:
    problem = _visit_problem(config)
    if problem is not None:
        raise DatabaseChanged(problem)


def _visit_problem(config: ReaperConfig) -> str | None:
    """In wal mode: why the database is an old copy, and the way out; None if it is not."""
    record, source = make_record(config), make_wal_source(config)
    with contextlib.closing(source), contextlib.closing(record):
        before = record.load()
        return None if before is None else gone_back(before, source.source(), source.end_of)


def _source_problem(config: ReaperConfig, before: Source, store: SourceStore) -> str | None:
    """Why the database does not go on from what Kafka knows of it; None if it does."""
    problem = differences(before, store.source(), promoted_at=store.promoted_at())
    if problem is None and config.mode == "range":
        problem = _ids_problem(config)
    return problem


def _configured(
    config: ReaperConfig, given: ReaperConfig | None, found: Registration
) -> ReaperConfig:
    """`config` as it was for the registered mode, group and coordination topic."""
    mode = found.mode if found.mode in ("range", "wal") else "mark"
    if given is not None:
        if (given.table, given.registration().mode) != (config.table, found.mode):
            raise ConfigurationError(
                f"the old configuration is of {given.outbox} in mode {given.registration().mode}, "
                f"must be of {config.outbox} in mode {found.mode}, which is registered"
            )
        config = config.model_copy(update={"database": given.database, "wal": given.wal})
    old = config.model_copy(
        update={
            "group": found.group,
            "mode": mode,
            "shards": 1,
            "delivery": "transactional",
            "destinations": {},
            "coordination": config.coordination.model_copy(update={"topic": found.topic}),
        }
    )
    if mode == "range":
        with contextlib.closing(make_range_store(old)) as store:
            old = old.model_copy(update={"shards": store.layout()})
    return old


def _claims(config: ReaperConfig) -> tuple[object, ...]:
    return config.group, config.coordination.topic, config.shard_units()


def _refuse_half_sent(old: ReaperConfig) -> None:
    """Only a relay knows which destinations have a row: another mode would send it to all."""
    attempts = database(old.database).attempts(old.table)
    if attempts is None:
        return
    with contextlib.closing(attempts):
        count = len(attempts.settled())
    if count:
        raise ConfigurationError(
            f"{old.outbox}: {count} rows are at some of their destinations and not at the others, "
            "as only a relay knows: let a harvester deliver them, with the configuration as it "
            "was, and run `harvest dead-letters retry` or `drop` for those that are set aside; "
            f"then delete what is left in {attempts_name(old.table)}"
        )


def _carry_over(
    old: ReaperConfig,
    new: ReaperConfig,
    before: Registration,
    after: Registration,
    *,
    dry_run: bool,
) -> Switch:
    if before.mode == "wal":
        return _from_wal(old, new, before, after, dry_run=dry_run)
    if new.mode == "wal" and goes_on(new, Checkpoints(new).text()):
        return Switch(before, after)  # it was interrupted after this
    if before.mode == "range":
        positions = [Checkpoints(old).read(shard) for shard in range(old.shards)]
        if new.mode == "range":
            return _rename(old, new, before, after, positions, dry_run=dry_run)
        deleted = _delete_published(old, positions, dry_run=dry_run)
    else:
        deleted = _clear(old, dry_run=dry_run)
    if new.mode == "wal":
        if not dry_run:
            return Switch(before, after, deleted, begin_slot(new))
        with contextlib.closing(make_wal_source(new)) as source:
            there = source.count_rows(None) if source.has_table() else 0
            return Switch(before, after, deleted, there - deleted)
    return _begin(new, before, after, deleted, dry_run=dry_run)


def _from_wal(
    old: ReaperConfig,
    new: ReaperConfig,
    before: Registration,
    after: Registration,
    *,
    dry_run: bool,
) -> Switch:
    """Publish what is in the log, up to a place; then only the rest is in the table."""
    found = Checkpoints(old).text()
    if new.mode == "wal":
        if found is not None and not dry_run:
            Checkpoints(new).write_text(WalPosition.decode(found).encode())
        return Switch(before, after)
    if found is not None and _is_of_mark_mode(found):
        return _begin(new, before, after, 0, dry_run=dry_run)  # it was interrupted after this
    left = leave_slot(old, found, dry_run=dry_run)
    done = _begin(new, before, after, left.deleted, dry_run=dry_run)
    return replace(done, published=left.published)


def _is_of_mark_mode(text: str) -> bool:
    try:
        Checkpoint.decode(text)
    except CheckpointError:
        return False
    return True


def _begin(
    new: ReaperConfig, before: Registration, after: Registration, deleted: int, *, dry_run: bool
) -> Switch:
    """Begin with the first row, where those that are published are deleted."""
    if new.mode == "range":
        with contextlib.closing(make_range_store(new)) as ranges:
            last_id = ranges.bounds().first - 1
            waiting = ranges.backlog(Position(0, 0, 1, last_id)).rows
            waiting = max(0, waiting - (deleted if dry_run else 0))
            if not dry_run:
                anew = [Position(0, s, new.shards, last_id) for s in range(new.shards)]
                Checkpoints(new).write(anew, fence=new.shards)
                ranges.rewrite(new.shards, anew)
        return Switch(before, after, deleted, waiting, last_id)
    if not dry_run:
        names_nothing = Checkpoint(0, Term.of(secrets.randbits(60)), 0, 1, 0)
        Checkpoints(new).write_mark(names_nothing)
    with contextlib.closing(make_store(new)) as rows:
        waiting = max(0, rows.backlog().rows - (deleted if dry_run else 0))
    return Switch(before, after, deleted, waiting)


def _rename(
    old: ReaperConfig,
    new: ReaperConfig,
    before: Registration,
    after: Registration,
    positions: list[Position | None],
    *,
    dry_run: bool,
) -> Switch:
    """Range mode goes on as range mode, in another group."""
    if old.shards != new.shards:
        raise ConfigurationError(
            f"shards is {new.shards}, and the outbox is harvested in {old.shards}: write shards: "
            f"{old.shards} to switch, and run `harvest shards {new.shards}` afterwards"
        )
    found = [position for position in positions if position is not None]
    last_id = min([position.last_id for position in found], default=None)
    if found and not dry_run:
        Checkpoints(new).write(found, fence=new.shards)
    with contextlib.closing(make_range_store(new)) as store:
        lowest = min(found, key=lambda p: p.last_id, default=None)
        return Switch(before, after, 0, store.backlog(lowest).rows, last_id)


def _clear(old: ReaperConfig, *, dry_run: bool) -> int:
    """Delete what the last checkpoint of mark mode says is published."""
    checkpoint = Checkpoints(old).read_mark()
    if checkpoint is None or dry_run:
        return 0
    with contextlib.closing(make_store(old)) as store:
        return store.clear(checkpoint)


def _delete_published(old: ReaperConfig, positions: list[Position | None], *, dry_run: bool) -> int:
    """Delete the rows that range mode has published: mark mode publishes what it finds."""
    deleted = 0
    with contextlib.closing(make_store(old)) as rows:
        for shard, position in enumerate(positions):
            if position is None:
                continue
            with contextlib.closing(make_range_store(old, shard)) as store:
                after = store.bounds().first - 1
                while after < position.last_id:
                    window = store.read(after, _PAGE).upto(position.last_id)
                    if window.last_id == after:
                        break
                    after = window.last_id
                    ids = [row[0] for row in window.rows if not _is_open(position, row[0])]
                    deleted += len(ids) if dry_run or not ids else rows.delete(ids)
    return deleted


def _is_open(position: Position, row_id: int) -> bool:
    return any(low <= row_id <= high for low, high in position.gaps)


def _cluster_id(config: ReaperConfig) -> str:
    """Kafka's id of itself. Raises `SinkUnavailable`."""
    try:
        admin = make_client(AdminClient, connection_settings(config.kafka))
        metadata = admin.list_topics(timeout=_ASK_TIMEOUT_S)
    except KafkaException as error:
        raise SinkUnavailable(f"Kafka cannot be reached: {error.args[0].str()}") from error
    return metadata.cluster_id or ""


def _ids_problem(config: ReaperConfig) -> str | None:
    checkpoints = Checkpoints(config)
    with contextlib.closing(make_range_store(config)) as store:
        found = [checkpoints.read(shard) for shard in range(config.shards)]
        bounds = store.bounds()  # afterwards: ids go on being drawn
    positions = [position for position in found if position is not None]
    return next(filter(None, map(bounds.problem, positions)), None)


def check_database(config: ReaperConfig) -> list[Finding]:
    """What `harvest check` says: who is registered, and whether the database is the one it was."""
    store, record = make_any_store(config), make_record(config)
    with contextlib.closing(store), contextlib.closing(record):
        try:
            found = store.registration()
            if found is None:
                return [Finding("registered", "ok", "nobody yet: the first harvester is")]
            problem = registration_problem(found, config.registration(_cluster_id(config)))
            if problem is not None:
                return [Finding("registered", "error", f"{problem}: see `harvest switch --help`")]
            fits = Finding("registered", "ok", f"mode {found.mode}, group {found.group}")
            if config.mode == "wal":
                problem = _visit_problem(config)
                return [fits] if problem is None else [fits, Finding("database", "error", problem)]
            before = record.load()
            if before is None:
                return [fits]
            problem = _source_problem(config, before, store)
        except HarvestError as error:
            return [Finding("database", "error", str(error))]
    if problem is None:
        return [fits, Finding("database", "ok", "it is the one whose rows were published")]
    text = f"{problem}: see `harvest checkpoint accept --help`"
    return [fits, Finding("database", "error", text)]
