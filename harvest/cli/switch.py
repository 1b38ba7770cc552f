"""`harvest switch`: another mode, group or coordination topic for an outbox."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from harvest.cli.options import ConfigFile, JsonFlag
from harvest.config.load import load
from harvest.runtime.registration import switch as switch_to
from marshal_py.cli.output import print_json, say

__all__ = ["switch"]


def switch(
    config: ConfigFile,
    old: Annotated[
        Path | None,
        typer.Option(help="The configuration as it was: with its slot.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Let this configuration harvest the outbox from now on: another mode, group or topic.

    An outbox is harvested with one configuration: the first is registered beside it, and another is
    refused. This carries over what was published, so that nothing is published again, and
    registers the new one. Stop all harvesters before. Interrupted, it can be repeated.

    From range mode to mark mode, the rows that are published and still in the table are deleted,
    as mark mode deletes what it has published.

    From wal mode, what the log still has is published first; then the rows of the table that are
    published are deleted, and slot and publication dropped. With other names than the default
    ones in `wal:`, or messages for rows, give the configuration as it was: --old. Writers of
    messages write to the table before that.

    [dim]Example:[/dim] harvest switch --config new.yaml --dry-run
    """
    before_it = None if old is None else load(old)
    done = switch_to(load(config), old=before_it, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, **asdict(done)}, indent=None)
        return
    before, after = done.before, done.after
    if before == after:
        say("it is registered already: nothing to do")
        return
    would = "would be" if dry_run else "were"
    say(f"from mode {before.mode}, group {before.group}, topic {before.topic}")
    say(f"to   mode {after.mode}, group {after.group}, topic {after.topic}")
    if before.mode == "wal":
        say(f"{done.published} rows {would} published from the log")
    say(f"{done.deleted} published rows {would} deleted")
    if done.last_id is not None:
        say(f"it goes on after id {done.last_id}")
    say(f"{done.waiting} rows wait to be published")
