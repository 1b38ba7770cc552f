"""`harvest pause`, `harvest resume`: publish nothing for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from harvest.cli.options import ConfigFile, JsonFlag
from harvest.config.goharvest import parse_duration_ms
from harvest.config.load import load
from harvest.errors import ConfigurationError
from harvest.sinks.kafka.settings import connection_settings
from marshal_py.admin.group_admin import GroupAdmin
from marshal_py.cli.options import LONGEST_S
from marshal_py.cli.output import print_json, say

__all__ = ["pause", "resume"]


def pause(
    config: ConfigFile,
    duration: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="When it ends by itself: 90s, 2h.")
    ] = "15m",
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait", min=0.0, max=LONGEST_S, metavar="SECONDS", help="How long leaders may take."
        ),
    ] = 30.0,
    as_json: JsonFlag = False,
) -> None:
    """Pause an outbox: its harvesters publish nothing until `harvest resume`, or the end of --for.

    It is a pause of the group, in the coordination log: every process of the outbox follows it, in
    every mode, also those that start meanwhile. Rows wait in the table. Nothing is lost; with
    delivery at least once, what was in flight may come again. Exit code 1 if somebody still led
    after --wait.

    [dim]Example:[/dim] harvest pause --config reaper.yaml --for 2h
    """
    try:
        for_s = parse_duration_ms(duration) / 1000
    except ValueError as error:
        raise ConfigurationError(f"--for is {duration!r}: {error}") from None
    with _admin(config) as admin:
        until_ms = admin.pause(for_s)
        held = admin.await_released(wait_s)
        group = admin.group_id
    until = datetime.fromtimestamp(until_ms / 1000, UTC).isoformat(timespec="seconds")
    if as_json:
        print_json({"group": group, "paused_until": until, "released": not held}, indent=None)
    else:
        say(f"{group} is paused until {until}")
        if held:
            say(f"still leading: {', '.join(sorted(set(held.values())))}", stderr=True)
    if held and wait_s:
        raise typer.Exit(1)


def resume(config: ConfigFile, as_json: JsonFlag = False) -> None:
    """End the pause of an outbox.

    [dim]Example:[/dim] harvest resume --config reaper.yaml
    """
    with _admin(config) as admin:
        was_paused = admin.resume()
        group = admin.group_id
    if as_json:
        print_json({"group": group, "was_paused": was_paused}, indent=None)
    else:
        say(f"{group} goes on" if was_paused else f"{group} was not paused")


def _admin(path: Path) -> GroupAdmin:
    config = load(path)
    return GroupAdmin(
        connection_settings(config.kafka),
        config.group,
        topic=config.coordination.topic,
        client_id="harvest-operator",
    )
