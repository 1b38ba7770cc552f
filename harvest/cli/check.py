"""`harvest check`: what would keep a harvester from its work."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

import typer

from harvest.cli.options import DatabaseOption, JsonFlag, OptionalConfigFile, TableOption
from harvest.cli.outbox import Outbox, open_outbox
from harvest.config.model import ReaperConfig
from harvest.core.interfaces.mark_store import Finding
from harvest.core.wal_position import WalPosition, format_lsn
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.errors import HarvestError
from harvest.runtime.checkpoints import Checkpoints
from harvest.runtime.kafka_check import check_kafka
from harvest.runtime.registration import check_database
from marshal_py.cli.output import print_json, say

__all__ = ["check", "report"]

_FIRST_ROWS: Final = 5
_SHOWN_BYTES: Final = 100


def check(
    config: OptionalConfigFile = None,
    database: DatabaseOption = None,
    table: TableOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Look at the database, the table, its privileges, and with --config at Kafka and its topics.

    Says what to do about what is wrong, and then exits with 1. It changes nothing.

    [dim]Example:[/dim] harvest check --config reaper.yaml
    """
    if not report(open_outbox(config, database, table), as_json=as_json):
        raise typer.Exit(1)


def report(outbox: Outbox, *, as_json: bool = False, preview: bool = False) -> bool:
    """Say what `check` says; whether nothing is wrong. `preview`: also where it would go on."""
    store = outbox.store()
    findings = store.check()
    ids = outbox.ids_in_primary()
    if ids is not None:
        with closing(ids):
            findings += ids.check()
    wrong = any(finding.level == "error" for finding in findings)
    backlog = None if wrong else store.backlog()
    if not wrong:
        findings += store.check_around()
    settings = outbox.config
    if settings is not None:
        # With destinations, the topic column names no topics of Kafka.
        # In wal mode, rows are not in the table for long; what is there tells.
        topics = [] if wrong or settings.destinations else store.topics()
        kafka = check_kafka(settings, topics)
        findings += kafka
        if not wrong and kafka[0].level == "ok":
            findings += check_database(settings)
            findings += _preview(settings, store) if preview else []
        wrong = any(finding.level == "error" for finding in findings)
    if as_json:
        said: dict[str, Any] = {
            "table": outbox.name,
            "ok": not wrong,
            "findings": [
                {"subject": f.subject, "level": f.level, "text": f.text} for f in findings
            ],
        }
        if backlog is not None:
            said["backlog_rows"] = backlog.rows
            said["backlog_estimated"] = backlog.estimated
            said["oldest_age_s"] = backlog.oldest_age_s
        print_json(said, indent=None)
    else:
        for finding in findings:
            say(f"{finding.level:<8}{finding.subject:<11}{finding.text}")
        if backlog is not None:
            age = "" if backlog.oldest_age_s is None else f", oldest {backlog.oldest_age_s:.1f} s"
            about = "about " if backlog.estimated else ""
            say(f"{'ok':<8}{'backlog':<11}{about}{backlog.rows} rows{age}")
    return not wrong


def _preview(config: ReaperConfig, store: Any) -> list[Finding]:
    """Where a harvester would go on, and the first rows that it would publish. Writes nothing."""
    checkpoints, findings, after = Checkpoints(config), [], -(1 << 63)
    try:
        if config.mode == "range":
            positions = [checkpoints.read(shard) for shard in range(config.shards)]
            for shard, position in enumerate(positions):
                where = "the first row" if position is None else f"after id {position.last_id}"
                gaps = "" if position is None else f", {len(position.gaps)} gaps open"
                findings.append(Finding("position", "ok", f"shard {shard}: {where}{gaps}"))
            after = min([after if p is None else p.last_id for p in positions])
        elif config.mode == "wal":
            found = checkpoints.wal()
            text = "the beginning of the slot" if found is None else _place(found, store)
            return [Finding("position", "ok", text)]
        else:
            text = "the first row: what is published is deleted"
            findings.append(Finding("position", "ok", text))
        rows = store.first_rows(after, _FIRST_ROWS)
    except HarvestError as error:
        return [*findings, Finding("position", "error", str(error))]
    for row_id, topic, key in rows:
        shown = "NULL" if key is None else repr(key[:_SHOWN_BYTES].decode(errors="replace"))
        text = f"id {row_id}: topic {topic[:_SHOWN_BYTES]!r}, key {shown}"
        findings.append(Finding("row", "ok", text))
    return findings


def _place(found: WalPosition, source: PostgresWalSource) -> str:
    behind = max(0, source.slot.log_end() - found.lsn)
    part = f", {found.part_rows} rows into a transaction" if found.part_rows else ""
    return f"{format_lsn(found.lsn)}{part}, {behind} bytes before the end of the log"
