"""`harvest replay`: publish rows again that were published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harvest.cli.options import JsonFlag, RangeConfigFile
from harvest.config.load import load
from harvest.errors import ConfigurationError
from harvest.runtime.replay import Replay, Replayed
from harvest.runtime.replay import replay as publish_again
from marshal_py.cli.output import print_json, say

__all__ = ["replay"]


def replay(
    config: RangeConfigFile,
    low: Annotated[int, typer.Option("--from", help="The first id.")],
    high: Annotated[int, typer.Option("--to", help="The last id.")],
    topic: Annotated[str, typer.Option(help="Rows of this topic.")],
    into: Annotated[
        str | None, typer.Option(help="Publish them into this one.", show_default="--topic")
    ] = None,
    archive: Annotated[
        str | None, typer.Option(help="The archive's folder.", show_default="as configured")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the rows.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Publish rows again that were published, from the archive and the table (range mode).

    In the order of their ids, in transactions, with the header harvest.replay: the id of the row.
    What is committed is told on standard error, so that it can be taken up from there. Exit code 1:
    there are no such rows.

    [dim]Example:[/dim] harvest replay --config reaper.yaml --from 1 --to 5000 --topic orders
    """
    settings = load(config)
    if archive is not None:
        if not Path(archive).is_dir():
            raise ConfigurationError(f"--archive {archive!r} is no folder")
        partitions = settings.partitions.model_copy(update={"archive": archive})
        settings = settings.model_copy(update={"partitions": partitions})

    def progress(done: Replayed) -> None:
        say(f"{done.rows} rows are published again, up to id {done.last_id}", stderr=True)

    wanted = Replay(low, high, topic, into or topic)
    done = publish_again(settings, wanted, dry_run=dry_run, progress=progress)
    if as_json:
        report = {
            "dry_run": dry_run,
            "topic": wanted.topic,
            "into": wanted.into,
            "rows": done.rows,
            "payload_bytes": done.payload_bytes,
            "first_id": done.first_id,
            "last_id": done.last_id,
        }
        print_json(report, indent=None)
    elif not done.rows:
        say(f"no rows of {topic} have ids from {low} to {high}")
    else:
        what = "to be published again" if dry_run else "published again"
        say(
            f"{done.rows} rows {what}, ids {done.first_id} to {done.last_id}, "
            f"{done.payload_bytes} bytes, into {wanted.into}"
        )
    raise typer.Exit(0 if done.rows else 1)
