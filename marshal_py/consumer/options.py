"""What a `Consumer` is made from: its options checked, its client made, before any network."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from marshal_py.client.marshal import Claim, Marshal
from marshal_py.client.suggestions import did_you_mean
from marshal_py.consumer.dead_letters import is_dead_letter_topic
from marshal_py.consumer.deserializers import Deserializers
from marshal_py.consumer.signatures import takes
from marshal_py.errors import ConfigurationError, NotInVersion1
from marshal_py.protocol.subscription import Subscription

__all__ = [
    "ConsumerOptions",
    "Mode",
    "OnMissing",
    "Start",
    "StartAt",
    "check",
    "check_by_ranges",
    "check_max_deliveries",
    "check_names",
    "check_prefer",
    "client_of",
    "start_at",
]

Mode: TypeAlias = Literal["at_least_once", "at_most_once"]
Start: TypeAlias = Literal["earliest", "latest"] | datetime | timedelta | int
OnMissing: TypeAlias = Literal["earliest", "latest", "stop"]


class StartAt(NamedTuple):
    """Where a group begins: at the first message, at the next one, or at a time.

    `ms`: since 1970; with kind "ago", before the moment at which the group begins.
    """

    kind: Literal["earliest", "latest", "time", "ago"]
    ms: int = 0


@dataclass(frozen=True)
class ConsumerOptions:
    """Everything that a `Consumer` was told about itself, checked. See there.

    `mirror_group`: the Kafka consumer group that is to have the positions, too; None: none.
    """

    subscription: Subscription
    mode: Mode
    start: StartAt
    on_missing: OnMissing
    auto_ack: bool
    batch_size: int
    greedy: bool
    keep_on_close: bool
    mirror_group: str | None
    kafka: Mapping[str, Any] | None
    deserializers: Deserializers
    discovery_interval_s: float
    settle_ms: int
    max_deliveries: int | None
    dead_letter_topic: str | None
    on_assigned: Callable[[Claim], object] | None
    on_revoked: Callable[[Claim], object] | None

    def __post_init__(self) -> None:
        for name in ("on_assigned", "on_revoked"):
            if (function := getattr(self, name)) is not None:
                takes(name, function, "(claim)", (1,))


_MOST: Final = 1_000_000_000
"""Seconds or milliseconds: more than this cannot be waited for."""
_LATEST_MS: Final = 253_402_300_800_000
"""The end of the year 9999, and less than microseconds or nanoseconds of today."""
_NOT_IN_TOPICS: Final = re.compile(r"[^a-zA-Z0-9._-]")
_NOT_IN_TEXTS: Final = re.compile("[\ud800-\udfff]")


def _a_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and 0 <= value <= _MOST


def _a_text(value: object) -> bool:
    return isinstance(value, str) and not _NOT_IN_TEXTS.search(value)


_EXPECTED: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "dead_letter_topic": (
        "the name of a topic, or None",
        lambda value: value is None or is_dead_letter_topic(value),
    ),
    "pattern": (
        "a regular expression, which is text, or None",
        lambda value: value is None or _a_text(value),
    ),
    "max_claims": (
        "a whole number, 0 to 2**63 - 1, or None for no limit",
        lambda value: value is None or (type(value) is int and 0 <= value < 2**63),
    ),
    "topics": (
        "a name, or several",
        lambda value: isinstance(value, Iterable) and not isinstance(value, bytes),
    ),
    "mirror_offsets": (
        "True, False, or the name of a Kafka consumer group",
        lambda value: isinstance(value, bool) or (_a_text(value) and value != ""),
    ),
    **dict.fromkeys(
        ("auto_ack", "claim_entire_topic", "by_lag", "greedy", "keep_on_close"),
        ("True or False", lambda value: isinstance(value, bool)),
    ),
    "labels": (
        "a mapping of texts, or None",
        lambda value: (
            value is None
            or (
                isinstance(value, Mapping)
                and all(_a_text(name) and _a_text(text) for name, text in value.items())
            )
        ),
    ),
    "kafka": ("a mapping, or None", lambda value: value is None or isinstance(value, Mapping)),
    **dict.fromkeys(
        ("key_deserializer", "value_deserializer"),
        ("a function, or None", lambda value: value is None or callable(value)),
    ),
    **dict.fromkeys(("discovery_interval_s", "settle_ms"), (f"a number, 0 to {_MOST}", _a_number)),
}


def check(**arguments: object) -> None:
    """Raise `ConfigurationError` for an argument that is of the wrong kind."""
    for name, value in arguments.items():
        expected, good = _EXPECTED[name]
        if not good(value):
            raise ConfigurationError(f"{name} = {value!r} must be {expected}")


def check_prefer(prefer: object) -> tuple[str, ...]:
    """Return its patterns. Raises `ConfigurationError`."""
    if isinstance(prefer, Iterable) and not isinstance(prefer, str | bytes):
        patterns = tuple(prefer)
        if all(map(_a_text, patterns)):
            return patterns
    raise ConfigurationError(f"prefer = {prefer!r} must be several patterns, each a text")


def check_max_deliveries(max_deliveries: int | None) -> None:
    """Raise `ConfigurationError` for a number that cannot be."""
    if max_deliveries is not None and (type(max_deliveries) is not int or max_deliveries < 2):
        raise ConfigurationError(
            f"max_deliveries = {max_deliveries!r} must be a whole number, 2 or more, or None"
        )


def check_by_ranges(**arguments: tuple[object, object]) -> None:
    """Raise `ConfigurationError` for what plays no part where ranges are shared.

    Each argument: what it is, and what it is by default.
    """
    for name, (value, default) in arguments.items():
        if value != default:
            raise ConfigurationError(
                f"{name} = {value!r}: with sharing='ranges', members take messages as they get "
                f"them done, and no partitions; leave {name} out, or share by partitions or keys"
            )


def check_topics(names: Iterable[str]) -> None:
    """Raise `ConfigurationError` for a name that no topic of Kafka can have."""
    for name in names:
        if isinstance(name, str) and (strange := _NOT_IN_TOPICS.search(name)):
            raise ConfigurationError(
                f"topics: {name!r} has {strange.group()!r}, and names of topics have letters, "
                "digits, '.', '_' and '-' alone; several topics are a list, and a regular "
                "expression is given as `pattern`"
            )


def check_retries(retry: object, subscription: Subscription) -> None:
    """Raise `ConfigurationError` for a topic with a `Retry` of its own that is not consumed."""
    if not isinstance(retry, Mapping) or subscription.pattern is not None:
        return
    for topic in retry:
        if topic not in subscription.topics:
            raise ConfigurationError(
                f"retry: {topic!r} is none of the topics that are consumed: consume it, or take it "
                f"out{did_you_mean(str(topic), subscription.topics)}"
            )


def check_names(settings: Mapping[str, object], own: Callable[..., None]) -> None:
    """Raise `TypeError` for a name that neither `own` nor `Marshal` takes as an argument."""
    of_marshal = set(inspect.signature(Marshal.__init__).parameters)
    unknown = [name for name in settings if name not in of_marshal]
    if unknown:
        known = sorted(of_marshal | set(inspect.signature(own).parameters))
        hint = did_you_mean(unknown[0], known, most=1)
        raise TypeError(f"Consumer has no argument {unknown[0]!r}{hint}")


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
        if wanted.sharing != "partitions":
            raise NotInVersion1(
                "sharing='keys' and sharing='ranges': version 1 clients (wire='text') claim whole "
                "partitions, and would read the same messages"
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


def start_at(start: Start) -> StartAt:
    """Return where `start` says to begin. Raises `ConfigurationError`."""
    if start == "earliest" or start == "latest":
        return StartAt("earliest" if start == "earliest" else "latest")
    if isinstance(start, datetime):
        with suppress(ValueError, OverflowError):  # by the local time zone outside years 1 to 9999
            # Below 0 are words of Kafka's: -1 is the end.
            return StartAt("time", max(0, int(start.timestamp() * 1000)))
    if isinstance(start, timedelta) and start >= timedelta():
        return StartAt("ago", start // timedelta(milliseconds=1))
    if type(start) is int and 0 <= start <= _LATEST_MS:
        return StartAt("time", start)
    raise ConfigurationError(
        f"start = {start!r} must be 'earliest', 'latest', a datetime, a timedelta of 0 or more (so "
        "long ago), or milliseconds since 1970, before the year 10000"
    )
