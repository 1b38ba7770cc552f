"""What is fuzzed: each target takes bytes, and raises if the product did what it must not.

Only the documented errors may come, a decoder's result must survive its own encoder, two folds of
the same log must agree, and nothing may grow out of proportion to what was read.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final
from unittest import mock

import httpcore

from harvest.config.goharvest import parse_duration_ms
from harvest.config.load import parse as parse_reaper_yaml
from harvest.core.dead_letters import BadRowFilter, problem
from harvest.core.mark_checkpoint import Checkpoint
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row, payload_bytes
from harvest.core.shards import shard_of
from harvest.core.table_name import TableName
from harvest.databases.column_values import headers_from_json
from harvest.databases.postgres.conninfo import libpq_conninfo
from harvest.errors import CheckpointError, HarvestError
from harvest.sinks.http.endpoint import retry_after_ms
from harvest.sinks.http.exchange import Answer, Connection
from marshal_py.admin.connection import parse_settings, read_config_file
from marshal_py.errors import ConfigurationError, MalformedRecord
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.events import Event
from marshal_py.protocol.messages import MAX_METADATA_BYTES, decode, encode
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.snapshots import decode_snapshot
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.text import codec as text
from tests.fuzz.command_lines import PROGRAMS

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


def subscription(data: bytes) -> None:
    """What another member says that it wants, and what it says of a claim."""
    found = Subscription.decode(data)
    if found is not None:
        found.wants("t")
        found.likes(("t", 0))
        if Subscription.decode(found.encode()) != found:
            raise AssertionError("a subscription did not survive its own encoder")
    ClaimMetadata.decode(data[:MAX_METADATA_BYTES])


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
            parse_reaper_yaml(source)


def connection_string(data: bytes) -> None:
    """goharvest's data source, and its durations."""
    source = data.decode("utf-8", "replace")
    for function, error in (
        (libpq_conninfo, HarvestError),
        (parse_duration_ms, ValueError),
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


class _Stream(httpcore.NetworkStream):
    """A server that says `data` in pieces of `size` bytes, and closes."""

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self._size = data, size

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        size = min(self._size, max_bytes)
        piece, self.data = self.data[:size], self.data[size:]
        return piece

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Nobody reads it."""

    def get_extra_info(self, info: str) -> object:
        return bool(self.data)


def _answer(data: bytes, size: int) -> tuple[Answer | None, bool]:
    connection = Connection(_Stream(data, size))
    try:
        found = connection.exchange(b"POST", b"/", [(b"Host", b"a")], b"")
    except (httpcore.NetworkError, httpcore.ProtocolError):
        return None, connection.usable
    if len(found.said) > 2 * 65_536:
        raise AssertionError("an answer without bound")
    retry_after_ms(found.headers, 1.7e9)
    return found, connection.usable


def answer(data: bytes) -> None:
    """What a destination answers over HTTP: at once, and byte by byte, which h11 alone reads."""
    plain, plain_usable = _answer(data, 65_536)
    pieces, pieces_usable = _answer(data, 1)
    if plain != pieces or plain_usable != pieces_usable:
        raise AssertionError(f"read in one piece {plain}, in many {pieces}")


def row(data: bytes) -> None:
    """A row of the outbox: topic, key, value and headers, after a byte of length each."""
    parts: list[bytes | None] = []
    while data and len(parts) < 12:
        length = data[0]
        parts.append(None if length == 255 else data[1 : 1 + length])
        data = data[1 + length :]
    topic, key, value, *rest = [*parts, b"", b"", b""][: max(3, len(parts))]
    half = len(rest) // 2
    made = Row(
        1,
        (topic or b"").decode("utf-8", "replace"),
        key,
        value,
        *map(tuple, (rest[:half], rest[half:])),
    )
    told = problem(made)
    bad_rows = BadRowFilter().find_bad([made, made._replace(id=2)])
    if [row.id for row in bad_rows] != ([] if told is None else [1, 2]):
        raise AssertionError(f"{told}: {bad_rows}")
    if payload_bytes([made]) < len(key or b"") + len(value or b""):
        raise AssertionError("a row weighs less than its bytes")
    if not 0 <= shard_of(key, 7) < 7:
        raise AssertionError("a shard that there is not")


def headers(data: bytes) -> None:
    """A column of headers as JSON."""
    found = headers_from_json(data)
    if found is not None and not all(isinstance(e, bytes | None) for e in found):
        raise AssertionError(found)


def checkpoint(data: bytes) -> None:
    """The metadata of a committed offset: a checkpoint of mark and of range mode."""
    content = data.decode("utf-8", "replace")
    kinds: tuple[type[Checkpoint] | type[Position], ...] = (Checkpoint, Position)
    for kind in kinds:
        with contextlib.suppress(CheckpointError):
            found = kind.decode(content)
            if kind.decode(found.encode()) != found:
                raise AssertionError("a checkpoint did not survive its own encoder")


def command_line(data: bytes) -> None:
    """The words of a command, one a line, of either program; without any server."""
    words = data.decode("utf-8", "replace").split("\n")[:8]
    starting = {"demo", "run", "audit"} & set(words)
    if starting or any("-b" in word or "bootstrap" in word for word in words):
        return  # they start servers, or look for some
    for program, expected in PROGRAMS:
        status: object = 0
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),  # some write files
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            mock.patch("sys.stdin", io.StringIO()),
            mock.patch.dict(os.environ, {"MARSHAL_BOOTSTRAP_SERVERS": ""}),
        ):
            try:
                program.main(words, prog_name="fuzz")
            except SystemExit as end:
                status = end.code
            except expected:
                pass
        if status not in (None, 0, 1, 2, 3):
            raise AssertionError(f"{words} ends with {status}")


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    target.__name__: target
    for target in (
        record,
        log,
        snapshot,
        subscription,
        version_1,
        properties,
        yaml,
        setting,
        reaper_yaml,
        connection_string,
        table_name,
        answer,
        row,
        headers,
        checkpoint,
        command_line,
    )
}
