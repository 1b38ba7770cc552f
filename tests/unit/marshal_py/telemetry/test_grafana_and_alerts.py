"""Dashboard and alert rules: well formed, and every metric in them is one that is exported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from marshal_py.cli.metrics import telemetry_file
from tests.support.paths import ROOT

DASHBOARD: dict[str, Any] = json.loads(telemetry_file("grafana.json"))
RULES: dict[str, Any] = yaml.safe_load(telemetry_file("alerts.yaml"))
_METRIC = re.compile(r"\b((?:marshal|harvest)_[a-z_]+)\b")


PREFIXES = {
    "marshal_py/telemetry/client_metrics.py": ("marshal_",),
    "marshal_py/telemetry/consumer_metrics.py": ("marshal_consumer_",),
    "marshal_py/telemetry/group_metrics.py": (
        "marshal_",
        "marshal_group_",
        "marshal_coordination_",
    ),
    "harvest/runtime/metrics.py": ("harvest_",),
}


def exported() -> set[str]:
    """The names in the adapters' sources, whole or with the adapter's prefix, as samples have."""
    names: set[str] = set()
    for path, prefixes in PREFIXES.items():
        text = (ROOT / path).read_text()
        names |= set(_METRIC.findall(text))
        literals = re.findall(r'(?:\(|^\s*)"([a-z_]+)"[,:]', text, re.MULTILINE)
        names |= {prefix + literal for prefix in prefixes for literal in literals}
    return names | {f"{name}_total" for name in names}


def expressions() -> list[tuple[str, str]]:
    found = [
        (panel["title"], target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]
    found += [(rule["alert"], rule["expr"]) for group in RULES["groups"] for rule in group["rules"]]
    return found


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_metric_is_exported(where: str, expression: str) -> None:
    names = set(_METRIC.findall(re.sub(r"\{[^}]*\}", "", expression)))
    assert names, where
    assert names <= exported(), where


def test_the_check_can_fail() -> None:
    assert not {"marshal_group_nonsense", "marshal_consumer_members"} & exported()


def unlike(given: Any, kept: Any, where: str = "") -> list[str]:
    """What of a document Grafana's own model does not know, or changes."""
    if isinstance(given, dict) and isinstance(kept, dict):
        found = [f"{where}/{key} is unknown" for key in given.keys() - kept.keys()]
        for key in given.keys() & kept.keys():
            found += unlike(given[key], kept[key], f"{where}/{key}")
        return found
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return [what for n, (a, b) in pairs for what in unlike(a, b, f"{where}/{n}")]
    return [] if given == kept else [f"{where}: {given!r} becomes {kept!r}"]


def as_grafana_reads(document: dict[str, Any]) -> Any:
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()  # panels and queries by their own types
    return json.loads(JSONEncoder().encode(Dashboard.from_json(document)))


def test_grafanas_own_model_knows_all_of_the_dashboard() -> None:
    assert unlike(DASHBOARD, as_grafana_reads(DASHBOARD)) == []


def test_the_check_by_grafanas_model_can_fail() -> None:
    wrong = json.loads(json.dumps(DASHBOARD))
    wrong["refreshEvery"] = "5s"
    wrong["panels"][1]["gridPos"]["width"] = 3
    found = unlike(wrong, as_grafana_reads(wrong))
    assert sorted(found) == ["/panels/1/gridPos/width is unknown", "/refreshEvery is unknown"]


def test_panels_do_not_overlap_and_have_their_own_ids() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_alert_says_what_to_do() -> None:
    names = []
    for group in RULES["groups"]:
        for rule in group["rules"]:
            names.append(rule["alert"])
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert rule["annotations"].keys() == {"summary", "action", "runbook_url"}
            page = ROOT / rule["annotations"]["runbook_url"]
            assert page.read_text(encoding="utf-8").startswith(f"# {rule['alert']}\n")
    assert len(set(names)) == len(names) > 8


def check_rules(path: Path, text: str) -> None:
    path.write_text(text)
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules_and_the_dashboards_expressions(tmp_path: Path) -> None:
    check_rules(tmp_path / "alerts.yaml", telemetry_file("alerts.yaml"))
    rules = [
        {"record": f"panel:{number}", "expr": target["expr"].replace("$group", ".*")}
        for number, target in enumerate(
            target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
        )
    ]
    assert len(rules) > 25
    groups = {"groups": [{"name": "dashboard", "rules": rules}]}
    check_rules(tmp_path / "dashboard.yaml", yaml.safe_dump(groups))
    with pytest.raises(AssertionError):
        check_rules(tmp_path / "wrong.yaml", telemetry_file("alerts.yaml").replace("> 0", "> >", 1))
