"""`harvest dead-letters`: the rows that could not be published, and what becomes of them."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from typing import Annotated, Final

import typer

from harvest.cli.options import (
    DatabaseOption,
    DryRunCount,
    JsonFlag,
    OptionalConfigFile,
    TableOption,
)
from harvest.cli.outbox import Outbox, open_outbox
from harvest.core.interfaces.dead_letter_store import DeadLetter, Selection
from harvest.errors import ConfigurationError
from marshal_py.cli.output import print_json, say

__all__ = ["app"]

app = typer.Typer(help="Rows that Kafka refused: list them, publish them after all, or drop them.")

Ids = Annotated[list[int] | None, typer.Option("--id", help="Of this row; may be repeated.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Of this Kafka topic.")]
Key = Annotated[str | None, typer.Option("--key", help="Of this key.")]
Destination = Annotated[
    str | None, typer.Option("--destination", help="That this destination refused.")
]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Set aside at this time or later, such as 2026-01-31T12:00:00Z."),
]
Until = Annotated[str | None, typer.Option("--until", help="Set aside before this time.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]

_KEY_WIDTH: Final = 24


@app.command("list")
def list_(
    config: OptionalConfigFile = None,
    database: DatabaseOption = None,
    table: TableOption = None,
    id_: Ids = None,
    topic: Topic = None,
    key: Key = None,
    destination: Destination = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    as_json: JsonFlag = False,
) -> None:
    """Show which rows were set aside, and why. Exits with 1 if there are any.

    [dim]Example:[/dim] harvest dead-letters list --config reaper.yaml --topic orders
    """
    outbox = open_outbox(config, database, table)
    store = outbox.dead_letters()
    selection = _selection(id_, topic, key, destination, since, until)
    count, rows = store.count(selection), store.rows(selection, limit)
    if as_json:
        print_json({"count": count, "rows": [_as_json(row) for row in rows]}, indent=None)
    else:
        for row in rows:
            shown = _text(row.key)
            if len(shown) > _KEY_WIDTH:
                shown = shown[: _KEY_WIDTH - 1] + "…"
            say(
                f"{row.id:>12}  {row.topic}  {shown}  {row.dead_lettered_at:%Y-%m-%d %H:%M:%S}  "
                f"{row.error}"
            )
        say(f"{store.name}: {count} rows" + (f", {limit} shown" if count > limit else ""))
    if count:
        raise typer.Exit(1)


@app.command()
def retry(
    config: OptionalConfigFile = None,
    database: DatabaseOption = None,
    table: TableOption = None,
    id_: Ids = None,
    topic: Topic = None,
    key: Key = None,
    destination: Destination = None,
    since: Since = None,
    until: Until = None,
    all_: All = False,
    dry_run: DryRunCount = False,
    as_json: JsonFlag = False,
) -> None:
    """Put rows back into the outbox, with those that wait behind them, to be published.

    Do so when the cause is gone: the topic exists now, the limit was raised, the right granted.

    [dim]Example:[/dim] harvest dead-letters retry --config reaper.yaml --topic orders
    """
    outbox = open_outbox(config, database, table)
    store = outbox.dead_letters()
    selection = _selected(_selection(id_, topic, key, destination, since, until), all_=all_)
    _check_mode(outbox)
    count = store.retry(selection, mode=outbox.mode, dry_run=dry_run)
    if as_json:
        print_json({"retried": count, "dry_run": dry_run}, indent=None)
    else:
        say(f"{count} rows {'would go' if dry_run else 'went'} back into the outbox")


@app.command()
def drop(
    config: OptionalConfigFile = None,
    database: DatabaseOption = None,
    table: TableOption = None,
    id_: Ids = None,
    topic: Topic = None,
    key: Key = None,
    destination: Destination = None,
    since: Since = None,
    until: Until = None,
    all_: All = False,
    dry_run: DryRunCount = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete rows for good. Rows that waited for nothing else go back into the outbox.

    [dim]Example:[/dim] harvest dead-letters drop --config reaper.yaml --id 4711 --dry-run
    """
    outbox = open_outbox(config, database, table)
    store = outbox.dead_letters()
    selection = _selected(_selection(id_, topic, key, destination, since, until), all_=all_)
    _check_mode(outbox)
    found = store.drop(selection, mode=outbox.mode, dry_run=dry_run)
    if as_json:
        report = {"dropped": found.rows, "released": found.released, "dry_run": dry_run}
        print_json(report, indent=None)
    else:
        say(
            f"{found.rows} rows {'would be' if dry_run else 'were'} dropped"
            + ("" if dry_run else f", {found.released} that waited for them are in the outbox")
        )


def _selection(
    ids: list[int] | None,
    topic: str | None,
    key: str | None,
    destination: str | None,
    since: str | None,
    until: str | None,
) -> Selection:
    begin, end = _time("--since", since), _time("--until", until)
    if begin is not None and end is not None and end <= begin:
        raise ConfigurationError(f"--until {until} is not after --since {since}: no row is between")
    return Selection(tuple(ids or ()), topic, key, destination, begin, end)


def _time(option: str, text: str | None) -> datetime | None:
    """A time; without a zone, that of this machine."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{option} is {text!r}: write a time such as 2026-01-31T12:00:00Z"
        ) from None


def _check_mode(outbox: Outbox) -> None:
    """What is put back as another mode wants it may lie where no harvester looks for it."""
    with closing(outbox.database.mark_store(outbox.table)) as store:
        registered = store.registration()
    if registered is None:
        return
    mode = "mark" if registered.mode == "relay" else registered.mode
    if mode != outbox.mode:
        raise ConfigurationError(
            f"{outbox.name} is harvested in mode {mode}, and not {outbox.mode}: give the "
            "configuration of its harvesters, --config FILE"
        )


def _selected(selection: Selection, *, all_: bool) -> Selection:
    if all_ == (selection != Selection()):
        raise ConfigurationError(
            "say which rows: --id, --topic, --key, --destination, --since or --until, or else --all"
        )
    return selection


def _as_json(row: DeadLetter) -> dict[str, object]:
    return {
        "id": row.id,
        "topic": row.topic,
        "key": None if row.key is None else _text(row.key),
        "value_bytes": row.value_bytes,
        "error": row.error,
        "waits": row.waits,
        "destination": row.destination,
        "retries": row.retries,
        "destination_response_status": row.status,
        "dead_lettered_at": row.dead_lettered_at.isoformat(),
    }


def _text(key: bytes | None) -> str:
    return "NULL" if key is None else key.decode(errors="backslashreplace")
