"""HTTP destinations against a real server that fails in every way."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from harvest.config.destinations import CloudEventsConfig
from harvest.config.load import parse
from harvest.core.dispatcher import STANDARD_WEBHOOKS_MS, Outcome
from harvest.core.envelope import CloudEvents
from harvest.core.row import Row
from harvest.errors import ConfigurationError
from harvest.sinks.http.deadline import DeadlineBackend
from harvest.sinks.http.endpoint import HttpEndpoint, HttpSink, Signature, retry_after_ms
from tests.support.consumers import until
from tests.support.http_server import HttpServer, http_server

TIMEOUT_MS = 400
PATIENT_MS = 20_000


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server() as made:
        yield made


def row(**changes: Any) -> Row:
    return Row(7, "orders", b"k/1 ?", b'{"n": 1}')._replace(**changes)


def send(server: HttpServer, path: str = "/x", sent: Row | None = None, **changes: Any) -> Outcome:
    sink = HttpSink(HttpEndpoint(**{"uri": server.url + path, "timeout_ms": PATIENT_MS, **changes}))
    try:
        return sink.send(sent or row(), "shop.7", 3)
    finally:
        sink.close()


def test_a_request_is_made_as_configured(server: HttpServer) -> None:
    sent = row(
        header_keys=(b"X-Trace", b"Host", b"AUTHORIZATION"), header_values=(b"1", b"2", b"3")
    )
    headers = (("Authorization", "Bearer t"), ("X-Topic", "{topic}"))
    path = "/{topic}/{key}?id={id}"
    outcome = send(server, path, sent, method="put", headers=headers)
    assert outcome == Outcome(204)
    (request,) = server.requests
    assert (request.method, request.target) == ("PUT", "/orders/k%2F1%20%3F?id=7")
    assert request.body == b'{"n": 1}'
    assert request.headers["host"] == f"localhost:{server.port}"
    assert request.headers["idempotency-key"] == "shop.7"
    assert request.headers["harvest-epoch"] == "3"
    assert request.headers["authorization"] == "Bearer t"
    assert (request.headers["x-topic"], request.headers["x-trace"]) == ("orders", "1")


@pytest.mark.parametrize(
    ("path", "target"), [("", "/"), ("/?a={id}", "/?a=7"), ("/a?b", "/a?b"), ("/{{{id}}}", "/{7}")]
)
def test_targets(server: HttpServer, path: str, target: str) -> None:
    sink = HttpSink(HttpEndpoint(f"http://LOCALHOST:{server.port:06}{path}"))
    assert sink.send(row(), "k", 1).error is None
    sink.close()
    assert server.requests[0].target == target


def test_a_tombstone_has_no_body_and_headers_may_stay_behind(server: HttpServer) -> None:
    sent = row(value=None, header_keys=(b"X-Trace",), header_values=(b"1",))
    assert send(server, "/x", sent, method="DELETE", forward_headers=False).error is None
    (request,) = server.requests
    assert request.headers["content-length"] == "0"
    assert "x-trace" not in request.headers


@pytest.mark.parametrize("secret", ["plain", "whsec_" + base64.b64encode(b"plain").decode()])
def test_a_signature_can_be_verified(server: HttpServer, secret: str) -> None:
    assert send(server, signature=Signature((secret,))).error is None
    headers = server.requests[0].headers
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + b'{"n": 1}'
    digest = hmac.new(b"plain", signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()


@pytest.mark.parametrize("padding", ["", "="])
def test_the_library_of_standard_webhooks_verifies_what_is_signed(
    server: HttpServer, padding: str
) -> None:
    webhooks = pytest.importorskip("standardwebhooks")
    old = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcde").decode().rstrip("=")
    new = "whsec_" + base64.b64encode(b"another secret, of 32 bytes or so").decode()
    assert send(server, signature=Signature((old + padding, new))).error is None
    (request,) = server.requests
    assert "." not in request.headers["webhook-id"]
    for secret in (old, new):
        webhooks.Webhook(secret).verify(request.body, request.headers)
    with pytest.raises(webhooks.WebhookVerificationError):
        webhooks.Webhook("whsec_AAAA").verify(request.body, request.headers)


def test_an_id_with_dots_is_signed_without_them(server: HttpServer) -> None:
    sink = HttpSink(HttpEndpoint(f"{server.url}/x", signature=Signature(("s",))))
    assert sink.send(row(), "orders.outbox.7", 1).error is None
    sink.close()
    headers = server.requests[0].headers
    assert headers["webhook-id"] == "orders_outbox_7"
    assert headers["idempotency-key"] == "orders.outbox.7"


@pytest.mark.parametrize("status", [200, 204, 299])
def test_statuses_that_are_expected(server: HttpServer, status: int) -> None:
    server.script["/x"] = status
    assert send(server) == Outcome(status)


@pytest.mark.parametrize(
    ("status", "unavailable", "lasting"),
    [
        (301, False, False),
        (400, False, True),
        (404, False, False),
        (422, False, True),
        (429, True, False),
        (500, False, False),
        (503, True, False),
    ],
)
def test_statuses_that_are_failures(
    server: HttpServer, status: int, unavailable: bool, lasting: bool
) -> None:
    server.script["/x"] = status
    outcome = send(server)
    assert outcome.status == status
    assert (outcome.unavailable, outcome.lasting) == (unavailable, lasting)
    assert f"HTTP {status}" in str(outcome.error)


def test_what_counts_as_success_can_be_configured(server: HttpServer) -> None:
    server.script["/x"] = 409
    assert send(server, expected=frozenset({409})).error is None
    server.script["/x"] = 200
    assert send(server, expected=frozenset({201})).error == "HTTP 200"


def test_a_redirect_is_not_followed(server: HttpServer) -> None:
    answer = f"HTTP/1.1 302 Go\r\nLocation: {server.url}/other\r\nContent-Length: 0\r\n\r\n"
    server.script["/x"] = answer.encode()
    assert "redirects are not followed" in str(send(server).error)
    assert [request.target for request in server.requests] == ["/x"]


def test_the_answer_is_part_of_the_error(server: HttpServer) -> None:
    body = "no\x07 such ördér ".encode() * 100
    server.script["/x"] = b"HTTP/1.1 500 Bad\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    error = str(send(server).error)
    assert error.startswith("HTTP 500: no such ördér no such")
    assert len(error) < 250


@pytest.mark.parametrize("what", ["hang", "slow headers"])
def test_a_server_that_takes_its_time(server: HttpServer, what: str) -> None:
    server.script["/x"] = what
    outcome = send(server, timeout_ms=TIMEOUT_MS)
    assert outcome.unavailable
    assert outcome.status is None
    assert "no answer within 400 ms" in str(outcome.error)


def test_a_slow_body_does_not_hold_up_what_its_status_has_decided(server: HttpServer) -> None:
    server.script["/x"] = "slow body"
    outcome = send(server, timeout_ms=TIMEOUT_MS)
    assert outcome.status == 500
    server.script["/x"] = "large body"
    assert send(server) == Outcome(200)


@pytest.mark.parametrize(
    "what",
    ["reset", "close", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le", b"\x00" * 2_000],
)
def test_answers_that_are_none(server: HttpServer, what: object) -> None:
    server.script["/x"] = what
    outcome = send(server)
    assert outcome.status is None
    assert outcome.unavailable
    assert outcome.error


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        outcome = send(HttpServer(free.getsockname()[1]))
    assert outcome.unavailable
    assert "ConnectError" in str(outcome.error)


def test_a_host_without_a_name() -> None:
    sink = HttpSink(HttpEndpoint("http://nowhere.invalid/"))
    assert sink.send(row(), "k", 1).unavailable


@pytest.mark.parametrize(
    "sent",
    [
        row(key=b"\xff"),
        row(key=b".."),
        row(header_keys=(b"a b",), header_values=(b"",)),
        row(header_keys=(b"a",), header_values=(b"x\r\nEvil: 1",)),
    ],
)
def test_rows_of_which_no_request_can_be_made(server: HttpServer, sent: Row) -> None:
    outcome = send(server, "/{key}", sent)
    assert outcome.lasting
    assert not outcome.unavailable
    assert server.requests == []


def test_retry_after(server: HttpServer) -> None:
    answer = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    server.script["/x"] = answer
    assert send(server).retry_after_ms == 7_000
    date = [(b"retry-after", b"Thu, 01 Jan 1970 00:01:00 GMT")]
    assert retry_after_ms(date, 50.0) == 10_000
    assert retry_after_ms(date, 90.0) == 0
    assert retry_after_ms([], 0.0) == 0
    server.script["/x"] = answer.replace(b"503", b"500")
    assert send(server).retry_after_ms == 7_000


def test_an_endpoint_that_is_gone(server: HttpServer) -> None:
    server.script["/x"] = 410
    assert send(server).gone
    assert not send(server, expected=frozenset({410})).gone
    assert not send(server, refused=frozenset({410})).gone


def events(**changes: Any) -> CloudEvents:
    given = {"source": "/shop", "type": "{topic}", "time": "2026-01-31T12:00:0{id}Z", **changes}
    return CloudEventsConfig(**given).cloudevents("{outbox}.{id}", "shop")


def test_a_batch_is_one_request_whose_key_is_made_of_its_rows(server: HttpServer) -> None:
    rows = [
        (row(header_keys=(b"h",), header_values=(b"1",)), "shop.7"),
        (row(id=8, key=b"\xff", value=b"\xfe"), "shop.8"),
        (row(id=9, value=None), "shop.9"),
    ]
    endpoint = HttpEndpoint(server.url + "/b", timeout_ms=PATIENT_MS, batch="records")
    sink = HttpSink(endpoint)
    assert sink.send_batch(rows, 3) == Outcome(204)
    assert sink.send_batch(rows, 3) == Outcome(204)
    assert sink.send(row(value=b"1"), "shop.7", 3) == Outcome(204)
    sink.close()
    first, again, alone = server.requests
    assert json.loads(first.body) == [
        {
            "id": "shop.7",
            "topic": "orders",
            "key": "k/1 ?",
            "headers": {"h": "1"},
            "value": {"n": 1},
        },
        {
            "id": "shop.8",
            "topic": "orders",
            "key_base64": "/w==",
            "headers": {},
            "value_base64": "/g==",
        },
        {"id": "shop.9", "topic": "orders", "key": "k/1 ?", "headers": {}, "value": None},
    ]
    assert first.headers["content-type"] == "application/json"
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert first.headers["idempotency-key"] != alone.headers["idempotency-key"]
    assert [one["value"] for one in json.loads(alone.body)] == [1]


def test_a_batch_of_values_takes_json_alone(server: HttpServer) -> None:
    sink = HttpSink(HttpEndpoint(server.url + "/b", timeout_ms=PATIENT_MS, batch="values"))
    rows = [(row(value=b'{"n": 1.10}'), "a"), (row(value=b"NaN"), "b")]
    assert sink.send_batch(rows[:1], 1) == Outcome(204)
    assert sink.send_batch(rows, 1).lasting
    sink.close()
    assert [request.body for request in server.requests] == [b'[{"n": 1.10}]']


def test_requests_are_cloudevents(server: HttpServer) -> None:
    sent = row(topic="b\u00fc cher", header_keys=(b"x",), header_values=(b"1",))
    assert send(server, "/x", sent, cloudevents=events()) == Outcome(204)
    structured = events(mode="structured")
    assert send(server, "/x", sent, cloudevents=structured) == Outcome(204)
    assert send(server, "/x", sent, cloudevents=structured, batch="values") == Outcome(204)
    binary, one, many = server.requests
    assert binary.body == b'{"n": 1}'
    said = {name: its for name, its in binary.headers.items() if name.startswith("ce-")}
    assert said == {
        "ce-specversion": "1.0",
        "ce-id": "shop.7",
        "ce-source": "/shop",
        "ce-type": "b%C3%BC%20cher",
        "ce-time": "2026-01-31T12:00:07Z",
    }
    assert (binary.headers["content-type"], binary.headers["x"]) == ("application/json", "1")
    event = {
        "specversion": "1.0",
        "id": "shop.7",
        "source": "/shop",
        "type": "b\u00fc cher",
        "time": "2026-01-31T12:00:07Z",
        "datacontenttype": "application/json",
        "data": {"n": 1},
    }
    assert (json.loads(one.body), json.loads(many.body)) == (event, [event])
    assert one.headers["content-type"].startswith("application/cloudevents+json")
    assert many.headers["content-type"].startswith("application/cloudevents-batch+json")
    wrong = events(time="{topic}")
    assert "write 2026-01-31T12:00:00Z" in str(send(server, "/x", row(), cloudevents=wrong).error)


def test_a_batch_has_no_placeholders_of_a_row() -> None:
    with pytest.raises(ConfigurationError, match="placeholders"):
        HttpSink(HttpEndpoint("http://x/{key}", batch="records"))


def test_connections_are_kept_and_made_anew(server: HttpServer) -> None:
    server.script["/x"] = [204, 204, b"HTTP/1.1 204 No\r\nConnection: close\r\n\r\n", "close", 204]
    sink = HttpSink(HttpEndpoint(server.url + "/x", timeout_ms=PATIENT_MS))
    outcomes = [sink.send(row(), "k", 1).error is None for _ in range(6)]
    sink.close()
    assert outcomes == [True, True, True, False, True, True]
    connections = [request.connection for request in server.requests]
    assert connections[0] == connections[1] == connections[2]
    assert len(set(connections)) == 3


@pytest.mark.parametrize("name", [b"Content-Length", b"transfer-encoding", b"Connection", b"TE"])
def test_a_header_of_a_row_does_not_say_where_its_request_ends(
    server: HttpServer, name: bytes
) -> None:
    """What is behind it would be a request of its own, which nobody has configured."""
    smuggled = b"0\r\n\r\nPOST /admin HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
    value = b"0" if name == b"Content-Length" else b"chunked"
    sent = row(value=smuggled, header_keys=(name,), header_values=(value,))
    assert send(server, sent=sent) == Outcome(204)
    (request,) = server.requests
    assert (request.target, request.body) == ("/x", smuggled)
    assert request.headers.get(name.decode().lower()) != value.decode()


def test_a_header_of_a_row_stands_in_for_none_of_ours(server: HttpServer) -> None:
    """As when a row was made of a request that somebody else had signed."""
    ours = "Webhook-Id webhook-signature webhook-timestamp harvest-EPOCH idempotency-key user-agent"
    names = tuple(ours.encode().split())
    sent = row(header_keys=names, header_values=(b"theirs",) * len(names))
    assert send(server, sent=sent, signature=Signature(("s",))) == Outcome(204)
    assert send(server, sent=sent) == Outcome(204)
    signed, unsigned = (request.all_headers for request in server.requests)
    for name in names:
        (its,) = [value for key, value in signed if key == name.decode().lower()]
        assert its != "theirs"
    assert dict(unsigned)["webhook-signature"] == "theirs", "nothing of ours has that name"


def test_a_user_agent_that_is_given_is_the_only_one(server: HttpServer) -> None:
    assert send(server, headers=(("User-Agent", "shop"),)) == Outcome(204)
    (request,) = server.requests
    assert [v for k, v in request.all_headers if k == "user-agent"] == ["shop"]


def test_many_threads_use_one_sink(server: HttpServer) -> None:
    sink = HttpSink(HttpEndpoint(server.url + "/x", timeout_ms=PATIENT_MS))
    outcomes: list[Outcome] = []

    def work() -> None:
        outcomes.extend([sink.send(row(), "k", 1) for _ in range(20)])

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert outcomes == [Outcome(204)] * 160


# --- TLS ---


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def tls(ca: trustme.CA, name: str, *, ask: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(name).configure_cert(context)
    if ask:
        ca.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_tls(ca: trustme.CA, tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(ca_file)
    with http_server(tls(ca, "localhost")) as server:
        assert send(server, ca_file=str(ca_file)) == Outcome(204)
        stranger = send(server)
        assert stranger.unavailable
        assert "CERTIFICATE_VERIFY_FAILED" in str(stranger.error)
    with http_server(tls(ca, "elsewhere.example")) as server:
        assert "CERTIFICATE_VERIFY_FAILED" in str(send(server, ca_file=str(ca_file)).error)


def test_a_certificate_of_our_own(ca: trustme.CA, tmp_path: Path) -> None:
    ca_file, cert_file, key_file = (tmp_path / name for name in ("ca", "cert", "key"))
    ca.cert_pem.write_to_path(ca_file)
    ours = ca.issue_cert("client@shop.example")
    ours.cert_chain_pems[0].write_to_path(cert_file)
    ours.private_key_pem.write_to_path(key_file)
    with http_server(tls(ca, "localhost", ask=True)) as server:
        files: dict[str, Any] = {"cert_file": str(cert_file), "key_file": str(key_file)}
        assert send(server, ca_file=str(ca_file), **files) == Outcome(204)
        assert send(server, ca_file=str(ca_file)).unavailable


@pytest.mark.parametrize("secure", [False, True])
def test_a_request_that_is_under_way_breaks_off(
    ca: trustme.CA, tmp_path: Path, secure: bool
) -> None:
    """As its sink is closed: a leader that stops does not wait out all its timeouts."""
    ca_file = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(ca_file)
    with http_server(tls(ca, "localhost") if secure else None) as server:
        server.script["/x"] = "hang"
        endpoint = HttpEndpoint(server.url + "/x", timeout_ms=600_000, ca_file=str(ca_file))
        sink = HttpSink(endpoint)
        outcomes: list[Outcome] = []
        thread = threading.Thread(
            target=lambda: outcomes.append(sink.send(row(), "k", 1)), daemon=True
        )
        thread.start()
        until(lambda: bool(server.requests))
        sink.close()
        thread.join(30)
        (outcome,) = outcomes
        assert outcome.unavailable


def test_nothing_is_sent_over_a_connection_that_was_made_while_its_sink_was_closed(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = HttpSink(HttpEndpoint(server.url + "/x", timeout_ms=PATIENT_MS))
    connect = DeadlineBackend.connect_tcp

    def connect_and_close(self: DeadlineBackend, *address: Any) -> Any:
        stream = connect(self, *address)
        sink.close()
        return stream

    with monkeypatch.context() as patch:
        patch.setattr(DeadlineBackend, "connect_tcp", connect_and_close)
        outcome = sink.send(row(), "k", 1)
    assert outcome.unavailable
    assert "closed meanwhile" in str(outcome.error)
    assert not server.requests
    assert sink.send(row(), "k", 1) == Outcome(204)
    sink.close()


def test_tls_and_plain_text_do_not_meet(server: HttpServer, ca: trustme.CA) -> None:
    plain = HttpSink(HttpEndpoint(server.url.replace("http:", "https:"), timeout_ms=PATIENT_MS))
    assert plain.send(row(), "k", 1).unavailable
    with http_server(tls(ca, "localhost")) as secure:
        sink = HttpSink(HttpEndpoint(secure.url.replace("https:", "http:"), timeout_ms=1_000))
        assert sink.send(row(), "k", 1).unavailable


# --- Configuration ---

BASE = """
kafka: {bootstrap.servers: 'localhost:1'}
database: postgresql://localhost/shop
group: shop
destinations:
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  a: {}", "destinations.a: a destination needs one kind"),
        ("  a: {http: {uri: 'ftp://x/'}}", "write http:// or https://"),
        ("  a: {http: {uri: 'http://{key}/'}}", "a host without placeholders"),
        ("  a: {http: {uri: 'http://u:pw-secret@x/'}}", "credentials"),
        ("  a: {http: {uri: 'http://x/{nothing}'}}", "uri has a placeholder that is not known"),
        ("  a: {http: {uri: 'http://x/', method: 'A B'}}", "method is 'A B'"),
        ("  a: {http: {uri: 'http://x/', headers: {Host: y}}}", "'Host' is no header"),
        ("  a: {http: {uri: 'http://x/', headers: {harvest-epoch: '1'}}}", "'harvest-epoch' is no"),
        ("  a: {http: {uri: 'http://x/', headers: {idempotency-KEY: y}}}", "-KEY' is no header"),
        (
            "  a: {http: {uri: 'http://x/', headers: {Webhook-Id: y}, sign: s}}",
            "'Webhook-Id' is no header",
        ),
        (
            "  a: {http: {uri: 'http://x/', idempotency_header: Harvest-Epoch}}",
            "'Harvest-Epoch' is",
        ),
        (
            "  a: {http: {uri: 'http://x/', idempotency_header: webhook-id, sign: s}}",
            "'webhook-id' is no header",
        ),
        ("  a: {http: {uri: 'http://x/', expect: [20]}}", "20 is no status"),
        ("  a: {http: {uri: 'http://x/', sign: 'whsec_pw-secret'}}", "not base64"),
        ("  a: {http: {uri: 'https://x/', ca_file: /no/such/file}}", "certificates"),
        ("  a: {http: {uri: 'http://x/'}, concurency: 3}", "did you mean 'concurrency'"),
        ("  a: {http: {uri: 'http://x/'}, pauses_ms: [1], backoff_ms: 2}", "give one of them"),
        ("  a: {http: {uri: 'http://x/'}, max_backoff_ms: 2}", "bounds a backoff_ms"),
        ("  a: {http: {uri: 'http://x/'}, pauses_ms: []}", "destinations.a.pauses_ms"),
        ("  a: {http: {uri: 'http://x/'}, rate_per_s: 0}", "destinations.a.rate_per_s"),
        ("  a: {http: {uri: 'http://x/'}}\nroute: b", "no such destination"),
        ("  a: {http: {uri: 'http://x/'}}\nmode: range", "destinations need mode: mark"),
        ("  {}\nroute: b", "there are no destinations"),
    ],
)
def test_configurations_that_cannot_work(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(BASE + text)
    assert said in str(caught.value)
    assert "pw-secret" not in str(caught.value)


def test_a_configuration_that_works() -> None:
    text = "  a: {http: {uri: 'http://x/', expect: [200-202, 409], sign: pw-secret}, attempts: 3}"
    config = parse(BASE + text)
    assert "pw-secret" not in repr(config)
    assert config.destinations["a"].policy().attempts == 3
    http = config.destinations["a"].http
    assert http is not None
    assert http.expect == {200, 201, 202, 409}
    assert http.sign == ("pw-secret",)
    rotated = parse(BASE + text.replace("sign: pw-secret", "sign: [one, two]"))
    assert rotated.destinations["a"].http is not None
    assert rotated.destinations["a"].http.sign == ("one", "two")


def test_pauses_are_given_or_doubled_or_those_of_standard_webhooks() -> None:
    def pauses_ms(more: str) -> tuple[int, ...]:
        return (
            parse(BASE + f"  a: {{http: {{uri: 'http://x/'}}{more}}}")
            .destinations["a"]
            .policy()
            .pauses_ms
        )

    assert pauses_ms("") == STANDARD_WEBHOOKS_MS
    assert pauses_ms(", pauses_ms: [5, 60]") == (5, 60)
    assert pauses_ms(", backoff_ms: 100, max_backoff_ms: 500") == (100, 200, 400, 500)
    assert pauses_ms(", backoff_ms: 100_000") == (60_000,)
