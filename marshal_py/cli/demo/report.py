"""What the demo found: one table for people, one JSON object for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from marshal_py.cli.demo.audit import AuditResult
from marshal_py.cli.demo.compare import Comparison
from marshal_py.cli.demo.observers import CellName
from marshal_py.cli.demo.scenario import Fault, Scenario

__all__ = ["as_document", "as_table", "verdict"]


def sound(result: Comparison, scenario: Scenario) -> bool:
    """Whether nothing was lost, out of order or from a rolled-back transaction, and all went on."""
    return result.sound and all(fault.acted_s is not None for fault in scenario.faults)


def verdict(result: Comparison, scenario: Scenario, audit: AuditResult | None = None) -> str:
    """Return the outcome in a sentence."""
    if sound(result, scenario) and (audit is None or audit.clean):
        return (
            "Nothing was lost, nothing came out of order, nothing from a rolled-back transaction."
        )
    found = {
        "rows are missing": result.missing,
        "records are of no committed row": result.from_rolled_back,
        "records differ from the committed rows": result.altered,
        "rows are out of order": result.order_violations,
        "accounts do not match the ledger": result.business_mismatches,
        "faults were not followed by a takeover": sum(f.acted_s is None for f in scenario.faults),
        "anomalies are in the coordination log": sum(audit.anomalies.values()) if audit else 0,
        "findings of the reconciliation": sum(audit.findings.values()) if audit else 0,
    }
    return "FAILED: " + ", ".join(f"{count} {what}" for what, count in found.items() if count) + "."


def as_document(
    result: Comparison,
    scenario: Scenario,
    servers: str,
    took_s: float,
    audit: AuditResult | None = None,
) -> dict[str, Any]:
    """Return the report as one JSON object. Times in seconds; counts of rows unless named."""
    stats = scenario.stats
    return {
        "ok": sound(result, scenario) and (audit is None or audit.clean),
        "committed": result.committed,
        "rolled_back": stats.rolled_back_rows,
        "delivered": result.delivered,
        "missing": result.missing,
        "duplicates": result.duplicates,
        "order_violations": result.order_violations,
        "from_rolled_back": result.from_rolled_back,
        "takeovers_s": [_rounded(fault.acted_s) for fault in scenario.faults],
        "transactions": {
            "committed": stats.committed_transactions,
            "rolled_back": stats.rolled_back_transactions,
        },
        "comparison": asdict(result),
        "takeovers": [_takeover(scenario, fault) for fault in scenario.faults],
        "holds": _holds(scenario),
        "proof": None if audit is None else audit.as_document(),
        "interval_ms": scenario.config.interval_ms,
        "seed": scenario.config.seed,
        "servers": servers,
        "took_s": _rounded(took_s),
    }


def _takeover(scenario: Scenario, fault: Fault) -> dict[str, Any]:
    return {
        "fault": fault.kind,
        "process": fault.name,
        "at_s": _rounded((fault.at_ns - scenario.began_ns) / 1e9),
        "acted_s": _rounded(fault.acted_s),
        "claims": [
            {
                "claim": _cell_name(scenario, takeover.cell),
                "from_epoch": takeover.epoch_before,
                "to": takeover.after,
                "to_epoch": takeover.epoch_after,
                "claimed_s": _rounded(takeover.claimed_s),
                "acted_s": _rounded(takeover.acted_s),
            }
            for takeover in fault.takeovers
        ],
    }


def _holds(scenario: Scenario) -> list[dict[str, Any]]:
    began_ns = scenario.began_ns
    return [
        {
            "claim": _cell_name(scenario, cell),
            "holder": hold.holder,
            "epoch": hold.epoch,
            "from_s": _rounded((hold.from_ns - began_ns) / 1e9),
            "until_s": None
            if hold.until_ns is None
            else _rounded((hold.until_ns - began_ns) / 1e9),
            "end": hold.end,
        }
        for cell, holds in scenario.log.cells.items()
        for hold in holds
    ]


def as_table(result: Comparison, scenario: Scenario, audit: AuditResult | None = None) -> Table:
    """Return the report as one table."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    stats = scenario.stats
    _section(table, "DATABASE")
    table.add_row(
        "rows committed",
        f"{result.committed:,}",
        f"in {stats.committed_transactions:,} transactions",
    )
    table.add_row(
        "rows rolled back",
        f"{stats.rolled_back_rows:,}",
        f"in {stats.rolled_back_transactions:,} transactions",
    )
    _must_be_zero(table, "accounts unlike the ledger", result.business_mismatches)
    _section(table, "KAFKA")
    table.add_row("records", f"{result.records:,}", "as a read_committed consumer reads them")
    _must_be_zero(table, "missing", result.missing_in_kafka)
    _must_be_zero(table, "from rolled-back transactions", result.from_rolled_back)
    _must_be_zero(table, "altered", result.altered)
    _must_be_zero(table, "out of order in their key", result.order_violations_in_kafka)
    table.add_row(
        "duplicates",
        f"{result.duplicates:,}",
        f"{result.old_after_new:,} of them after a later row",
    )
    _section(table, "CONSUMERS")
    table.add_row("rows handled", f"{result.delivered:,}", f"in {result.deliveries:,} deliveries")
    _must_be_zero(table, "never handled", result.missing_at_consumers)
    _must_be_zero(table, "first handled out of order", result.order_violations_at_consumers)
    table.add_row(
        "delivered again", f"{result.redeliveries:,}", "at least once: what was not yet stored"
    )
    table.add_row(
        "under an old epoch",
        f"{result.under_old_epoch:,}",
        "by a woken process, before it looked at its lease",
    )
    _section(
        table,
        "TAKEOVERS",
        "s",
        f"at an interval of {scenario.config.interval_ms} ms; until the successor acted",
    )
    for fault in scenario.faults:
        took = "[bold red]none[/]" if fault.acted_s is None else f"{fault.acted_s:.2f}"
        table.add_row(f"{fault.name} {fault.kind}", took, _successors(scenario, fault))
    _section(table, "WHO HELD WHAT", "", "s after the first write; † until somebody took over")
    for cell, holds in scenario.log.cells.items():
        if holds:
            table.add_row(_cell_name(scenario, cell), "", _timeline(scenario, cell))
    if audit is not None:
        _add_audit(table, audit)
    return table


def _add_audit(table: Table, audit: AuditResult) -> None:
    _section(table, "AUDIT", "", "of the coordination log, on Spark")
    claims = f"with {audit.claims:,} claims and {audit.takeovers:,} takeovers"
    table.add_row("records", f"{audit.records:,}", claims)
    _must_be_zero(table, "anomalies", sum(audit.anomalies.values()), _counts(audit.anomalies))
    _section(table, "RECONCILIATION", "", "of the outbox with Kafka, on Spark")
    table.add_row("rows", f"{audit.rows:,}", f"and {audit.published:,} records")
    _must_be_zero(table, "findings", sum(audit.findings.values()), _counts(audit.findings))


def _counts(kinds: dict[str, int]) -> str:
    return ", ".join(f"{kind}: {count:,}" for kind, count in kinds.items())


def _section(table: Table, title: str, unit: str = "", text: str = "") -> None:
    table.add_row("")
    table.add_row(f"[bold]{title}[/]", f"[dim]{unit}[/]", f"[dim]{text}[/]")


def _must_be_zero(table: Table, what: str, count: int, text: str = "") -> None:
    table.add_row(what, f"[bold red]{count:,}[/]" if count else "[green]0[/]", text)


def _successors(scenario: Scenario, fault: Fault) -> str:
    parts = []
    for takeover in fault.takeovers:
        claimed = (
            "" if takeover.claimed_s is None else f", claimed after {takeover.claimed_s:.2f} s"
        )
        parts.append(
            f"{_cell_name(scenario, takeover.cell)} → {takeover.after or 'nobody'}{claimed}"
        )
    return "; ".join(parts)


def _timeline(scenario: Scenario, cell: CellName) -> str:
    parts = []
    for hold in scenario.log.cells[cell]:
        start = max(0.0, (hold.from_ns - scenario.began_ns) / 1e9)
        end = "" if hold.until_ns is None else f"{(hold.until_ns - scenario.began_ns) / 1e9:.1f}"
        parts.append(f"{hold.holder} {start:.1f}–{end}{'†' if hold.end == 'taken over' else ''}")
    return "  ".join(parts)


def _cell_name(scenario: Scenario, cell: CellName) -> str:
    return "leadership" if cell == scenario.log.leader_cell else f"partition {cell[1]}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
