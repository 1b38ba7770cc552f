"""`marshal topic create` and `marshal topic trim`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from marshal_py.admin.connection import Connection
from marshal_py.cli.command import command, new_app
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.options import JsonFlag
from marshal_py.cli.output import console, print_json, show, table
from marshal_py.cli.trim import trim
from marshal_py.client.topics import (
    DEFAULT_PARTITIONS,
    TopicPlan,
    admin_client,
    create_topics,
    plan_topics,
)

__all__ = ["app", "compare"]

app = new_app(help="Create and trim the coordination topic and its snapshot topic.")
app.command()(trim)

WHY = {
    "replication_factor": "one replica on each of up to three brokers",
    "min.insync.replicas": "so many brokers have a record before it counts",
    "unclean.leader.election.enable": "a broker that lags must not roll the log back",
    "cleanup.policy": "",
    "retention.ms": "records go when `marshal topic trim` says so, not by age",
    "retention.bytes": "records go when `marshal topic trim` says so, not by size",
    "message.timestamp.type": "one clock stamps all records: needed for a fast cold start",
    "segment.ms": "old snapshots are compacted away within the hour",
    "max.message.bytes": "a snapshot is one record",
}
"""Why a setting has its value, in a few words."""


@dataclass
class Difference:
    """A setting of a topic that exists and is not what we would choose."""

    setting: str
    found: str | None
    sound: str
    why: str


@dataclass
class Result:
    """What `create` made or found."""

    topic: str
    created: bool
    partitions: int
    replication_factor: int
    config: dict[str, str]
    differences: list[Difference] = field(default_factory=list)


@app.command()
@command()
def create(
    connection: Connection,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            metavar="N",
            help=f"Coordination partitions, fixed for the life of the topic: {DEFAULT_PARTITIONS}.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            min=1,
            metavar="R",
            help="Replicas: 3, or as many as there are brokers.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create the coordination topic and its snapshot topic; say what was chosen, and why.

    A topic that exists is left alone; settings that are not sound are shown, and the exit code is 1
    then.

    [bold]Examples[/]

      marshal topic create -b localhost:9092

      marshal topic create --topic __marshal.test --partitions 4 --replication-factor 1
    """
    made = create_topics(
        connection.kafka,
        timeout_s=connection.timeout_s,
        topic=connection.topic,
        snapshot_topic=connection.snapshot_topic,
        partitions=DEFAULT_PARTITIONS if partitions is None else partitions,
        replication_factor=replication_factor,
    )
    admin = admin_client(connection.kafka)
    brokers = len(admin.list_topics(timeout=connection.timeout_s).brokers)
    sound = plan_topics(
        brokers,
        topic=connection.topic,
        snapshot_topic=connection.snapshot_topic,
        partitions=made[0].partitions if partitions is None else partitions,
        replication_factor=replication_factor,
    )
    results = [
        _result(admin, plan, want, connection.timeout_s)
        for plan, want in zip(made, sound, strict=True)
    ]
    if as_json:
        print_json([asdict(result) for result in results])
    else:
        for result in results:
            _print(result, brokers)
    if any(result.differences for result in results):
        raise typer.Exit(FINDING)


def _result(admin: AdminClient, plan: TopicPlan, sound: TopicPlan, timeout_s: float) -> Result:
    if not plan.existed:
        return Result(plan.name, True, plan.partitions, plan.replication_factor, plan.config)
    config = _config(admin, plan.name, timeout_s)
    return Result(
        plan.name,
        False,
        plan.partitions,
        plan.replication_factor,
        {name: config[name] for name in sound.config if name in config},
        compare(plan, config, sound),
    )


def compare(found: TopicPlan, config: dict[str, str], sound: TopicPlan) -> list[Difference]:
    """Return in what a topic that exists differs from the sound choice."""
    differences = []
    if found.partitions != sound.partitions:
        why = "it cannot be changed while the topic is in use"
        if found.name.endswith(".snapshots"):
            why = "the coordination topic has so many"
        differences.append(
            Difference("partitions", str(found.partitions), str(sound.partitions), why)
        )
    if found.replication_factor < sound.replication_factor:
        differences.append(
            Difference(
                "replication_factor",
                str(found.replication_factor),
                str(sound.replication_factor),
                WHY["replication_factor"],
            )
        )
    for name, value in sound.config.items():
        have = config.get(name)
        if have == value or (name in _AT_LEAST and have is not None and int(have) >= int(value)):
            continue
        if name == "segment.ms":
            continue  # a matter of taste: compaction is only later
        differences.append(Difference(name, have, value, WHY.get(name, "")))
    return differences


_AT_LEAST = ("min.insync.replicas", "max.message.bytes")


def _config(admin: AdminClient, topic: str, timeout_s: float) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries: dict[str, Any] = admin.describe_configs([resource], request_timeout=timeout_s)[
        resource
    ].result()
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def _print(result: Result, brokers: int) -> None:
    out = console()
    if result.created:
        out.print(f"[bold green]created[/] [bold]{result.topic}[/]")
        made = table("", "", "")
        made.show_header = False
        made.add_row("  partitions", str(result.partitions), "fixed for the life of the topic")
        made.add_row(
            "  replication factor",
            str(result.replication_factor),
            f"{brokers} broker{'s' if brokers != 1 else ''} in the cluster"
            + (": a single disk holds the log" if result.replication_factor == 1 else ""),
        )
        for name, value in result.config.items():
            made.add_row(f"  {name}", value, WHY.get(name, ""))
        show(out, made)
        return
    out.print(
        f"[bold]{result.topic}[/] exists: {result.partitions} partitions, replication factor "
        f"{result.replication_factor}; left as it is"
    )
    if not result.differences:
        out.print("  its settings are sound")
        return
    made = table("  DIFFERS IN", "IS", "SOUND", "WHY")
    for d in result.differences:
        made.add_row(f"  {d.setting}", str(d.found), d.sound, d.why)
    show(out, made)
