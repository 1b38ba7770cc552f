"""What a `Consumer` is made from: its options checked, its client made, before any network."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias

from marshal_py.client import Marshal
from marshal_py.errors import ConfigurationError, NotInVersion1
from marshal_py.subscription import Subscription

__all__ = ["Mode", "Start", "client_of", "start_ms"]

Mode: TypeAlias = Literal["at_least_once", "at_most_once"]
Start: TypeAlias = Literal["earliest", "latest"] | datetime | int


def client_of(
    config: Mapping[str, Any] | str | Marshal,
    group_id: str | None,
    settings: dict[str, Any],
    subscription: Subscription,
    *,
    mode: Mode,
    greedy: bool,
) -> Marshal:
    """Return the client given, or make one. Raises `ConfigurationError`, `NotInVersion1`."""
    if isinstance(config, Marshal):
        if group_id is not None or settings:
            given = ", ".join([*(["group_id"] if group_id else []), *settings])
            raise ConfigurationError(
                f"{given}: this is a matter of the Marshal that was passed; set it there"
            )
        _check_wire(config.settings.wire, subscription, mode, greedy)
        if not config.settings.member and config.settings.wire != "text":
            raise ConfigurationError(
                "the Marshal of a consumer must be a member of its group: leave member=True"
            )
        return config
    if group_id is None:
        raise ConfigurationError("group_id is missing: the name of those who share the topics")
    for name in ("member", "member_metadata"):
        if name in settings:
            raise ConfigurationError(f"{name} is set by the consumer itself")
    wire = settings.get("wire", "msgpack")
    _check_wire(wire, subscription, mode, greedy)
    metadata = b"" if wire == "text" else subscription.encode()
    return Marshal(config, group_id=group_id, member_metadata=metadata, **settings)


def _check_wire(wire: str, wanted: Subscription, mode: Mode, greedy: bool) -> None:
    """Refuse what version 1 cannot give, and what only version 1 can (specs/INTEROP.md §4)."""
    if wire == "text":
        if mode == "at_most_once":
            raise NotInVersion1(
                "mode='at_most_once': version 1 clients (wire='text') ignore claims of "
                "messages, so two of them could deliver the same one"
            )
        if wanted.weight != 1 or wanted.by_lag or wanted.labels or wanted.prefer:
            raise NotInVersion1(
                "weight, by_lag, labels and prefer: version 1 (wire='text') has no members "
                "that could be told of them"
            )
    elif greedy:
        raise ConfigurationError(
            "greedy: members of version 2 share by themselves; it is for wire='text'"
        )


def start_ms(start: Start) -> int:
    """Return the offset or the time that `start` stands for: −2, −1, or milliseconds."""
    if start == "earliest":
        return -2
    if start == "latest":
        return -1
    if isinstance(start, datetime):
        return int(start.timestamp() * 1000)
    if type(start) is int and start >= 0:
        return start
    raise ConfigurationError(
        f"start = {start!r} must be 'earliest', 'latest', a datetime, or milliseconds since 1970"
    )
