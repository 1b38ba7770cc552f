"""What a client is configured with: what is refused, by name, and what just fits."""

from __future__ import annotations

from typing import Any

import pytest

from marshal_py import Marshal
from marshal_py.client.settings import ClientSettings, kafka_config
from marshal_py.errors import ConfigurationError
from marshal_py.protocol.messages import MAX_ID_LENGTH, MAX_MEMBER_METADATA_BYTES

USUAL: dict[str, Any] = {
    "kafka": {"bootstrap.servers": "a:1", "sasl.password": "hunter2"},
    "group_id": "g",
    "client_id": "c",
    "instance_id": "i",
    "interval_ms": 5_000,
    "margin_ms": 500,
    "topic": "__marshal",
    "snapshot_topic": "__marshal.snapshots",
    "resume": False,
    "cold_start_skew_ms": 1_000,
    "member": True,
    "member_metadata": b"",
    "connect_timeout_ms": 10_000,
    "snapshot_every": 1_000,
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"interval_ms": 19}, "interval_ms = 19 must be a whole number, 20 to"),
        ({"snapshot_every": True}, "snapshot_every = True"),
        ({"margin_ms": 0}, "margin_ms = 0 must lie between 0"),
        ({"margin_ms": 5_000}, "margin_ms = 5000 must lie between 0"),
        ({"gather_ms": 501}, "gather_ms = 501"),
        ({"gather_ms": -1}, "gather_ms = -1"),
        ({"cold_start_skew_ms": -1}, "cold_start_skew_ms = -1"),
        ({"connect_timeout_ms": 0}, "connect_timeout_ms = 0"),
        ({"snapshot_every": 0}, "snapshot_every = 0"),
        ({"topic": ""}, "topic = ''"),
        ({"topic": ".."}, "topic = '..' must be the name of a Kafka topic"),
        ({"topic": "a b"}, "topic = 'a b' must be the name of a Kafka topic"),
        ({"snapshot_topic": 7}, "snapshot_topic = 7 must be the name of a Kafka topic"),
        ({"resume": "no"}, "resume = 'no' must be True or False"),
        ({"member": None}, "member = None must be True or False"),
        ({"wire": ["text"]}, r"wire = \['text'\] must be 'msgpack'"),
        ({"client_id": ""}, "client_id = ''"),
        ({"group_id": "x" * (MAX_ID_LENGTH + 1)}, "group_id = 'x+' must be text"),
        ({"group_id": "\ud800"}, "group_id = .* cannot be written as UTF-8"),
        ({"member_metadata": bytes(MAX_MEMBER_METADATA_BYTES + 1)}, "member_metadata must be"),
        ({"wire": "text", "trim_log": True}, "trim_log = True"),
        ({"wire": "text", "interval_ms": 5_500}, "interval_ms = 5500: .* whole seconds"),
        ({"wire": "text", "member_metadata": b"x"}, r"member_metadata: version 1 \(wire='text'\)"),
        *(
            (
                {"wire": "text", "kafka": {"bootstrap.servers": "a:1", name: "zstd"}},
                rf"config '{name}' = 'zstd': Go Marshal cannot read it",
            )
            for name in ("compression.type", "compression.codec")
        ),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        ClientSettings(**{**USUAL, **changes})


@pytest.mark.parametrize("name", ["create_topics", "close_on_sigterm"])
def test_a_text_is_no_yes_or_no(name: str) -> None:
    settings: Any = {name: "no"}
    with pytest.raises(ConfigurationError, match=f"{name} = 'no' must be True or False"):
        Marshal("a:1", group_id="g", **settings)


def test_what_just_fits_is_taken() -> None:
    least = {"interval_ms": 20, "margin_ms": 19, "gather_ms": 2, "cold_start_skew_ms": 0}
    most = {
        "group_id": "x" * MAX_ID_LENGTH,
        "member_metadata": bytes(MAX_MEMBER_METADATA_BYTES),
        "cold_start_skew_ms": None,
        "gather_ms": 500,
    }
    for changes in (least, most, {"trim_log": True}):
        ClientSettings(**{**USUAL, **changes})


def test_settings_show_no_secret() -> None:
    assert "hunter2" not in repr(ClientSettings(**USUAL))


@pytest.mark.parametrize(
    "key",
    ["acks", "request.required.acks", "group.id", "isolation.level", "transactional.id"],
)
def test_what_the_protocol_depends_on_is_not_the_users(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"config '{key}' is set by marshal itself") as no:
        kafka_config({"bootstrap.servers": "a:1", key: "hunter2"})
    assert "hunter2" not in str(no.value)


def test_brokers_have_two_names_and_the_users_dict_stays_as_it_is() -> None:
    given = {"metadata.broker.list": "a:1"}
    made = kafka_config(given)
    made["client.id"] = "c"
    assert given == {"metadata.broker.list": "a:1"}
    for nothing in ("", "  ", {}, {"bootstrap.servers": 9092}):
        with pytest.raises(ConfigurationError, match=r"no 'bootstrap\.servers'"):
            kafka_config(nothing)


@pytest.mark.parametrize(("wire", "digits"), [("msgpack", 16), ("text", 8)])
def test_an_instance_has_an_id_as_its_version_has_it(wire: Any, digits: int) -> None:
    ids = {Marshal("a:1", group_id="g", wire=wire).instance_id for _ in range(2)}
    assert len(ids) == 2
    assert all(len(found) == digits and int(found, 16) >= 0 for found in ids)
