"""`harvest init`: create the outbox table."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Literal

import typer

from harvest.cli.options import DatabaseOption, JsonFlag, OptionalConfigFile, TableOption
from harvest.cli.outbox import open_outbox
from harvest.config.model import Mode
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.errors import ConfigurationError
from marshal_py.cli.output import print_json, say

__all__ = ["init"]


def init(
    config: OptionalConfigFile = None,
    database: DatabaseOption = None,
    table: TableOption = None,
    bytes_: Annotated[
        bool, typer.Option("--bytes", help="Keys and values of any bytes (BYTEA), not text.")
    ] = False,
    notify: Annotated[
        bool | None,
        typer.Option(
            "--notify/--no-notify",
            help="Make or remove the trigger that wakes an idle harvester.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="What it is for.", show_default="mark, or as configured"),
    ] = None,
    begin_now: Annotated[
        bool,
        typer.Option(
            "--begin-now", help="Wal mode: rows that are in the table already are not published."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Create the outbox table, if it does not exist.

    --mode range makes it partitioned, with a small table beside it for positions; an existing
    outbox is left as it is, and gets that table.

    --mode wal makes a publication and a replication slot, too (PostgreSQL, wal_level=logical): what
    is committed from now on is published. With `wal: {source: message}` there is no table.

    --notify adds a trigger that says when rows were inserted: new rows are published within
    milliseconds. Without it an idle harvester looks less and less often, at the latest every
    `limits.max_poll_interval_ms`.

    [dim]Example:[/dim] harvest init --database postgresql://localhost/shop
    """
    outbox = open_outbox(config, database, table, mode)
    if begin_now and outbox.mode != "wal":
        raise ConfigurationError(f"--begin-now is for mode: wal, and this is {outbox.mode}")
    store = outbox.store()
    value_type: Literal["text", "bytes"] = "bytes" if bytes_ else "text"
    if isinstance(store, PostgresWalSource):
        created = store.init(value_type=value_type, begin_now=begin_now, policy=outbox.partitions)
    elif isinstance(store, PostgresRangeStore):
        created = store.init(value_type=value_type, policy=outbox.partitions)
    else:
        created = store.init(value_type=value_type)
    store.close()
    ids = outbox.ids_in_primary()
    if ids is not None:
        with closing(ids):
            ids.init()
    with closing(outbox.dead_letters()) as dead_letters:
        dead_letters.create()
    attempts = outbox.attempts()
    if attempts is not None:
        with closing(attempts):
            attempts.create()
    name = outbox.name
    report = {"table": name, "created": created}
    messages = [f"{name}: created" if created else f"{name}: exists already, left as it is"]
    if notify is not None:
        changed = outbox.database.install_notify(outbox.table, remove=not notify)
        report["notify"] = notify
        state = "there" if notify else "not there"
        messages.append(f"{name}: the trigger is {state}{'' if changed else ' already'}")
    if as_json:
        print_json(report, indent=None)
        return
    for message in messages:
        say(message)
