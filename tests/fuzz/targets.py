"""What is fuzzed: each target takes bytes, and raises if the product did what it must not.

Only the documented errors may come, a decoder's result must survive its own encoder, two folds of
the same log must agree, and nothing may grow out of proportion to what was read.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from harvest import config as harvest_config
from harvest import goharvest
from harvest.errors import HarvestError
from harvest.naming import TableName
from marshal_py.commands.connection import parse_settings, read_config_file
from marshal_py.errors import ConfigurationError, MalformedRecord
from marshal_py.events import Event
from marshal_py.messages import decode, encode
from marshal_py.rationalizer import PartitionState, apply
from marshal_py.snapshots import decode_snapshot
from marshal_py.text import codec as text

__all__ = ["TARGETS"]

GROWTH_BYTES: Final = 4_096
"""Beyond the bytes of its record, a state may grow by this much with each."""


def record(data: bytes) -> None:
    """One record: decoded, written again, folded."""
    try:
        message = decode(data)
    except MalformedRecord:
        message = None
    if message is not None and decode(encode(message)) != message:
        raise AssertionError("a record did not survive its own encoder")
    log(len(data).to_bytes(2, "big") + data if len(data) < 65_536 else data)


def log(data: bytes) -> None:
    """A whole log, each record after two bytes of length: two readers, with events and without."""
    one, other, read, offset = PartitionState(0), PartitionState(0), 0, 0
    events: list[Event] = []
    while read < len(data):
        length = int.from_bytes(data[read : read + 2], "big")
        value = data[read + 2 : read + 2 + length]
        read += 2 + length
        apply(one, offset, value, events)
        apply(other, offset, value)
        other = PartitionState.decode(other.encode())
        offset += 1
    if one.digest() != other.digest():
        raise AssertionError("two readers disagree")
    if offset and len({event.offset for event in events}) != offset:
        raise AssertionError("a record led to no event")
    if len(one.encode()) > 64 + 2 * len(data) + offset * GROWTH_BYTES:
        raise AssertionError("the state grew out of proportion")


def snapshot(data: bytes) -> None:
    """A snapshot record, as a peer may write it."""
    with contextlib.suppress(MalformedRecord):
        decode_snapshot(data).restore()


def version_1(data: bytes) -> None:
    """A text record of Go Marshal."""
    try:
        found = text.decode(data)
        if text.decode(text.encode(found)) != found:
            raise AssertionError("a text record did not survive its own encoder")
    except MalformedRecord:
        pass


def _as_file(data: bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"config{suffix}"
        path.write_bytes(data)
        with contextlib.suppress(ConfigurationError):
            read_config_file(path)


def properties(data: bytes) -> None:
    """A client.properties."""
    _as_file(data, ".properties")


def yaml(data: bytes) -> None:
    """A client.yaml."""
    _as_file(data, ".yaml")


def setting(data: bytes) -> None:
    """`-X KEY=VALUE`."""
    with contextlib.suppress(ConfigurationError):
        parse_settings([data.decode("utf-8", "surrogateescape")])


def reaper_yaml(data: bytes) -> None:
    """A harvester's configuration: ours, or goharvest's."""
    content = data.decode("utf-8", "replace")
    for source in (content, f"harvest:\n  baseKafkaConfig: {content}"):
        with contextlib.suppress(HarvestError):
            harvest_config.parse(source)


def connection_string(data: bytes) -> None:
    """goharvest's data source, and its durations."""
    source = data.decode("utf-8", "replace")
    for function, error in (
        (goharvest.libpq_conninfo, HarvestError),
        (goharvest.parse_duration_ms, ValueError),
    ):
        with contextlib.suppress(error):
            function(source)


def table_name(data: bytes) -> None:
    """The name of an outbox table, which becomes SQL."""
    try:
        name = TableName.parse(data.decode("utf-8", "replace"))
    except HarvestError:
        return
    if any("\0" in part or not part for part in name.parts):
        raise AssertionError("a name that no table can have")


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    target.__name__: target
    for target in (
        record,
        log,
        snapshot,
        version_1,
        properties,
        yaml,
        setting,
        reaper_yaml,
        connection_string,
        table_name,
    )
}
