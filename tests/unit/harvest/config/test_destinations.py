"""`destinations` in a configuration: what each key means for requests, and how they are treated."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.config import destinations as module
from harvest.config.destinations import DestinationConfig
from harvest.config.validation import validated
from harvest.core.dispatcher import Policy
from harvest.errors import ConfigurationError
from harvest.sinks import nats
from harvest.sinks.http import endpoint as http
from harvest.sinks.kafka import destination as kafka


def made(**given: Any) -> DestinationConfig:
    if not given.keys() & {"http", "nats", "kafka"}:
        given["http"] = {"uri": "http://h/"}
    return validated(DestinationConfig, given, "destinations.shop")


def refused(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        made(**given)
    return str(caught.value)


def endpoint(monkeypatch: pytest.MonkeyPatch, **given: Any) -> http.HttpEndpoint:
    """What requests to an HTTP destination are made of."""
    seen: list[http.HttpEndpoint] = []
    monkeypatch.setattr(http, "HttpSink", lambda endpoint, _: seen.append(endpoint))
    made(http={"uri": "https://h/{topic}", **given}).sink("g.outbox", {}, "{outbox}.{id}")
    return seen[0]


def test_by_default_a_destination_is_treated_as_the_dispatcher_does() -> None:
    assert made().policy() == Policy()


@pytest.mark.parametrize(
    ("given", "pauses_ms"),
    [
        ({"backoff_ms": 100, "max_backoff_ms": 1_000}, (100, 200, 400, 800, 1_000)),
        ({"backoff_ms": 100, "max_backoff_ms": 800}, (100, 200, 400, 800)),
        ({"backoff_ms": 1_000, "max_backoff_ms": 10}, (10,)),
        ({"backoff_ms": 30_000}, (30_000, 60_000)),
        ({"pauses_ms": [5, 7]}, (5, 7)),
    ],
)
def test_pauses_double_up_to_the_most(given: dict[str, Any], pauses_ms: tuple[int, ...]) -> None:
    assert made(**given).policy().pauses_ms == pauses_ms


def test_pauses_are_said_in_one_way() -> None:
    pauses = list(Policy().pauses_ms)
    assert "say two things" in refused(backoff_ms=100, pauses_ms=pauses)
    assert "give that, too" in refused(max_backoff_ms=100)
    assert "pauses_ms" in refused(pauses_ms=[])


def test_how_it_is_treated_reaches_the_dispatcher() -> None:
    given = {"concurrency": 3, "priority": 2, "rate_per_s": 1.5, "attempts": 4}
    given |= {"breaker_failures": 5, "breaker_open_ms": 6, "max_breaker_open_ms": 7}
    policy = made(**given, max_retry_after_ms=8).policy()
    assert {name: getattr(policy, name) for name in given} == given
    assert policy.max_retry_after_ms == 8


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_what_is_no_rate_is_refused(rate: float) -> None:
    """Without end, what may be sent by now would be no number: the leader would end with it."""
    assert "rate_per_s" in refused(rate_per_s=rate)


def test_a_batch_is_bounded_in_rows_and_bytes() -> None:
    batch = {"records": 7, "bytes": 900, "format": "values"}
    policy = made(http={"uri": "http://h/", "batch": batch}).policy()
    assert (policy.batch_records, policy.batch_bytes) == (7, 900)


@pytest.mark.parametrize("kinds", [{}, {"http": {"uri": "http://h/"}, "kafka": {}}])
def test_a_destination_is_of_one_kind(kinds: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="needs one kind"):
        validated(DestinationConfig, kinds, "destinations.shop")


@pytest.mark.parametrize(
    ("given", "statuses"),
    [
        (204, {204}),
        ("200-202", {200, 201, 202}),
        ([200, "301-302", " 404 "], {200, 301, 302, 404}),
        (None, set()),
        ([], set()),
    ],
)
def test_statuses_are_numbers_and_ranges(
    monkeypatch: pytest.MonkeyPatch, given: Any, statuses: set[int]
) -> None:
    made = endpoint(monkeypatch, expect=given, refuse=[422])
    assert made.expected == statuses
    assert made.refused == {422}
    made = endpoint(monkeypatch, refuse=given)
    assert made.expected == set(range(200, 300))
    assert made.refused == statuses


@pytest.mark.parametrize("given", ["20", "600", "200-", "a", [True]])
def test_what_is_no_status_is_named(given: Any) -> None:
    assert "no status" in refused(http={"uri": "http://h/", "expect": given})


@pytest.mark.parametrize("name", ["expect", "refuse"])
def test_statuses_that_go_down_are_named(name: str) -> None:
    """They would be none at all: each answer would be a failure."""
    said = refused(http={"uri": "http://h/", name: [204, "299-200"]})
    assert f"http.{name}: '299-200' has no status in it: write 200-299" in said


def test_a_key_of_no_certificate_is_named() -> None:
    """Without one, requests would go out as nobody's."""
    said = refused(http={"uri": "https://h/", "key_file": "our.key"})
    assert "key_file is 'our.key'" in said
    assert "no cert_file" in said
    made(http={"uri": "https://h/", "cert_file": "both.pem"})


def test_an_endpoint_is_what_was_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = endpoint(
        monkeypatch,
        method="PUT",
        headers={"X-Topic": "{topic}"},
        forward_headers=False,
        timeout_ms=2_500,
        idempotency_header="X-Id",
        ca_file="ca",
        cert_file="cert",
        key_file="key",
        sign=["whsec_old", "new"],
        batch={"format": "values"},
        cloudevents={"source": "/shop"},
    )
    assert (found.uri, found.method, found.timeout_ms) == ("https://h/{topic}", "PUT", 2_500)
    assert (found.headers, found.forward_headers) == ((("X-Topic", "{topic}"),), False)
    assert (found.ca_file, found.cert_file, found.key_file) == ("ca", "cert", "key")
    assert found.signature == http.Signature(("whsec_old", "new"))
    assert (found.batch, found.idempotency_header) == ("values", "X-Id")
    assert found.cloudevents is not None
    assert found.cloudevents.id.text == "{outbox}.{id}"


def test_an_event_is_said_as_it_was_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    events: dict[str, Any] = {"source": "/shop", "type": "made.{topic}", "time": "{header.at}"}
    events |= {"mode": "structured", "content_type": "text/plain"}
    found = endpoint(monkeypatch, cloudevents=events).cloudevents
    assert found is not None
    assert found.time is not None
    texts = (found.source.text, found.type.text, found.time.text)
    assert texts == ("/shop", "made.{topic}", "{header.at}")
    assert (found.mode, found.content_type) == ("structured", "text/plain")
    found = endpoint(monkeypatch, cloudevents={"source": "/shop"}).cloudevents
    assert found is not None
    assert (found.type.text, found.time) == ("{topic}", None)
    assert (found.mode, found.content_type) == ("binary", "application/json")


def test_a_nats_endpoint_is_what_was_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(nats, "NatsSink", lambda *given: seen.append(given))
    given: dict[str, Any] = {"servers": ["nats://a", "nats://b"], "subject": "s.{key}"}
    given |= {"stream": "S", "forward_headers": False, "timeout_ms": 5}
    given |= {"credentials_file": "c", "ca_file": "ca"}
    made(nats=given).sink("g.outbox", {}, "{id}")
    made(nats={"servers": ["n"]}).sink("g.outbox", {}, "{id}")
    assert seen == [
        (
            nats.NatsEndpoint(("nats://a", "nats://b"), "s.{key}", "S", False, 5, "c", "ca"),
            "g.outbox",
        ),
        (nats.NatsEndpoint(("n",), "{topic}"), "g.outbox"),
    ]


def test_one_secret_may_be_given_and_none_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint(monkeypatch, sign="s").signature == http.Signature(("s",))
    assert endpoint(monkeypatch).signature is None
    assert "sign" in refused(http={"uri": "http://h/", "sign": ""})
    assert "sign" in refused(http={"uri": "http://h/", "sign": ["a", ""]})


def test_settings_of_a_kafka_go_before_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(kafka, "KafkaDestination", lambda *given: seen.append(given))
    given = {"topic": "{key}", "settings": {"bootstrap.servers": "there"}, "timeout_ms": 5}
    all_of_it = {"bootstrap.servers": "here", "linger.ms": 5}
    made(kafka=given).sink("g.outbox", all_of_it, "{id}")
    found, outbox = seen[0]
    assert outbox == "g.outbox"
    assert dict(found.settings) == {"bootstrap.servers": "there", "linger.ms": 5}
    assert (found.topic, found.timeout_ms, found.forward_headers) == ("{key}", 5, True)


@pytest.mark.parametrize(
    ("kind", "given", "builder", "extra"),
    [
        ("http", {"uri": "http://h/"}, "_http_sink", "http"),
        ("nats", {"servers": ["n"]}, "_nats_sink", "nats"),
    ],
)
def test_an_extra_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: str, given: dict[str, Any], builder: str, extra: str
) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'x'", name="x")

    monkeypatch.setattr(module, builder, missing)
    with pytest.raises(ConfigurationError, match=rf"x is missing: .*marshal-py\[{extra}\]"):
        made(**{kind: given}).sink("g.outbox", {}, "{id}")


@pytest.mark.parametrize(
    "given",
    [
        {"http": {"uri": "http://h/", "headers": {"Authorization": "hush"}}},
        {"http": {"uri": "http://h/", "sign": "hush"}},
        {"http": {"uri": "https://hooks.h/services/hush"}},
        {"nats": {"servers": ["nats://app:hush@n"]}},
        {"kafka": {"settings": {"sasl.password": "hush"}}},
    ],
)
def test_no_secret_is_shown(given: dict[str, Any]) -> None:
    assert "hush" not in repr(made(**given))
    assert "hush" not in refused(**given, attempts="many")


@pytest.mark.parametrize(
    ("http", "named"),
    [
        ({"headers": {"Authorization": "Bearer hush\n"}}, "the header 'Authorization' has control"),
        ({"headers": {"X": "hush\n{key}"}}, "the header 'X' has control characters"),
        ({"headers": {"X": "hu\0sh"}}, "the header 'X' has control characters"),
        ({"headers": {"X": "s{hush"}}, "the header 'X' cannot be read"),
        ({"headers": {"X": "s{hush}"}}, "the header 'X' has a placeholder"),
        ({"cloudevents": {"source": "s", "content_type": "a/b\n"}}, "cloudevents.content_type"),
        ({"cloudevents": {"source": "s{hush"}}, "cloudevents.source cannot be read"),
    ],
)
def test_a_text_that_no_request_can_have_is_refused_at_the_start_and_not_shown(
    http: dict[str, Any], named: str
) -> None:
    """A secret that was made of a file ends with the end of its line: each row would be refused."""
    with pytest.raises(ConfigurationError) as caught:
        made(http={"uri": "http://h/", **http}).sink("g.outbox", {}, "{id}")
    assert named in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("https://bob:pa/hush@h/", "percent-encoded"),
        ("https://bob:hush/pa@h/", "percent-encoded"),
        ("https://bob:hush #@h/", "percent-encode"),
        ("https://bob:hüsch-hush@h/", "percent-encode"),
        ("https://bob:{topic}hush@h/", "a host without placeholders"),
        ("bob:hush@h/", "http:// or https://"),
        ("https://bob:hush@h/", "credentials in it"),
        ("https://h/x?token=hush y", "percent-encode"),
    ],
)
def test_a_uri_that_cannot_be_read_is_not_shown(uri: str, said: str) -> None:
    """There may be a password in it, and what cannot be read may be in that."""
    with pytest.raises(ConfigurationError, match=said) as caught:
        made(http={"uri": uri}).sink("g.outbox", {}, "{id}")
    assert "hush" not in str(caught.value)


def test_a_header_may_have_spaces_tabs_and_umlauts() -> None:
    text = " Bearer\tgrün {{x}} {key} "
    made(http={"uri": "http://h/", "headers": {"X": text}}).sink("g.outbox", {}, "{id}")
