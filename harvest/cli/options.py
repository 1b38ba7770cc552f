"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "ConfigFile",
    "DatabaseOption",
    "DryRunCount",
    "JsonFlag",
    "OptionalConfigFile",
    "RangeConfigFile",
    "SparkMaster",
    "TableOption",
]

_CONFIG_FLAGS = ("--config", "-c", "-f")

ConfigFile = Annotated[
    Path, typer.Option(*_CONFIG_FLAGS, help="reaper.yaml, ours or goharvest's.", exists=True)
]
RangeConfigFile = Annotated[Path, typer.Option(*_CONFIG_FLAGS, help="reaper.yaml.", exists=True)]
"""Of range mode, which goharvest does not have."""
OptionalConfigFile = Annotated[
    Path | None,
    typer.Option(*_CONFIG_FLAGS, help="reaper.yaml, ours or goharvest's.", show_default=False),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        "-d",
        help="Not a configuration but postgresql://…, key=value, sqlite:///path or mysql://…",
        show_default=False,
    ),
]
TableOption = Annotated[
    str | None, typer.Option("--table", "-t", help="The outbox table. [dim]default: outbox[/dim]")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DryRunCount = Annotated[bool, typer.Option("--dry-run", help="Only say how many.")]
SparkMaster = Annotated[str | None, typer.Option(metavar="URL", help="Spark's master.")]
