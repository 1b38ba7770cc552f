"""Options that several commands have."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from marshal_py.admin.formatting import parse_moment
from marshal_py.errors import InvalidArgument
from marshal_py.protocol.wire import WireName

__all__ = [
    "LONGEST_D",
    "LONGEST_H",
    "LONGEST_S",
    "AtMoment",
    "BootstrapServers",
    "ConfigFile",
    "GroupFilter",
    "Interval",
    "JsonFlag",
    "Observe",
    "Settings",
    "Timeout",
    "TopicFilter",
    "Verbose",
    "WireFlag",
    "coordination_topic_option",
    "moment",
]

LONGEST_S: Final = 31_536_000
"""A year: no duration that an option is given in seconds is longer."""

LONGEST_H: Final = 87_600
LONGEST_D: Final = 3_650
"""Ten years, where hours or days are given: what is longer would begin before there are dates."""

_PANEL: Final = "Connection"

BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,…",
        help="The Kafka brokers; or $MARSHAL_BOOTSTRAP_SERVERS.",
        rich_help_panel=_PANEL,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar="KEY=VALUE",
        help="A librdkafka setting, such as -X security.protocol=SSL; may be repeated.",
        rich_help_panel=_PANEL,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="librdkafka settings in a .properties or .yaml file; or $MARSHAL_CONFIG.",
        rich_help_panel=_PANEL,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="How long to wait for the brokers: 10.",
        rich_help_panel=_PANEL,
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say more, on standard error.", show_default=False)
]
JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of text.", show_default=False)
]
Observe = Annotated[
    float,
    typer.Option(
        "--observe",
        min=0.0,
        max=LONGEST_S,
        metavar="SECONDS",
        help="Watch the log for so long, and judge silence by what was seen.",
    ),
]
AtMoment = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="As it was then: 02:13, 2026-11-21T02:13:00Z, or so long ago (90s, 2h).",
    ),
]
GroupFilter = Annotated[
    str | None, typer.Option("--group", "-g", metavar="GROUP", help="Of this group only.")
]
TopicFilter = Annotated[
    str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Of this topic only.")
]
WireFlag = Annotated[
    WireName,
    typer.Option(
        "--wire", help="The records' version: msgpack, or text for a log shared with Go Marshal."
    ),
]
Interval = Annotated[
    int,
    typer.Option(
        "--interval",
        min=1,
        metavar="SECONDS",
        help="With --wire text: the heartbeat interval that all its clients have.",
    ),
]


def moment(text: str | None) -> int | None:
    """Return what `--at` was given, in ms since 1970; not later than now.

    Raises `InvalidArgument`.
    """
    if text is None:
        return None
    now_ms = time.time_ns() // 1_000_000
    found_ms = parse_moment(text, now_ms)
    if found_ms > now_ms:
        raise InvalidArgument(f"--at {text!r} lies in the future")
    return found_ms


def coordination_topic_option(*names: str) -> Any:
    """Return the option for the coordination topic under these names."""
    return Annotated[
        str | None,
        typer.Option(
            *names,
            metavar="NAME",
            help="The coordination topic: __marshal, or $MARSHAL_TOPIC.",
            rich_help_panel=_PANEL,
        ),
    ]
