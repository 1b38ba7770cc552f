"""What the user configures, checked before anything touches the network."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from marshal_py.errors import ConfigurationError, MalformedRecord
from marshal_py.protocol.messages import MAX_ID_LENGTH, MAX_INTERVAL_MS, MAX_MEMBER_METADATA_BYTES
from marshal_py.protocol.text.codec import check_name
from marshal_py.protocol.wire import WireName

__all__ = [
    "DEFAULT_TOPIC",
    "KafkaConfig",
    "check_bool",
    "default_client_id",
    "is_topic",
    "kafka_config",
]

DEFAULT_TOPIC: Final = "__marshal"

KafkaConfig = dict[str, Any]

_FIXED: Final[dict[str, str]] = {
    "acks": "a claim that is not on every in-sync replica could be lost",
    "request.required.acks": "a claim that is not on every in-sync replica could be lost",
    "enable.idempotence": "a retried record would appear twice in the log",
    "group.id": "no consumer group is involved; the group is marshal's own group_id",
    "enable.auto.commit": "no offsets are committed to Kafka",
    "enable.auto.offset.store": "no offsets are committed to Kafka",
    "auto.offset.reset": "an offset that is out of range means that the log was truncated",
    "isolation.level": "every reader must see the same records",
    "enable.partition.eof": "it tells the end of the log",
    "transactional.id": "records of an open transaction would be invisible to others",
    "logger": "rdkafka's messages go to the logger marshal_py.rdkafka",
    "partitioner": "the coordination partition is part of the protocol",
}
"""Settings that the protocol depends on, and why they cannot be changed."""


def kafka_config(config: Mapping[str, Any] | str) -> KafkaConfig:
    """Return a checked copy of librdkafka settings; a string stands for `bootstrap.servers`.

    Raises `ConfigurationError` that names the setting and says why it cannot be used. Values are
    never part of the message for settings that hold secrets.
    """
    if isinstance(config, str):
        config = {"bootstrap.servers": config}
    if not isinstance(config, Mapping):
        raise ConfigurationError(
            f"config is a {type(config).__name__}: give a dict of librdkafka settings, or "
            "'host:port[,host:port]'"
        )
    copy = dict(config)
    for key in copy:
        if not isinstance(key, str):
            raise ConfigurationError(f"config key {key!r} is no text")
        if key in _FIXED:
            raise ConfigurationError(f"config {key!r} is set by marshal itself: {_FIXED[key]}")
    servers = copy.get("bootstrap.servers", copy.get("metadata.broker.list"))
    if not isinstance(servers, str) or not servers.strip():
        raise ConfigurationError(
            "config has no 'bootstrap.servers': give 'host:port[,host:port]' of the brokers"
        )
    return copy


def default_client_id(instance_id: str) -> str:
    """Return a client_id that no other process has: host name and instance."""
    return f"{socket.gethostname()[:200]}-{instance_id[:8]}"


def new_instance_id() -> str:
    """Return a fresh random instance_id, 16 hex digits."""
    return os.urandom(8).hex()


DEFAULT_INTERVAL_MS: Final[dict[WireName, int]] = {"msgpack": 5_000, "text": 60_000}
"""Go Marshal has 60 s compiled in, and all clients of a text log must agree."""

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TEXT_COMPRESSION: Final = ("none", "gzip", "snappy", "inherit")


def _check_id(name: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_LENGTH:
        raise ConfigurationError(
            f"{name} = {value!r} must be text of 1 to {MAX_ID_LENGTH} characters"
        )
    with contextlib.suppress(UnicodeEncodeError):
        value.encode()
        return value
    raise ConfigurationError(f"{name} = {value!r} cannot be written as UTF-8")


def check_bool(name: str, value: object) -> None:
    """Raise `ConfigurationError` for what is neither True nor False: "no" would be taken as yes."""
    if type(value) is not bool:
        raise ConfigurationError(f"{name} = {value!r} must be True or False")


def is_topic(name: str) -> bool:
    """Whether Kafka allows a topic to have this name; a claim may have any."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def _check_topic(name: str, value: object) -> None:
    if not isinstance(value, str) or not is_topic(value):
        raise ConfigurationError(
            f"{name} = {value!r} must be the name of a Kafka topic: 1 to 249 letters, digits, '.', "
            "'_' and '-', and not '.' or '..'"
        )


def _check_int(name: str, value: object, low: int, high: int, unit: str) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ConfigurationError(
            f"{name} = {value!r} must be a whole number, {low} to {high} {unit}"
        )
    return value


@dataclass(frozen=True)
class ClientSettings:
    """The settings of one `Marshal`. Raises `ConfigurationError`, naming field and value."""

    kafka: KafkaConfig = field(repr=False)
    group_id: str
    client_id: str
    instance_id: str
    interval_ms: int
    margin_ms: int
    topic: str
    snapshot_topic: str
    resume: bool
    cold_start_skew_ms: int | None
    member: bool
    member_metadata: bytes
    connect_timeout_ms: int
    snapshot_every: int
    wire: WireName = "msgpack"
    trim_log: bool = False
    gather_ms: int = 0

    def __post_init__(self) -> None:
        if self.wire not in ("msgpack", "text"):
            raise ConfigurationError(
                f"wire = {self.wire!r} must be 'msgpack' (version 2) or 'text' (version 1, as Go "
                "Marshal has it)"
            )
        _check_id("group_id", self.group_id)
        _check_id("client_id", self.client_id)
        _check_int("interval_ms", self.interval_ms, 20, MAX_INTERVAL_MS, "milliseconds")
        if type(self.margin_ms) is not int or not 0 < self.margin_ms < self.interval_ms:
            raise ConfigurationError(
                f"margin_ms = {self.margin_ms!r} must lie between 0 and interval_ms = "
                f"{self.interval_ms}; a tenth of the interval is the default"
            )
        _check_topic("topic", self.topic)
        if self.wire != "text":  # it has none
            _check_topic("snapshot_topic", self.snapshot_topic)
        for name in ("resume", "member", "trim_log"):
            check_bool(name, getattr(self, name))
        if self.cold_start_skew_ms is not None:
            _check_int("cold_start_skew_ms", self.cold_start_skew_ms, 0, 3_600_000, "milliseconds")
        _check_int("connect_timeout_ms", self.connect_timeout_ms, 1, 86_400_000, "milliseconds")
        _check_int("snapshot_every", self.snapshot_every, 1, 2**53, "records")
        if type(self.gather_ms) is not int or not 0 <= self.gather_ms <= self.interval_ms // 10:
            raise ConfigurationError(
                f"gather_ms = {self.gather_ms!r} must be a whole number, 0 to a tenth of "
                f"interval_ms = {self.interval_ms}; 0 has each record come at once"
            )
        if self.trim_log and self.wire == "text":
            raise ConfigurationError(
                "trim_log = True: version 1 (wire='text') has no snapshots that would cover what "
                "is deleted; leave it out"
            )
        metadata = self.member_metadata
        if not isinstance(metadata, bytes) or len(metadata) > MAX_MEMBER_METADATA_BYTES:
            raise ConfigurationError(
                f"member_metadata must be at most {MAX_MEMBER_METADATA_BYTES} bytes"
            )
        if self.wire == "text":
            self._check_text()

    def _check_text(self) -> None:
        """Refuse what version 1 records cannot carry, or Go clients cannot read."""
        try:
            check_name("group_id", self.group_id)
            check_name("client_id", self.client_id)
        except MalformedRecord as error:
            raise ConfigurationError(str(error)) from None
        if self.interval_ms % 1000:
            raise ConfigurationError(
                f"interval_ms = {self.interval_ms}: with wire='text' it must be whole seconds, and "
                "the same in all clients (Go Marshal has 60000)"
            )
        if self.member_metadata:
            raise ConfigurationError(
                "member_metadata: version 1 (wire='text') has no members; leave it empty"
            )
        for key in ("compression.type", "compression.codec"):
            codec = self.kafka.get(key, "none")
            if codec not in _TEXT_COMPRESSION:
                raise ConfigurationError(
                    f"config {key!r} = {codec!r}: Go Marshal cannot read it; with wire='text' use "
                    "none, gzip or snappy"
                )
