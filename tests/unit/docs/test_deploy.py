"""The files in docs/deploy: linted with the real tools where they are, and consistent."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from harvest.config.load import parse
from tests.support.paths import DOCS, ROOT
from tests.unit.marshal_py.cli.test_help import check_command_line

DEPLOY = DOCS / "deploy"
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
WORKLOADS = [m for m in MANIFESTS if m["kind"] in ("StatefulSet", "Deployment")]
UNIT = (DEPLOY / "harvest@.service").read_text()


def tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.parametrize(
    "manifest", MANIFESTS, ids=lambda m: f"{m['kind']}-{m['metadata']['name']}"
)
def test_a_manifest_has_kubernetes_own_schema(manifest: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    validator.validate(manifest, validator.latest_version(), strict=True)


def test_the_check_of_manifests_can_fail() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    wrong = yaml.safe_load(yaml.safe_dump(WORKLOADS[0]))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 3
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, validator.latest_version(), strict=True)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda m: str(m["metadata"]["name"]))
def test_a_workload_runs_as_nobody_with_probes_and_no_cpu_limit(workload: dict[str, Any]) -> None:
    pod = workload["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= (
        workload["spec"]["template"]["metadata"]["labels"].items()
    )
    for container in pod["containers"]:
        ports = {port["name"] for port in container["ports"]}
        for probe in ("readinessProbe", "livenessProbe"):
            asked = container[probe].get("httpGet") or container[probe]["tcpSocket"]
            assert asked["port"] in ports
        # Of a process that stands still the port is open all the same.
        assert container["livenessProbe"]["httpGet"]["path"] == "/metrics"
        assert "cpu" not in container["resources"]["limits"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        words = container.get("command") or ["harvest", *container["args"]]
        check_command_line(" ".join(words))


def test_the_harvester_is_called_as_its_pod_and_has_time_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POD_NAME", "harvest-0")
    monkeypatch.setenv("DSN", "postgresql://db/shop")
    text = next(m for m in MANIFESTS if m["kind"] == "ConfigMap")["data"]["reaper.yaml"]
    settings = parse(text)
    assert settings.name == "harvest-0"
    harvester = next(m for m in WORKLOADS if m["kind"] == "StatefulSet")
    pod = harvester["spec"]["template"]["spec"]
    assert {e["name"] for e in pod["containers"][0]["env"]} == {"POD_NAME", "DSN"}
    assert pod["terminationGracePeriodSeconds"] * 1000 > settings.limits.drain_timeout_ms + 10_000
    stop = re.search(r"TimeoutStopSec=(\d+)", UNIT)
    assert stop is not None
    assert int(stop[1]) * 1000 > settings.limits.drain_timeout_ms + 10_000


def test_the_unit_starts_a_command_that_there_is() -> None:
    start = re.search(r"ExecStart=/opt/marshal/bin/(.*)", UNIT)
    assert start is not None
    check_command_line(start[1])


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    unit = tmp_path / "harvest@shop.service"
    unit.write_text(UNIT.replace("/opt/marshal/bin/harvest", sys.executable))
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "harvest@" in line]
    assert said == []
    assert done.returncode == 0, done.stderr


def test_hadolint_accepts_the_containerfile() -> None:
    done = subprocess.run(
        [tool("hadolint"), DEPLOY / "Containerfile"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_containerfile_copies_what_is_there_and_starts_a_command_that_there_is() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (DEPLOY.parents[1] / source).exists(), source
    entry, command = (
        re.findall(r'"([^"]+)"', re.search(rf"^{word} (.*)$", text, re.MULTILINE)[1])  # type: ignore[index]
        for word in ("ENTRYPOINT", "CMD")
    )
    check_command_line(" ".join([*entry, *command]))


def test_the_lock_has_what_the_package_wants_each_with_hashes_and_no_address() -> None:
    text = (DEPLOY / "requirements.lock").read_text()
    assert "://" not in text
    locked: dict[str, str] = {}
    for block in re.split(r"\n(?! )", text.strip()):
        pinned = re.match(r"([a-z0-9-]+)==(\S+) ", block)
        assert pinned is not None, block
        assert " --hash=sha256:" in block, block
        locked[pinned[1]] = pinned[2]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r'^IN_CONTAINER = "(.+)"$', (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    wanted = project["dependencies"]
    for name in extras[0].split():
        wanted = wanted + project["optional-dependencies"][name]
    for each in map(Requirement, wanted):
        name = each.name.lower()
        assert each.specifier.contains(locked[name]), f"{each}: nox -s lock"
