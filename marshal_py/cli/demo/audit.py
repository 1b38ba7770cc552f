"""The end of the demo: the audit and the reconciliation run over what has just happened."""

from __future__ import annotations

import importlib.util
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from marshal_py.cli.demo.config import DemoConfig

__all__ = ["AuditResult", "audit_and_reconcile", "can_audit"]

_SLOWNESS: Final = {"late_heartbeat", "clock_drift"}


@dataclass(frozen=True)
class AuditResult:
    """What the two pipelines found. `folder` stays after the demo and holds their reports."""

    folder: str
    records: int
    """Records of the coordination log."""
    claims: int
    takeovers: int
    anomalies: dict[str, int]
    rows: int
    """Committed outbox rows."""
    published: int
    """Committed records of the topic."""
    findings: dict[str, int]
    reports: dict[str, str]

    @property
    def clean(self) -> bool:
        """Whether no rule was broken, and each row is in Kafka once, unaltered and in order.

        A machine with too much to do sends heartbeats late: that is shown, and is no failure.
        """
        return not (self.anomalies.keys() - _SLOWNESS or self.findings)

    def as_document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "clean": self.clean}


def can_audit() -> bool:
    """Whether the extra `spark` is installed."""
    return importlib.util.find_spec("pyspark") is not None


def audit_and_reconcile(config: DemoConfig) -> AuditResult:
    """Audit the coordination log, and compare the outbox's archive with the topic.

    Raises what the pipelines raise.
    """
    from harvest.spark.reconcile import Outbox, reconcile
    from harvest.spark.report import render
    from marshal_py.spark.audit import audit
    from marshal_py.spark.audit_report import summary, write_report
    from marshal_py.spark.audit_store import Store
    from marshal_py.spark.session import spark_session

    folder = Path(tempfile.mkdtemp(prefix="marshal-demo-report-"))
    spark = spark_session("marshal demo")
    try:
        out = str(folder / "audit")
        run = audit(spark, config.kafka, out, topic=config.coordination_topic)
        store = Store(out)
        found = summary(store)
        pages = {"audit": write_report(store, "report.html")}
        compared = reconcile(
            spark, Outbox(dsn=config.dsn, table=config.archive), config.kafka, topics=[config.topic]
        )
        page = folder / "reconciliation.html"
        page.write_text(render(compared), "utf-8")
        pages["reconciliation"] = str(page)
    finally:
        spark.stop()
    return AuditResult(
        str(folder),
        run.records,
        found["rows"].get("claims", 0),
        found["rows"].get("takeovers", 0),
        dict(found["anomalies"]),
        compared.rows,
        compared.records,
        dict(compared.findings),
        pages,
    )
