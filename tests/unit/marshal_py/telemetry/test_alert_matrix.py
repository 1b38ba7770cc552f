"""Each failure raises its alert within 3 minutes, and no other.

The series are those that the exporter (`marshal metrics serve`), clients and harvesters show in
each case; promtool applies the rules to them. Each case begins well, and breaks after a minute.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from marshal_py.cli.metrics import telemetry_file
from tests.unit.marshal_py.telemetry.test_grafana_and_alerts import exported

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")

STEP_S: Final = 15
WELL: Final = 4
"""Samples before it breaks."""
LENGTH: Final = 200
GONE: Final = "stale"

Series = dict[str, float]
Case = dict[str, float | str]


def well() -> Series:
    """Two groups of consumers, a group of two harvesters with three outboxes, and the exporter."""
    found: Series = {
        "marshal_exporter_kafka_reachable{}": 1,
        "marshal_exporter_newest_record_age_seconds{}": 2,
        "marshal_exporter_clock_behind_seconds{}": 0,
        "marshal_exporter_kafka_answer_seconds{}": 0.01,
        "marshal_coordination_records_total{}": 900,
        "marshal_coordination_restarts_total{}": 0,
        "marshal_coordination_snapshot_mismatches_total{}": 0,
    }
    for group, members in (("billing", 3.0), ("mail", 2.0), ("shop", 2.0)):
        for name, value in (
            ("members", members), ("members_live", members), ("members_lost", 0),
            ("claims_held", 2), ("claims_stale", 0), ("claims_free", 0), ("paused", 0),
        ):  # fmt: skip
            found[f'marshal_group_{name}{{group_id="{group}"}}'] = value
    for group in ("billing", "mail"):
        for p in range(2):
            where = f'{{group_id="{group}",topic="orders",partition="{p}"}}'
            for name, value in (
                ("lag_messages", 5), ("lag_seconds", 1), ("stalled_seconds", 0),
                ("partition_held", 1), ("partition_stopped", 0), ("partition_offline", 0),
            ):  # fmt: skip
                found[f"marshal_group_{name}{where}"] = value
        for client in ("a", "b"):
            who = f'{{group_id="{group}",client_id="{group}-{client}"}}'
            found |= {f"marshal_up{who}": 1, f"marshal_consumer_stuck{who}": 0}
            found |= {
                f"marshal_snapshot_mismatches_total{who}": 0,
                f"marshal_consumer_dead_lettered_total{who}": 0,
            }
    for leadership, shard in (("outbox", 0), ("audit", 0), ("big", 0), ("big", 1)):
        where = f'{{group_id="shop",leadership="harvest:{leadership}",shard="{shard}"}}'
        found[f"marshal_group_leader_held{where}"] = 1
    for instance in ("h1", "h2"):
        for outbox in ("outbox", "audit", "big"):
            where = f'{{group_id="shop",outbox="{outbox}",instance="{instance}"}}'
            for name, value in (
                ("up", 1), ("leading", instance == "h1"), ("kafka_reachable", 1),
                ("database_reachable", 1), ("refused", 0), ("paused", 0),
                ("oldest_row_age_seconds", 0.5), ("dead_letters_waiting", 0), ("slot_lost", 0),
                ("slot_pinned_wal_bytes", 1_000_000),
            ):  # fmt: skip
                found[f"harvest_{name}{where}"] = float(value)
    return found


WELL_SERIES: Final = well()


def of(pattern: str, value: float | str) -> Case:
    """All series of this pattern, from when it breaks: a value, or what promtool expands."""
    found: Case = {name: value for name in WELL_SERIES if re.search(pattern, name)}
    assert found, pattern
    return found


def group(name: str, **values: float | str) -> Case:
    return {f'marshal_group_{key}{{group_id="{name}"}}': value for key, value in values.items()}


GROUPS_UNKNOWN = of("^marshal_group_", GONE)
OUTAGE: Case = {
    **GROUPS_UNKNOWN,
    **of("exporter_kafka_reachable", 0),
    **of("exporter_kafka_answer", GONE),
    **of("newest_record_age", "17+15x200"),
    **of("harvest_(leading|kafka_reachable|up)", 0),
    **of("harvest_oldest_row_age", "15+15x200"),
}
FAILING = (
    'marshal_consumer_failing_offset{group_id="billing",client_id="billing-a",'
    'topic="orders",partition="1"}'
)

MATRIX: Final[dict[str, tuple[Case, set[str]]]] = {
    "nothing": ({}, set()),
    "a standby harvester is killed": (
        {**of('instance="h2"', GONE), **group("shop", members_live=1, members_lost=1)},
        {"MarshalMemberLost"},
    ),
    "the leading harvester is killed": (
        {
            **of('instance="h1"', GONE),
            **of('harvest_leading.*"h2"', 1),
            **group("shop", members_live=1, members_lost=1),
        },
        {"MarshalMemberLost"},
    ),
    "all harvesters are killed": (
        {
            **of("^harvest_", GONE),
            **of("leader_held", 0),
            **group("shop", members_live=0, members_lost=2),
        },
        {"HarvestNobodyLeads"},
    ),
    "all harvesters were stopped": (
        {
            **of("^harvest_", GONE),
            **of("leader_held", 0),
            **group("shop", members=0, members_live=0),
        },
        {"HarvestNobodyLeads"},
    ),
    "one shard has no leader": (of('leader_held.*big",shard="1"', 0), {"HarvestNobodyLeads"}),
    "one of the outboxes has no leader": (
        {**of('leader_held.*audit"', 0), **of('harvest_leading.*audit"', 0)},
        {"HarvestNobodyLeads"},
    ),
    "no leader, and no exporter is run": (
        {**of('harvest_leading.*audit"', 0), **of("^marshal_(group|coord|exporter)", GONE)},
        {"HarvestNobodyLeads", "MarshalExporterDown"},
    ),
    "the broker is paused or down": (OUTAGE, {"MarshalKafkaUnreachable"}),
    "the broker is slow": (
        of("exporter_kafka_answer", 3),
        {"MarshalKafkaSlow"},
    ),
    "rows wait": (
        of('harvest_oldest_row_age.*outbox="outbox"', "70+5x200"),
        {"HarvestRowsWait"},
    ),
    "a right of a client was taken away": (
        of('marshal_up.*billing-a"', 0),
        {"MarshalClientStopped"},
    ),
    "a right of a harvester was taken away": (
        of('harvest_up.*outbox="outbox".*h2', 0),
        {"HarvestUnhealthy"},
    ),
    "a handler is stuck": (
        {
            **of('stuck.*billing-a"', 1),
            **of('stalled.*billing.*"1"', "15+15x200"),
            **of('lag_seconds.*billing.*"1"', "15+15x200"),
            FAILING: 17,
        },
        {"MarshalHandlersStuck"},
    ),
    "a message fails again and again": (
        {**of('stalled.*billing.*"1"', "15+15x200"), FAILING: 17},
        {"MarshalMessageFails"},
    ),
    "a holder lives and does nothing": (
        of('stalled.*billing.*"1"', "15+15x200"),
        {"MarshalPositionStalled"},
    ),
    "dead letters come in": (of('dead_lettered.*billing-a"', "1+1x200"), {"MarshalDeadLetters"}),
    "a message kills who handles it": (
        {
            **of('stalled.*billing.*"1"', "15+15x200"),
            'marshal_group_open_range_grants{group_id="billing",topic="orders",partition="1"}': 4,
        },
        {"MarshalMessageComesAgain"},
    ),
    "the only broker that has a partition is down": (
        {
            **of('partition_offline.*"1"', 1),
            **of('stalled.*"1"', "15+15x200"),
            **of('lag_seconds.*"1"', "15+15x200"),
        },
        {"MarshalPartitionOffline"},
    ),
    "rows are set aside": (
        of('dead_letters_waiting.*outbox="outbox"', 3),
        {"HarvestDeadLetters"},
    ),
    "a large lag that does not grow": (
        {**of("lag_seconds.*mail", 900), **of("lag_messages.*mail", 50_000)},
        {"MarshalLagHigh"},
    ),
    "a whole group is gone": (
        {
            **of("^marshal_(up|consumer|snap).*billing", GONE),
            **group("billing", members_live=0, members_lost=3, claims_stale=2),
            **of("partition_stopped.*billing", 1),
            **of("lag_seconds.*billing", "15+15x200"),
        },
        {"MarshalGroupGone"},
    ),
    "nobody takes over": (group("billing", claims_stale=1), {"MarshalStaleClaims"}),
    "the exporter is gone": (
        of("^marshal_(group|coordination|exporter)", GONE),
        {"MarshalExporterDown"},
    ),
    "the slot keeps the log": (
        of('pinned_wal.*outbox="outbox"', 8e9),
        {"HarvestSlotKeepsLog"},
    ),
    "the slot is lost": (
        {**of('slot_lost.*outbox="outbox"', 1), **of('harvest_up.*outbox="outbox"', 0)},
        {"HarvestSlotLost"},
    ),
    "the clock is wrong": (of("clock_behind", 30), {"MarshalClockSkew"}),
    "a topic is hidden from the exporter": (
        {'marshal_exporter_topic_hidden{topic="orders"}': 1, **of('topic="orders"', GONE)},
        {"MarshalTopicHidden"},
    ),
    "the topic was made anew": (of("restarts", 1), {"MarshalTopicRemade"}),
    "the state has forked": (
        {**of("coordination_snapshot_m", 1), **of("^marshal_snapshot_mism.*mail", 1)},
        {"MarshalSnapshotMismatch"},
    ),
    "another database": (
        {**of('refused.*outbox="outbox"', 1), **of('harvest_up.*outbox="outbox"', 0)},
        {"HarvestRefused"},
    ),
    "an operator pauses a group": (
        {**group("billing", paused=1, claims_held=0), **of("partition_held.*billing", 0)},
        set(),
    ),
    "an operator pauses an outbox": (
        {
            **group("shop", paused=1),
            **of("leader_held", 0),
            **of("harvest_leading", 0),
            **of("harvest_paused", 1),
            **of("harvest_oldest_row", "15+15x200"),
        },
        set(),
    ),
}


def series(case: Case, until: int = LENGTH) -> list[dict[str, str]]:
    """What promtool reads: well for a minute, broken from then `until`, and well again."""
    found = []
    for name in WELL_SERIES.keys() | case.keys():
        before, broken = WELL_SERIES.get(name), case.get(name)
        values = f"{before:g}x{WELL - 1}" if before is not None else f"_x{WELL}"
        if broken is None:
            values += f" {before:g}x{LENGTH}"
        else:
            length = until - WELL
            kept = str(broken) if isinstance(broken, str) else f"{broken:g}x200"
            if broken != GONE:
                kept = re.sub(r"x200$", f"x{length - 1}", kept)
            elif until < LENGTH:
                kept += f" _x{length - 1}"
            values += f" {kept}"
            if until < LENGTH:
                values += f" {before:g}x{LENGTH - until}"
        found.append({"series": name, "values": values})
    return found


def asked(minutes: float, expected: dict[str, int]) -> dict[str, Any]:
    return {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{int(minutes * 60)}s",
        "exp_samples": [
            {"labels": f'{{alertname="{name}"}}', "value": number}
            for name, number in sorted(expected.items())
        ],
    }


def promtool(folder: Path, tests: list[dict[str, Any]]) -> str:
    """Run the tests; return what promtool says of those that fail."""
    (folder / "alerts.yaml").write_text(telemetry_file("alerts.yaml"))
    document = {"rule_files": ["alerts.yaml"], "evaluation_interval": "15s", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    done = subprocess.run(
        ["promtool", "test", "rules", folder / "tests.yaml"], capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_each_failure_raises_its_alert_within_three_minutes_and_no_other(tmp_path: Path) -> None:
    tests = []
    for name, (case, alerts) in MATRIX.items():
        expression = {
            "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
            "exp_samples": [
                {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)
            ],
        }
        tests.append(
            {
                "name": name,
                "interval": f"{STEP_S}s",
                "input_series": series(case),
                "promql_expr_test": [{**expression, "eval_time": "4m"}],
            }
        )
    assert promtool(tmp_path, tests) == ""


def test_a_pause_of_the_broker_of_ten_minutes_is_one_alert_which_ends(tmp_path: Path) -> None:
    until = WELL + 40
    test = {
        "name": "ten minutes",
        "interval": f"{STEP_S}s",
        "input_series": series(OUTAGE, until),
        "promql_expr_test": [
            asked(minutes, {"MarshalKafkaUnreachable": 1} if 2.5 < minutes <= 11 else {})
            for minutes in (1, 1.5, 3, 5, 8, 10.75, 11.5, 12, 13, 15, 20)
        ],
    }
    assert promtool(tmp_path, [test]) == ""


def test_a_forgotten_pause_of_a_group_is_one_alert_and_not_one_for_each_client(
    tmp_path: Path,
) -> None:
    case = MATRIX["an operator pauses a group"][0]
    test = {
        "interval": f"{STEP_S}s",
        "input_series": series(case),
        "promql_expr_test": [asked(30, {}), asked(32, {"MarshalGroupPaused": 1})],
    }
    assert promtool(tmp_path, [test]) == ""


def test_the_matrix_can_fail(tmp_path: Path) -> None:
    test = {
        "interval": f"{STEP_S}s",
        "input_series": series(MATRIX["the slot is lost"][0]),
        "promql_expr_test": [asked(4, {})],
    }
    assert "HarvestSlotLost" in promtool(tmp_path, [test])


def test_the_series_are_such_as_are_exported() -> None:
    names = {name.partition("{")[0] for case, _ in MATRIX.values() for name in case}
    assert (names | {name.partition("{")[0] for name in WELL_SERIES}) <= exported()


def test_every_alert_is_in_the_matrix_or_needs_hours() -> None:
    rules = yaml.safe_load(telemetry_file("alerts.yaml"))
    names = {rule["alert"] for part in rules["groups"] for rule in part["rules"]}
    slow = {"MarshalLagGrows", "MarshalFlapping", "MarshalGroupPaused", "MarshalPartitionUnheld"}
    assert names - {alert for _, alerts in MATRIX.values() for alert in alerts} == slow
