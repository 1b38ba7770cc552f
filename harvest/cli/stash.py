"""`harvest stash`: insert one row, for trying things out."""

from __future__ import annotations

from typing import Annotated

import typer

from harvest.cli.options import DatabaseOption, OptionalConfigFile, TableOption
from harvest.cli.outbox import open_outbox
from harvest.errors import ConfigurationError
from harvest.outbox.record import OutboxRecord
from marshal_py.cli.output import say

__all__ = ["stash"]


def stash(
    topic: Annotated[str, typer.Argument(help="Kafka topic.")],
    key: Annotated[str, typer.Argument(help="Key: decides partition and order.")],
    value: Annotated[
        str | None, typer.Argument(help="Value; without it, a tombstone.", show_default=False)
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="name=value, as often as needed.", show_default=False),
    ] = None,
    config: OptionalConfigFile = None,
    database: DatabaseOption = None,
    table: TableOption = None,
) -> None:
    """Insert one row into the outbox, in a transaction of its own. For trying things out.

    [dim]Example:[/dim] harvest stash orders order-1 '{"paid": true}' -d postgresql://localhost/shop
    """
    outbox = open_outbox(config, database, table)
    record = OutboxRecord(topic, key, value, [_parse_header(text) for text in header or []])
    outbox.store().connect()
    with outbox.database.transaction() as connection:
        outbox.stasher().stash(connection, record)
    say(f"{outbox.name}: one row for {topic}, key {key!r}")


def _parse_header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigurationError(f"--header {text!r}: write name=value")
    return name, value
