"""`harvest slot …`: the replication slot of an outbox in wal mode."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from harvest.cli.options import JsonFlag, RangeConfigFile
from harvest.cli.outbox import load_wal_config
from harvest.core.wal_position import format_lsn
from harvest.core.wal_slot import SlotState
from harvest.errors import ConfigurationError
from harvest.runtime.parts import make_store, make_wal_source
from harvest.runtime.registration import check_registration
from harvest.runtime.slot_changes import renew_slot
from marshal_py.cli.output import print_json, say

__all__ = ["app"]

app = typer.Typer(help="The replication slot (wal mode).", no_args_is_help=True)


@app.command()
def show(config: RangeConfigFile, as_json: JsonFlag = False) -> None:
    """Show the slot, and what it costs its server. Exits with 1 if there is none, or it is lost.

    [dim]Example:[/dim] harvest slot show --config reaper.yaml
    """
    with closing(make_wal_source(load_wal_config(config))) as source:
        slot, health = source.slot.state(), source.health()
        name = source.slot.name
    if as_json:
        report = {
            "slot": name,
            "exists": health.exists,
            "lost": health.lost,
            "active": health.active,
            "confirmed_lsn": None if slot is None else format_lsn(slot.confirmed_lsn or 0),
            "pinned_bytes": health.pinned_bytes,
            "behind_bytes": health.behind_bytes,
            "safe_bytes": health.safe_bytes,
        }
        print_json(report, indent=None)
    elif slot is None:
        say(f"{name}: there is none")
    else:
        safe = "" if health.safe_bytes is None else f", lost after {health.safe_bytes} bytes more"
        say(
            f"{_described(slot)}; {health.pinned_bytes} bytes of log are kept for it, "
            f"{health.behind_bytes} are not harvested{safe}"
        )
    if health.lost:
        raise typer.Exit(1)


@app.command()
def renew(
    config: RangeConfigFile,
    publish_table: Annotated[
        bool, typer.Option("--publish-table", help="First publish what the table has.")
    ] = False,
    begin_now: Annotated[
        bool, typer.Option("--begin-now", help="Leave out what was committed until now.")
    ] = False,
    after: Annotated[
        int | None, typer.Option(help="With --publish-table: only higher ids.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make the slot anew, while no harvester runs: after it was lost.

    What was committed since the checkpoint is in no slot any more. --publish-table publishes the
    rows that are in the table, in the order of their ids: also such as were published and are not
    deleted yet. Every row that is committed from now on comes from the new slot.

    [dim]Example:[/dim] harvest slot renew --config reaper.yaml --publish-table --dry-run
    """
    if publish_table == begin_now:
        raise ConfigurationError("give either --publish-table or --begin-now")
    settings = load_wal_config(config)
    with closing(make_store(settings)) as store:
        check_registration(settings, store, dry_run=dry_run)
    done = renew_slot(settings, publish_table=publish_table, after=after, dry_run=dry_run)
    if as_json:
        report = {"dry_run": dry_run, "published": done.rows, "begins_at": done.begins_at}
        print_json(report, indent=None)
        return
    say("before: " + ("no slot" if done.before is None else _described(done.before)))
    say(f"{done.rows} rows {'would be' if dry_run else 'were'} published from the table")
    if done.begins_at is not None:
        say(f"it goes on at {done.begins_at}")


def _described(slot: SlotState) -> str:
    if slot.lost:
        return f"{slot.name}, lost" + (f" ({slot.why_lost})" if slot.why_lost else "")
    return f"{slot.name}, at {format_lsn(slot.confirmed_lsn or 0)}"
