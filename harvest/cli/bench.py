"""`harvest bench`: how fast an outbox is drained on your own servers."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from harvest.cli.options import ConfigFile, JsonFlag
from harvest.config.load import load
from harvest.runtime.benchmark import Work, check_reachable, drain_benchmark
from marshal_py.cli.output import print_json, say

__all__ = ["bench"]


class Mode(StrEnum):
    """`harvest.config.model.Mode`, as an option may have it more than once."""

    MARK = "mark"
    RANGE = "range"


def bench(
    config: ConfigFile,
    rows: Annotated[int, typer.Option(min=1, help="How many rows to drain.")] = 100_000,
    value_bytes: Annotated[int, typer.Option(min=0, help="Size of each value.")] = 256,
    keys: Annotated[int, typer.Option(min=1, help="How many keys.")] = 10_000,
    partitions: Annotated[int, typer.Option(min=1, help="Of the scratch topic.")] = 6,
    mode: Annotated[
        list[Mode] | None, typer.Option("--mode", help="Only this mode.", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Drain a backlog on your own database and Kafka, in each mode, and say how fast that was.

    Uses a table and topics with scratch names, and removes them. They take disk space, and the
    servers are busy meanwhile. The harvester runs in this process, with the file's clients and
    limits. The file's destinations and columns are left out: all rows go to a scratch topic.

    [dim]Example:[/dim] harvest bench --config reaper.yaml --rows 500000
    """
    settings = load(config)
    check_reachable(settings)
    work = Work(rows, value_bytes, keys, partitions)
    results = [drain_benchmark(settings, chosen.value, work) for chosen in mode or Mode]
    if as_json:
        print_json({"results": [asdict(result) for result in results]}, indent=None)
        return
    say(f"{rows} rows of {value_bytes} bytes, {keys} keys, {partitions} partitions")
    say(f"{'mode':<22}{'rows/s':>10}{'CPU s/100,000':>16}{'peak MB':>10}")
    for result in results:
        say(
            f"{result.mode:<22}{result.drain_rows_per_s:>10,.0f}{result.cpu_s_per_100k:>16.2f}"
            f"{result.peak_mb:>10.0f}"
        )
