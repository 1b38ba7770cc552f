"""The arguments of `Marshal` that are passed on by others, for type checkers."""

from __future__ import annotations

from typing import TypedDict

from marshal_py.protocol.wire import WireName

__all__ = ["ClientOptions"]


class ClientOptions(TypedDict, total=False):
    """What a `Consumer` passes on to its `Marshal`. See there."""

    client_id: str | None
    interval_ms: int | None
    margin_ms: int | None
    topic: str
    snapshot_topic: str | None
    create_topics: bool
    resume: bool
    cold_start_skew_ms: int | None
    connect_timeout_ms: int
    snapshot_every: int
    trim_log: bool
    gather_ms: int
    close_on_sigterm: bool
    wire: WireName
