"""specs/AUDIT.md describes the tables and the findings as they are."""

from __future__ import annotations

from harvest.spark.reconcile import KINDS
from marshal_py.protocol.history.anomalies import MEANING
from marshal_py.spark.audit_tables import TABLES
from marshal_py.spark.lake.tables import FOLDED, LAKE_TABLES
from tests.support.paths import SPECS

TEXT = (SPECS / "AUDIT.md").read_text()
TYPES = {"text": "string", "int": "int64", "time": "timestamp (ms, UTC)"}


def test_every_column_is_described() -> None:
    for table, columns in TABLES.items():
        section = TEXT.split(f"### {table}\n")[1].split("\n#")[0]
        lines = [line for line in section.splitlines() if line.startswith("| `")]
        assert lines == [f"| `{c.name}` | {TYPES[c.kind]} | {c.about} |" for c in columns]


def test_every_column_of_the_lake_is_described() -> None:
    lake = TEXT.split("\n## 7. The lake\n")[1]
    for table, columns in LAKE_TABLES.items():
        if table.removeprefix("silver.") in FOLDED:
            assert f"`{table}`" in lake
            continue
        section = lake.split(f"### {table}\n")[1].split("\n#")[0]
        lines = [line for line in section.splitlines() if line.startswith("| `")]
        assert lines == [f"| `{c.name}` | {c.kind} | {c.about} |" for c in columns]


def test_every_finding_is_described() -> None:
    for kind, meaning in (MEANING | KINDS).items():
        assert f"| `{kind}` | {meaning} |" in TEXT
