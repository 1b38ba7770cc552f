"""What a consumer is told about itself: what cannot be is refused before any network."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from marshal_py import Consumer, Marshal
from marshal_py.consumer.handlers.options import Retry
from marshal_py.consumer.options import StartAt, check_retries, client_of, start_at
from marshal_py.errors import ConfigurationError, NotInVersion1
from marshal_py.protocol.subscription import Subscription

NOWHERE = "127.0.0.1:1"


def consumer(**settings: Any) -> Consumer:
    return Consumer(NOWHERE, **{"group_id": "g", "topics": "t", **settings})


@pytest.mark.parametrize(
    ("start", "at"),
    [
        ("earliest", StartAt("earliest")),
        ("latest", StartAt("latest")),
        (0, StartAt("time", 0)),
        (1_700_000_000_123, StartAt("time", 1_700_000_000_123)),
        (datetime(2026, 1, 1, tzinfo=UTC), StartAt("time", 1_767_225_600_000)),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), StartAt("time", 0)),
        (timedelta(0), StartAt("ago", 0)),
        (timedelta.max, StartAt("ago", timedelta.max // timedelta(milliseconds=1))),
        (timedelta(hours=2), StartAt("ago", 7_200_000)),
        (timedelta(microseconds=1_500), StartAt("ago", 1)),
    ],
)
def test_where_a_group_begins(start: Any, at: StartAt) -> None:
    assert start_at(start) == at


@pytest.mark.parametrize(
    "start",
    [
        *(-1, True, 1.5, timedelta(seconds=-1), "now", None, 2**70, 1_767_225_600_000_000),
        datetime.min,
    ],
)
def test_where_no_group_can_begin(start: Any) -> None:
    with pytest.raises(ConfigurationError, match="start = "):
        start_at(start)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"topics": b"t"}, "topics = b't' must be a name, or several"),
        ({"topics": "orders,payments"}, "several topics are a list"),
        ({"topics": ["orders "]}, "names of topics have letters"),
        ({"prefer": "orders"}, "prefer = 'orders' must be several patterns"),
        ({"prefer": [b"orders"]}, r"prefer = \[b'orders'\] must be several patterns"),
        ({"pattern": b"x"}, "pattern = b'x' must be a regular expression, which is text"),
        ({"pattern": "\ud800"}, "pattern = '.ud800' must be"),
        ({"topics": (), "pattern": ""}, "no topics"),
        ({"max_claims": 2**70}, "max_claims = 1180591620717411303424 must be a whole number"),
        ({"labels": {"zone": 1}}, "labels = {'zone': 1} must be a mapping of texts"),
        ({"dead_letter_topic": "{topic} dlq"}, "dead_letter_topic = '{topic} dlq' must be the"),
        ({"dead_letter_topic": ".."}, "dead_letter_topic = '..' must be the name of a topic"),
        ({"discovery_interval_s": float("inf")}, "discovery_interval_s = inf must be a number"),
        ({"auto_ack": "no"}, "auto_ack = 'no' must be True or False"),
        ({"mirror_offsets": ""}, "mirror_offsets = '' must be"),
        ({"settle_ms": -1}, "settle_ms = -1 must be a number, 0 to"),
        ({"settle_ms": True}, "settle_ms = True must be a number"),
        ({"labels": "zone=a"}, "labels = 'zone=a' must be a mapping"),
        ({"value_deserializer": "json"}, "value_deserializer = 'json' must be a function"),
        ({"on_assigned": lambda: None}, "on_assigned = .* is called with"),
        ({"group_id": None}, "group_id is missing"),
        ({"member": False}, "member is set by the consumer itself"),
        ({"greedy": True}, "it is for wire='text'"),
        ({"sharing": "ranges", "by_lag": True}, "leave by_lag out"),
        ({"sharing": "ranges", "max_deliveries": 1}, "max_deliveries = 1 must be a whole number"),
    ],
)
def test_what_is_of_the_wrong_kind_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        consumer(**settings)


def test_an_argument_that_nobody_knows_is_named_with_what_is_close() -> None:
    with pytest.raises(TypeError, match=r"no argument 'batchsize'.*'batch_size'"):
        consumer(batchsize=7)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "at_most_once"},
        {"sharing": "keys"},
        {"sharing": "ranges"},
        {"weight": 2},
        {"by_lag": True},
        {"labels": {"zone": "a"}},
        {"prefer": ["t"]},
    ],
)
def test_what_go_clients_would_not_heed_is_refused_beside_them(settings: dict[str, Any]) -> None:
    with pytest.raises(NotInVersion1):
        consumer(wire="text", **settings)


def test_a_retry_is_for_a_topic_that_is_consumed_or_may_be() -> None:
    retry = {"orders": Retry()}
    for subscription in (
        Subscription(frozenset({"orders"})),
        Subscription(frozenset(), pattern="ord.*"),
        Subscription(frozenset({"payments"}), pattern="ord.*"),
    ):
        check_retries(retry, subscription)
    with pytest.raises(ConfigurationError, match="'orders' is none of the topics"):
        check_retries(retry, Subscription(frozenset({"order"})))
    check_retries(Retry(), Subscription(frozenset({"order"})))


def made_of(config: Any, group_id: str | None = None, **settings: Any) -> Marshal:
    wanted = Subscription(frozenset({"t"}))
    return client_of(config, group_id, settings, wanted, mode="at_least_once", greedy=False)


def test_a_client_that_is_passed_has_its_settings_already() -> None:
    marshal = Marshal(NOWHERE, group_id="g")
    assert made_of(marshal) is marshal
    with pytest.raises(ConfigurationError, match="group_id, interval_ms: this is a matter of"):
        made_of(marshal, "g", interval_ms=500)
    with pytest.raises(ConfigurationError, match=r"^group_id: this is a matter of"):
        made_of(marshal, "h")
    with pytest.raises(ConfigurationError, match="leave member=True"):
        made_of(Marshal(NOWHERE, group_id="g", member=False))
    with pytest.raises(NotInVersion1, match="at_most_once"):
        Consumer(Marshal(NOWHERE, group_id="g", wire="text"), topics="t", mode="at_most_once")


def test_a_client_tells_the_others_what_it_wants_and_beside_go_nobody_is_told() -> None:
    told = made_of(NOWHERE, "g").settings.member_metadata
    assert Subscription.decode(told) == Subscription(frozenset({"t"}))
    assert made_of(NOWHERE, "g", wire="text").settings.member_metadata == b""


def test_with_one_marshal_one_consumer_runs_at_a_time() -> None:
    marshal = Marshal("127.0.0.1:1", group_id="g", client_id="c")
    first, second = (Consumer(marshal, topics=topic)._core for topic in ("t", "u"))
    first._attach()
    with pytest.raises(ConfigurationError, match="another consumer runs with this Marshal"):
        second._attach()
    second._detach()  # of what it never had
    with pytest.raises(ConfigurationError):
        second._attach()
    first._detach()
    second._attach()
