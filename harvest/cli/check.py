"""`harvest check`: what would keep a harvester from its work."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import typer

from harvest.cli.options import DatabaseOption, JsonFlag, OptionalConfigFile, TableOption
from harvest.cli.outbox import open_outbox
from harvest.runtime.kafka_check import check_kafka
from harvest.runtime.registration import check_database
from marshal_py.cli.output import print_json, say

__all__ = ["check"]


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
    outbox = open_outbox(config, database, table)
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
        wrong = any(finding.level == "error" for finding in findings)
    if as_json:
        report: dict[str, Any] = {
            "table": outbox.name,
            "ok": not wrong,
            "findings": [
                {"subject": f.subject, "level": f.level, "text": f.text} for f in findings
            ],
        }
        if backlog is not None:
            report["backlog_rows"] = backlog.rows
            report["oldest_age_s"] = backlog.oldest_age_s
        print_json(report, indent=None)
    else:
        for finding in findings:
            say(f"{finding.level:<8}{finding.subject:<11}{finding.text}")
        if backlog is not None:
            age = "" if backlog.oldest_age_s is None else f", oldest {backlog.oldest_age_s:.1f} s"
            say(f"{'ok':<8}{'backlog':<11}{backlog.rows} rows{age}")
    if wrong:
        raise typer.Exit(1)
