"""The arguments of `Consumer` that `AsyncConsumer` passes on, for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from marshal_py.client.options import ClientOptions
from marshal_py.consumer.callbacks import OnPartition
from marshal_py.consumer.handlers.schedule import Ordering
from marshal_py.consumer.options import Mode, OnMissing, Start
from marshal_py.protocol.slots import Sharing

if TYPE_CHECKING:
    from marshal_py.consumer.handlers.middleware import Middleware
    from marshal_py.consumer.handlers.options import Executor, OnFailure, Retry, Stuck

__all__ = ["ConsumerArguments", "RunArguments"]


class ConsumerArguments(ClientOptions, total=False):
    """Those of `Consumer`. See there."""

    topics: str | Iterable[str]
    pattern: str | None
    group_id: str | None
    mode: Mode
    start: Start
    on_missing: OnMissing
    auto_ack: bool
    claim_entire_topic: bool
    sharing: Sharing
    slots: int
    max_deliveries: int | None
    dead_letter_topic: str | None
    max_claims: int | None
    weight: float
    by_lag: bool
    labels: Mapping[str, str] | None
    prefer: Iterable[str]
    batch_size: int
    greedy: bool
    keep_on_close: bool
    mirror_offsets: bool | str
    kafka: Mapping[str, Any] | None
    key_deserializer: Callable[..., Any] | None
    value_deserializer: Callable[..., Any] | None
    discovery_interval_s: float
    settle_ms: int
    on_assigned: OnPartition | None
    on_revoked: OnPartition | None


class RunArguments(TypedDict, total=False):
    """Those of `Consumer.run`. See there."""

    workers: int
    ordering: Ordering
    executor: Executor | None
    batch_size: int | None
    retry: Retry | Mapping[str, Retry] | None
    on_failure: OnFailure
    not_retriable: type[BaseException] | tuple[type[BaseException], ...]
    dead_letter_topic: str
    max_buffered: int
    max_buffered_bytes: int
    max_ahead: int
    stuck_after_s: float | None
    on_stuck: Callable[[Stuck], None] | None
    drain_timeout_s: float
    middleware: Sequence[Middleware]
    filter: Callable[[Any], object] | None
