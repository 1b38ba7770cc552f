"""Real processes failed: what they showed raises the alerts of each failure, and no other.

The series are what `python -m tests.alerts` has scraped. Everything breaks at 50 s; what is asked
at four minutes is three after that.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from marshal_py.cli.metrics import telemetry_file
from tests.alerts.__main__ import SERIES
from tests.alerts.scraping import watched

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")

Firing = dict[str, set[str]]
"""The alerts that fire, by group; "" those of no group."""

NOTHING: Final[Firing] = {}
KAFKA: Final[Firing] = {"": {"MarshalKafkaUnreachable"}}

GROUPS: Final[Firing] = {
    "stuck": {"MarshalHandlersStuck"},
    "letters": {"MarshalDeadLetters"},
    "gone": {"MarshalGroupGone"},
    "one-gone": {"MarshalMemberLost"},
    "all-gone": {"HarvestNobodyLeads"},
    "one-shard": {"HarvestRowsWait"},
    "two-outboxes": {"HarvestNobodyLeads"},
    "pinned": {"HarvestSlotKeepsLog"},
}

EXPECTED: Final[dict[str, dict[float, Firing]]] = {
    # The lag is 300 s old only five minutes after it began.
    "groups": {0.75: NOTHING, 4: GROUPS, 8.5: GROUPS | {"lagging": {"MarshalLagHigh"}}},
    "broker-paused": {0.75: NOTHING, 4: KAFKA, 7: KAFKA, 10.5: KAFKA, 12: NOTHING, 13: NOTHING},
    "broker-down": {0.75: NOTHING, 4: KAFKA},
    "partition-offline": {0.75: NOTHING, 4: {"": {"MarshalPartitionOffline"}}},
    "broker-slow": {0.75: NOTHING, 4: {"": {"MarshalKafkaSlow"}}},
    "exporter-gone": {0.75: NOTHING, 4: {"": {"MarshalExporterDown"}}},
    "topic-remade": {0.75: NOTHING, 4: {"": {"MarshalTopicRemade"}}},
    "clock-skewed": {0.75: NOTHING, 4: {"": {"MarshalClockSkew"}}},
    "message-kills": {0.75: NOTHING, 4: {"thumbnails": {"MarshalMessageComesAgain"}}},
    "topic-hidden": {0.75: NOTHING, 4: {"": {"MarshalTopicHidden"}}},
    "right-removed": {0.75: NOTHING, 4: {"mail": {"MarshalClientStopped"}}},
}


def asked(minutes: float, firing: Firing) -> dict[str, Any]:
    return {
        "expr": 'group by (alertname, group_id) (ALERTS{alertstate="firing"})',
        "eval_time": f"{int(minutes * 60)}s",
        "exp_samples": [
            {"labels": labels(name, group), "value": 1}
            for group, names in sorted(firing.items())
            for name in sorted(names)
        ],
    }


def labels(name: str, group: str) -> str:
    return f'{{alertname="{name}"' + (f',group_id="{group}"}}' if group else "}")


def promtool(folder: Path, recording: str, expected: dict[float, Firing]) -> str:
    """Apply the rules to what was recorded; return what is otherwise than expected."""
    (folder / "alerts.yaml").write_text(telemetry_file("alerts.yaml"))
    test = {
        "interval": "15s",
        "input_series": yaml.safe_load((SERIES / f"{recording}.yaml").read_text()),
        "promql_expr_test": [asked(at, firing) for at, firing in expected.items()],
    }
    document = {"rule_files": ["alerts.yaml"], "evaluation_interval": "15s", "tests": [test]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    done = subprocess.run(
        ["promtool", "test", "rules", folder / "tests.yaml"], capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("recording", EXPECTED)
def test_each_failure_raises_its_alert_and_no_other(tmp_path: Path, recording: str) -> None:
    assert promtool(tmp_path, recording, EXPECTED[recording]) == ""


def test_the_check_can_fail(tmp_path: Path) -> None:
    found = promtool(tmp_path, "exporter-gone", {4: {"": {"MarshalClockSkew"}}})
    assert "MarshalExporterDown" in found


def test_what_the_rules_look_at_was_recorded() -> None:
    """A rule that was written later may ask for what no recording has."""
    recorded = {
        each["series"].partition("{")[0]
        for path in SERIES.glob("*.yaml")
        for each in yaml.safe_load(path.read_text())
    }
    assert watched() - recorded == set()
