"""Settings of embedded brokers: what fits their number, their version and a properties file."""

from __future__ import annotations

from pathlib import Path

import pytest

from marshal_py.embedded import broker_settings


@pytest.mark.parametrize(("brokers", "enough"), [(1, 1), (3, 2)])
def test_replication_fits_the_number_of_brokers(brokers: int, enough: int) -> None:
    settings = broker_settings.defaults_for_tests("4.1.0", brokers)
    assert settings["default.replication.factor"] == brokers
    assert settings["min.insync.replicas"] == enough
    assert all(v == brokers for k, v in settings.items() if k.endswith("replication.factor"))
    assert all(v == enough for k, v in settings.items() if k.endswith("min.isr"))


def test_old_versions_get_no_settings_they_do_not_know() -> None:
    names = broker_settings.defaults_for_tests("3.9.1", 1)
    assert not [name for name in names if name.startswith("share.")]


def test_backslashes_in_properties_are_escaped(tmp_path: Path) -> None:
    broker_settings.write(tmp_path / "p", {"a": "b\\c", "n": 1})
    assert (tmp_path / "p").read_text() == "a=b\\\\c\nn=1\n"


def test_each_broker_of_a_cluster_has_its_own_ports_and_knows_all_controllers() -> None:
    found = [broker_settings.listeners(n, 9000 + n, [7001, 7002, 7003]) for n in (1, 2, 3)]
    assert {each["controller.quorum.voters"] for each in found} == {
        "1@127.0.0.1:7001,2@127.0.0.1:7002,3@127.0.0.1:7003"
    }
    assert [each["node.id"] for each in found] == [1, 2, 3]
    assert found[2]["listeners"] == "PLAINTEXT://127.0.0.1:9003,CONTROLLER://127.0.0.1:7003"
