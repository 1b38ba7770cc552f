"""`marshal group migrate`: move a group from version 1 to version 2 while it works, or back."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from confluent_kafka import KafkaException

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import count, safe
from marshal_py.admin.migration import Bridge
from marshal_py.admin.migration_plan import (
    BLOCKING,
    Key,
    Sides,
    Step,
    assess,
    explain,
    partitions_of,
)
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.options import JsonFlag
from marshal_py.cli.output import console, log_to_stderr, note, print_json, show, table
from marshal_py.client.kafka_clients import no_answer
from marshal_py.client.marshal import Claim, Marshal, driver_of
from marshal_py.client.settings import new_instance_id
from marshal_py.client.topics import admin_client
from marshal_py.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DuplicateClientId,
    TopicMissing,
)
from marshal_py.protocol.migration import GRANT_PREFIX, migration_topic
from marshal_py.protocol.slots import BY_PARTITIONS, agreement_of, in_words, source_of

__all__ = ["migrate"]

POLL_S = 0.2
BUSY_POLL_S = 0.02
LEADER = "migration"
"""Whoever leads this in version 2 is the group's bridge; the others stand by."""

HEARTBEATS_PER_INTERVAL = 12
"""Heartbeats in version 2 for one interval of version 1. They pass its lease on, of which a third
is gone when the next heartbeat in version 1 is due; and a standby goes on after two of them."""
MIN_INTERVAL_MS = 500


@command(coordination_topic=("--text-topic", "--coordination-topic"))
def migrate(
    connection: Connection,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group to move.")],
    new_topic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The coordination topic of version 2: that of version 1 and “.v2”."
        ),
    ] = None,
    back: Annotated[
        bool, typer.Option("--back", help="From version 2 to version 1.", show_default=False)
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Rehearse: look and say, write nothing.", show_default=False
        ),
    ] = False,
    source_stopped: Annotated[
        bool,
        typer.Option(
            "--source-stopped",
            help="No process of the old side runs any more: end when everything has moved.",
            show_default=False,
        ),
    ] = False,
    topics: Annotated[
        str | None,
        typer.Option(metavar="T,…", help="Only these topics; all that the group has by default."),
    ] = None,
    interval_s: Annotated[
        int,
        typer.Option(
            "--interval", min=1, metavar="SECONDS", help="Heartbeat interval of the Go clients."
        ),
    ] = 60,
    client_id: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the bridge, kept over restarts.")
    ] = "marshal-migrate",
    skip_to_target: Annotated[
        bool,
        typer.Option(
            "--skip-to-target",
            help="Where the new side's position is ahead, go on from there.",
            show_default=False,
        ),
    ] = False,
    give_up_s: Annotated[
        float | None,
        typer.Option(
            "--give-up",
            min=0.0,
            metavar="SECONDS",
            help="End with exit code 1 if it takes longer; never by default.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Move a group from version 1 (text, Go Marshal) to version 2 while it works, or back.

    The two versions have a coordination topic each. While this command runs, version 2 works only
    on what it grants. Start it; start processes of the new side when it says so; stop those of the
    old side one by one, in any order: what they leave moves over, with its position. Or stop all of
    them first, and use --source-stopped.

    Run it twice, on two machines: the second stands by, and goes on when the first one dies. While
    none runs, version 1 goes on working, and version 2 stops within one heartbeat interval on what
    has moved to it. Start it again at any time; it goes on where it was.
    """
    new_topic = new_topic or f"{connection.topic}.v2"
    if new_topic == connection.topic:
        raise ConfigurationError(
            f"--new-topic {new_topic!r} is the topic of version 1: give version 2 one of its own"
        )
    run = _Run(
        connection=connection,
        group=group,
        new_topic=new_topic,
        back=back,
        source_stopped=source_stopped,
        only=None if topics is None else {name.strip() for name in topics.split(",")},
        interval_ms=interval_s * 1000,
        client_id=client_id,
        skip_to_target=skip_to_target,
        give_up_s=give_up_s,
        as_json=as_json,
    )
    with ExitStack() as closing:
        if dry_run:
            _dry_run(run, closing)
            return
        for name in ("marshal_py.migrate", "marshal_py.text"):  # what a bridge does not stop for
            log_to_stderr(name=name)
        stop = threading.Event()
        _stop_on_signals(stop, closing)
        run.until_done(stop, closing)


Outcome = Literal["finished", "stopped", "lost its turn", "was taken for another"]


@dataclass
class _Run:
    """One run of the command: waits for its turn, and is the bridge while it has it."""

    connection: Connection
    group: str
    new_topic: str
    back: bool
    source_stopped: bool
    only: set[str] | None
    interval_ms: int
    client_id: str
    skip_to_target: bool
    give_up_s: float | None
    as_json: bool
    started_s: float = 0.0

    def client(self, version: Literal[1, 2], client_id: str, **settings: Any) -> Marshal:
        common: dict[str, Any] = {
            "group_id": self.group,
            "client_id": client_id,
            "connect_timeout_ms": int(self.connection.timeout_s * 1000),
            "close_on_sigterm": False,
            **settings,
        }
        if version == 1:
            return Marshal(
                self.connection.kafka,
                topic=self.connection.topic,
                wire="text",
                interval_ms=self.interval_ms,
                **common,
            )
        return Marshal(
            self.connection.kafka,
            topic=self.new_topic,
            interval_ms=max(MIN_INTERVAL_MS, self.interval_ms // HEARTBEATS_PER_INTERVAL),
            member=False,
            **common,
        )

    def until_done(self, stop: threading.Event, closing: ExitStack) -> None:
        self.started_s = time.monotonic()
        if not self.back:  # whoever is asked for what does not exist should not make a topic
            with ExitStack() as looking:
                text = _open(self.client(1, f"{self.client_id}-looks"), looking)
                _topics_to_move(self.connection, text, self.only)
        lead = self.client(2, f"{self.client_id}-{new_instance_id()}", create_topics=not self.back)
        closing.enter_context(lead)
        while not stop.is_set():
            claim = lead.want(f"leader:{LEADER}", 0)
            told = False
            while not claim.wait_held(POLL_S):
                if stop.is_set():
                    return
                self.check_patience()
                if claim.reason is not None:
                    claim = lead.want(f"leader:{LEADER}", 0)
                driver_of(lead).check_open()
                holder = lead.cell(f"leader:{LEADER}", 0)
                if not told and holder is not None and holder.held:
                    told = True
                    self.report("standby", f"{holder.holder} is the bridge; this one stands by")
            with ExitStack() as clients:
                outcome = self.be_the_bridge(stop, clients, claim)
            if outcome in ("finished", "stopped"):
                return
            self.report("again", f"this bridge {outcome}; it stands by")
            stop.wait(1.0)

    def be_the_bridge(self, stop: threading.Event, clients: ExitStack, lead: Claim) -> Outcome:
        text = _open(self.client(1, self.client_id), clients)
        new = _open(self.client(2, self.client_id), clients)
        source, target = (new, text) if self.back else (text, new)
        bridge = Bridge(
            source,
            target,
            _topics_to_move(self.connection, source, self.only),
            every=self.only is None,
            skip_to_target=self.skip_to_target,
        )
        try:
            bridge.block(timeout_s=2.5 * self.interval_ms / 1000 + 30)
            if bridge.ended:
                return self.finish(bridge)
            self.report(
                "blocked",
                f"{count(len(bridge.keys), 'partition')} held for the new side: "
                "its processes may start, and those of the old side be stopped",
                moved=len(bridge.moved),
            )
            outcome = self.move(bridge, source, stop, lead)
        except DuplicateClientId:
            # An earlier bridge was not quite dead; but it leads no more, and this one may.
            outcome = "was taken for another"
        if outcome in ("lost its turn", "was taken for another"):
            for side in (text, new):
                driver_of(side).abandon()
        return outcome

    def move(self, bridge: Bridge, source: Marshal, stop: threading.Event, lead: Claim) -> Outcome:
        announced = False
        conflicts: dict[Key, str] = {}
        adopt_every_s = self.interval_ms / 4000
        adopted_s = time.monotonic()
        while not stop.wait(BUSY_POLL_S if bridge.busy else POLL_S):
            if not lead.held:
                return "lost its turn"
            for step in bridge.step():
                self.report_moved(step, len(bridge.moved), len(bridge.keys))
            for key, why in bridge.conflicts.items():
                if key not in conflicts:
                    announced = False
                    self.report_conflict(key, why)
            conflicts = dict(bridge.conflicts)
            if bridge.complete and self.source_stopped:
                return self.finish(bridge)
            if bridge.complete and not announced:
                announced = True
                self.report(
                    "complete",
                    "everything has moved. Stop the last processes of the old "
                    "side, then end this with Ctrl-C, and run it once more with --source-stopped",
                )
            self.check_patience(bridge)
            if time.monotonic() - adopted_s > adopt_every_s:
                adopted_s = time.monotonic()
                self.adopt(bridge, source)
        self.report(
            "stopped",
            f"{_what_is_left(bridge)} Version 2 stops within "
            f"{self.interval_ms / 1000:g} s on what has moved to it, unless another bridge goes on",
        )
        return "stopped"

    def finish(self, bridge: Bridge) -> Outcome:
        bridge.finish()
        self.report("finished", "everything has moved; the old side is released")
        return "finished"

    def check_patience(self, bridge: Bridge | None = None) -> None:
        if self.give_up_s is not None and time.monotonic() - self.started_s > self.give_up_s:
            self.report("gave_up", _what_is_left(bridge) if bridge else "another is the bridge")
            raise typer.Exit(FINDING)

    def adopt(self, bridge: Bridge, source: Marshal) -> None:
        try:
            added = bridge.adopt(_topics_to_move(self.connection, source, self.only))
        except (BrokerUnavailable, ConfigurationError) as error:  # a certificate is being replaced
            note(f"the topics could not be looked at, and will be again: {error}")
            return
        if added:
            names = ", ".join(f"{topic}/{p}" for topic, p in added[:5])
            more = f" and {len(added) - 5} more" if len(added) > 5 else ""
            self.report(
                "adopted",
                f"new: {names}{more}; version 1's until they move",
                partitions=[list(key) for key in added],
            )

    def report(self, event: str, text: str, **fields: Any) -> None:
        if self.as_json:
            print_json({"event": event, "text": text, **fields}, indent=None)
        else:
            console().print(safe(text))

    def report_conflict(self, key: Key, why: str) -> None:
        topic, partition = key
        self.report(
            "conflict",
            f"{topic}/{partition}: {why} in version 1, although version 2 worked on it: it is "
            "version 1's again, and moves when that process is stopped",
            topic=topic,
            partition=partition,
        )

    def report_moved(self, step: Step, done: int, total: int) -> None:
        if self.as_json:
            print_json({"event": "moved", **step._asdict()}, indent=None)
            return
        console().print(
            f"[green]moved[/] {safe(step.topic)}/{step.partition} at offset "
            f"{_offset(step.target_offset)} ({done} of {total})"
        )


def _open(marshal: Marshal, closing: ExitStack) -> Marshal:
    marshal.start()
    # Whatever happens, nothing is given up by accident: the next bridge goes on with the claims.
    closing.callback(marshal.close, release=False)
    return marshal


def _topics_to_move(
    connection: Connection, source: Marshal, only: set[str] | None
) -> dict[str, int]:
    try:
        metadata = admin_client(connection.kafka).list_topics(timeout=connection.timeout_s).topics
    except KafkaException as error:
        raise no_answer(error) from None

    def count_of(topic: str) -> int:
        return len(metadata[topic].partitions) if topic in metadata else 0

    cells = _cells_to_move(source, only)
    if only is not None:
        cells = [cell for cell in cells if cell[0] in only]
        cells += [(name, 0) for name in only if count_of(name)]
    found = partitions_of(cells, count_of)
    missing = (only or set()) - set(found)
    if missing:
        raise ConfigurationError(f"--topics: there is no topic {sorted(missing)[0]!r}")
    if not found:
        raise ConfigurationError(
            f"group {source.group_id!r} has no partitions on {source.settings.topic!r}: check the "
            "name of the group, --text-topic and --new-topic; or name the topics with --topics"
        )
    return found


def _cells_to_move(source: Marshal, only: set[str] | None) -> list[tuple[str, int]]:
    """Return what the group claims as a whole: version 1 knows nothing else."""
    found = []
    with source.world() as world:
        for _, (_, topic, p), cell in world.cells(source.group_id):
            shared = agreement_of(topic)
            if shared is None:
                # What is left of slots, where a topic was shared by keys once, is nobody's.
                if source_of(topic, p) == (topic, p) and topic != f"leader:{LEADER}":
                    found.append((topic, p))
            elif cell.position > BY_PARTITIONS and (only is None or shared in only):
                how = "ranges" if in_words(cell.position) == "ranges" else "keys"
                raise ConfigurationError(
                    f"group {source.group_id!r} shares topic {shared!r} by {how}, and version 1 "
                    f"knows whole partitions alone: `marshal group slots {source.group_id} "
                    f"{shared} partitions` first"
                )
    return found


def _dry_run(run: _Run, closing: ExitStack) -> None:
    text, new = run.client(1, run.client_id), run.client(2, run.client_id)
    source, target = (new, text) if run.back else (text, new)
    _open(source, closing)
    moving = _topics_to_move(run.connection, source, run.only)
    opened: Marshal | None = target
    try:
        _open(target, closing)
    except TopicMissing:
        note(f"{target.settings.topic} does not exist yet; it would be made")
        opened = None
    is_new_there = run.back or opened is not None
    begun = [
        new.cell(migration_topic(topic, every=run.only is None), 0)
        for topic in ("", *moving)
        if is_new_there
    ]
    steps = [
        assess(
            (topic, p),
            Sides(
                source.cell(topic, p),
                None if opened is None else opened.cell(topic, p),
                new.cell(GRANT_PREFIX + topic, p) if is_new_there else None,
            ),
            run.client_id,
            back=run.back,
            resumed=any(cell is not None and cell.holder == run.client_id for cell in begun),
            skip_to_target=run.skip_to_target,
        )
        for topic, partitions in moving.items()
        for p in range(partitions)
    ]
    bad = [step for step in steps if step.state in BLOCKING]
    if run.as_json:
        print_json([step._asdict() for step in steps])
    else:
        _show(steps, bad)
    if bad:
        raise typer.Exit(FINDING)


def _show(steps: list[Step], bad: list[Step]) -> None:
    out = console()
    shown = table("TOPIC", "PARTITION", "STATE", "OLD HOLDER", "OFFSET", "NEW HOLDER", "OFFSET")
    for step in steps:
        shown.add_row(
            safe(step.topic),
            str(step.partition),
            f"[{_STYLES[step.state]}]{step.state.replace('_', ' ')}[/]",
            safe(step.source_holder or "-"),
            _offset(step.source_offset),
            safe(step.target_holder or "-"),
            _offset(step.target_offset),
        )
    show(out, shown)
    for step in bad:
        note(explain(step))
    ready = sum(step.state == "free" for step in steps)
    note(
        f"{count(len(steps), 'partition')}: {ready} would move at once, "
        f"{sum(step.state == 'held' for step in steps)} when their holders are stopped, "
        f"{sum(step.state == 'moved' for step in steps)} have moved, {len(bad)} cannot. "
        "Nothing was written"
    )


_STYLES = {
    "free": "green",
    "held": "yellow",
    "moved": "green",
    "in_use": "red",
    "target_ahead": "red",
}


def _offset(offset: int) -> str:
    return "-" if offset < 0 else str(offset)


def _what_is_left(bridge: Bridge) -> str:
    left = [step for step in bridge.plan() if step.state != "moved"]
    if not left:
        return "Everything has moved."
    return f"{count(len(left), 'partition')} left: {'; '.join(map(explain, left[:3]))}."


def _stop_on_signals(stop: threading.Event, closing: ExitStack) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        before = signal.signal(number, lambda *_: stop.set())
        closing.callback(signal.signal, number, before)
