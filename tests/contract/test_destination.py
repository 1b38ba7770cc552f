"""What every destination promises, on real servers (harvest/core/interfaces/message_sink.py)."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from harvest.core.dispatcher import Outcome
from harvest.core.interfaces.message_sink import MessageSink
from harvest.core.row import Row
from harvest.errors import ConfigurationError
from harvest.sinks.http.endpoint import HttpEndpoint, HttpSink
from harvest.sinks.kafka.destination import KafkaDestination, KafkaEndpoint
from harvest.sinks.nats import NatsEndpoint, NatsSink
from marshal_py.embedded import EmbeddedKafka
from tests.support.consumers import until
from tests.support.http_server import HttpServer, http_server
from tests.support.kafka_reader import read_topic
from tests.support.nats_server import NatsServer, nats_server

TIMEOUT_MS = 20_000
FOR_EVER_MS = 600_000


class Bench(Protocol):
    """A receiver that works; sinks for it, for one that is not there, and one that is silent."""

    def sink(self) -> MessageSink: ...
    def absent(self) -> MessageSink: ...
    def silent(self, port: int) -> MessageSink: ...
    def received(self) -> list[tuple[bytes, str, str]]:
        """Body, idempotency key and the header ``x``, of everything in its order."""


class HttpBench:
    def __init__(self, server: HttpServer) -> None:
        self._server = server

    def sink(self) -> MessageSink:
        return HttpSink(HttpEndpoint(f"{self._server.url}/{{key}}", timeout_ms=TIMEOUT_MS))

    def absent(self) -> MessageSink:
        return HttpSink(HttpEndpoint("http://127.0.0.1:1/", timeout_ms=TIMEOUT_MS))

    def silent(self, port: int) -> MessageSink:
        return HttpSink(HttpEndpoint(f"http://127.0.0.1:{port}/", timeout_ms=FOR_EVER_MS))

    def received(self) -> list[tuple[bytes, str, str]]:
        return [
            (r.body, r.headers["idempotency-key"], r.headers.get("x", ""))
            for r in self._server.requests
        ]


class NatsBench:
    def __init__(self, server: NatsServer) -> None:
        self._server = server
        server.create_stream("S", "s.>")

    def sink(self, subject: str = "s.{key}", stream: str | None = "S") -> NatsSink:
        endpoint = NatsEndpoint((self._server.url,), subject, stream, timeout_ms=TIMEOUT_MS)
        return NatsSink(endpoint)

    def absent(self) -> MessageSink:
        return NatsSink(NatsEndpoint(("nats://127.0.0.1:1",), "s.x", timeout_ms=5_000))

    def silent(self, port: int) -> MessageSink:
        servers = (f"nats://127.0.0.1:{port}",)
        return NatsSink(NatsEndpoint(servers, "s.x", timeout_ms=FOR_EVER_MS))

    def received(self) -> list[tuple[bytes, str, str]]:
        return [
            (data, headers["Nats-Msg-Id"], headers.get("X", ""))
            for _, data, headers in self._server.messages("S")
        ]


class KafkaBench:
    def __init__(self, servers: str, topic: str) -> None:
        self._servers, self._topic = servers, topic

    def sink(self, **changes: Any) -> KafkaDestination:
        given = {"topic": self._topic, "timeout_ms": TIMEOUT_MS, **changes}
        return KafkaDestination(KafkaEndpoint({"bootstrap.servers": self._servers}, **given))

    def absent(self) -> MessageSink:
        nobody = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
        return KafkaDestination(KafkaEndpoint(nobody, "t", timeout_ms=2_000))

    def silent(self, port: int) -> MessageSink:
        servers = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
        return KafkaDestination(KafkaEndpoint(servers, "t", timeout_ms=FOR_EVER_MS))

    def records(self) -> list[Any]:
        return read_topic(self._servers, self._topic)

    def received(self) -> list[tuple[bytes, str, str]]:
        found = []
        for _, value, headers in self.records():
            given = {name: (text or b"").decode() for name, text in headers}
            found.append((value or b"", given["idempotency-key"], given.get("X", "")))
        return found


@pytest.fixture
def kafka_bench(kafka: EmbeddedKafka, kafka_topic: Callable[..., str]) -> KafkaBench:
    return KafkaBench(kafka.bootstrap_servers, kafka_topic(partitions=1))


@pytest.fixture
def nats_bench(tmp_path: Path) -> Iterator[NatsBench]:
    with nats_server(tmp_path) as server:
        if server is None:
            pytest.skip("nats-server is not installed")
        yield NatsBench(server)


@pytest.fixture(params=["http", "nats", pytest.param("kafka", marks=pytest.mark.kafka)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "http":
        with http_server() as server:
            yield HttpBench(server)
    else:
        yield request.getfixturevalue(f"{request.param}_bench")


def row(number: int, key: str = "k") -> Row:
    return Row(number, "t", key.encode(), b"v%d" % number, (b"X",), (b"h",))


def test_what_is_confirmed_has_arrived_in_the_order_of_the_calls(bench: Bench) -> None:
    sink = bench.sink()
    for number in range(5):
        assert sink.send(row(number), f"o.{number}", 1).error is None
    sink.close()
    assert bench.received() == [(b"v%d" % n, f"o.{n}", "h") for n in range(5)]


def test_many_threads_send_at_once(bench: Bench) -> None:
    sink = bench.sink()
    outcomes: list[Outcome] = []

    def send(thread: int) -> None:
        outcomes.extend([sink.send(row(n, f"k{thread}"), f"{thread}.{n}", 1) for n in range(5)])

    threads = [threading.Thread(target=send, args=(n,), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert [outcome.error for outcome in outcomes] == [None] * 30
    assert len({key for _, key, _ in bench.received()}) == 30


def test_a_tombstone_is_empty(bench: Bench) -> None:
    sink = bench.sink()
    assert sink.send(row(1)._replace(value=None), "o.1", 1).error is None
    sink.close()
    assert bench.received() == [(b"", "o.1", "h")]


def test_nobody_there_is_unavailable_and_no_error(bench: Bench) -> None:
    sink = bench.absent()
    outcome = sink.send(row(1), "o.1", 1)
    sink.close()
    assert outcome.error
    assert outcome.unavailable
    assert not outcome.lasting


def test_what_cannot_be_sent_is_said_without_trying(bench: Bench) -> None:
    sink = bench.sink()
    bad = row(1)._replace(header_keys=(b"\xff \x00",))
    outcome = sink.send(bad, "o.1", 1)
    assert outcome.lasting
    assert not outcome.unavailable
    sink.close()
    assert bench.received() == []


def test_what_is_under_way_ends_when_it_is_closed(bench: Bench) -> None:
    """A leader that stops does not wait out its timeouts, and leaves no thread that waits."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sink = bench.silent(listener.getsockname()[1])
        outcomes: list[Outcome] = []

        def send() -> None:
            outcomes.append(sink.send(row(1), "o.1", 1))

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        connection, _ = listener.accept()
        sink.close()
        thread.join(60)
        connection.close()
    (outcome,) = outcomes
    assert outcome.error
    assert outcome.unavailable


def test_it_can_be_closed_twice_and_without_use(bench: Bench) -> None:
    sink = bench.sink()
    sink.close()
    sink.close()


@pytest.mark.parametrize("kind", ["http", "nats"])
def test_a_key_that_is_no_text_fits_in_no_template(
    kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "nats":
        sink: MessageSink = request.getfixturevalue("nats_bench").sink()
    else:
        sink = HttpSink(HttpEndpoint("http://127.0.0.1:1/{key}"))
    assert sink.send(row(1)._replace(key=b"\xff"), "o.1", 1).lasting
    sink.close()


# --- Kafka alone ---


@pytest.mark.kafka
def test_records_have_their_keys_headers_and_tombstones(kafka_bench: KafkaBench) -> None:
    sink = kafka_bench.sink()
    assert sink.send(row(1), "o.1", 7) == Outcome(200)
    assert sink.send(row(2)._replace(value=None, key=b"\xff"), "o.2", 7) == Outcome(200)
    sink.close()
    ours = [("idempotency-key", b"o.1"), ("harvest-epoch", b"7")]
    first, second = kafka_bench.records()
    assert first == (b"k", b"v1", [("X", b"h"), *ours])
    assert second[:2] == (b"\xff", None)


@pytest.mark.kafka
def test_what_kafka_refuses_is_the_messages_fault(kafka_bench: KafkaBench) -> None:
    sink = kafka_bench.sink()
    outcome = sink.send(row(1)._replace(value=b"x" * 2_000_000), "o.1", 1)
    assert (outcome.lasting, outcome.unavailable) == (True, False)
    sink.close()
    sink = kafka_bench.sink(topic="no such topic")
    outcome = sink.send(row(1), "o.1", 1)
    sink.close()
    assert outcome.error
    assert not outcome.unavailable
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        KafkaDestination(KafkaEndpoint({}))


@pytest.mark.kafka
def test_who_shared_a_batch_with_what_is_too_large_is_not_refused(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    """A broker refuses a batch as a whole: for one of its records, or for all of them together."""
    topic = kafka_topic(partitions=1, config={"max.message.bytes": "3000"})
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "compression.type": "none",
        "linger.ms": 500,
    }
    sink = KafkaDestination(KafkaEndpoint(settings, topic, timeout_ms=TIMEOUT_MS))
    sizes = [1_000] * 6 + [6_000]
    outcomes: dict[int, Outcome] = {}

    def send(number: int) -> None:
        sent = row(number, f"k{number}")._replace(value=b"x" * sizes[number])
        outcomes[number] = sink.send(sent, f"o.{number}", 1)

    threads = [threading.Thread(target=send, args=(n,), daemon=True) for n in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert [outcomes[n].error for n in range(6)] == [None] * 6
    assert outcomes[6].lasting
    records = read_topic(kafka.bootstrap_servers, topic)
    assert {key for key, _, _ in records} == {b"k%d" % n for n in range(6)}
    assert len(records) == 6


# --- NATS alone ---


def test_jetstream_keeps_a_repeated_message_once(nats_bench: NatsBench) -> None:
    for _ in range(2):  # the second time as another leader, after a takeover
        sink = nats_bench.sink()
        assert sink.send(row(1), "o.1", 1).error is None
        sink.close()
    assert len(nats_bench.received()) == 1


def test_when_its_server_goes_another_one_is_connected_to(tmp_path: Path) -> None:
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        benches = []
        for name, stack in (("first", first), ("second", second)):
            (tmp_path / name).mkdir()
            server = stack.enter_context(nats_server(tmp_path / name))
            if server is None:
                pytest.skip("nats-server is not installed")
            benches.append((stack, server.url, NatsBench(server)))
        urls = tuple(url for _, url, _ in benches)
        sink = NatsSink(NatsEndpoint(urls, "s.{key}", "S", timeout_ms=TIMEOUT_MS))
        assert sink.send(row(1), "o.1", 1).error is None
        benches.sort(key=lambda its: not its[2].received())
        (used, *_), (_, _, other) = benches
        used.close()
        until(lambda: sink._client is not None and not sink._client.is_connected)
        assert sink.send(row(2), "o.2", 1).error is None
        assert other.received() == [(b"v2", "o.2", "h")]
        sink.close()


@pytest.mark.parametrize("value", [b"a\r\nNats-Msg-Id: o.2", b"a\nb", b"a\rb", b"\xff"])
def test_no_header_can_pass_for_another(value: bytes) -> None:
    sink = NatsSink(NatsEndpoint(("nats://127.0.0.1:1",), "s.x", timeout_ms=5_000))
    outcome = sink.send(row(1)._replace(header_values=(value,)), "o.1", 1)
    assert (outcome.lasting, outcome.unavailable) == (True, False)
    sink.close()


def test_no_header_of_a_row_tells_jetstream_what_to_do(nats_bench: NatsBench) -> None:
    sink = nats_bench.sink()
    names = (b"Nats-Expected-Stream", b"nats-msg-id", b"Nats-TTL", b"harvest-EPOCH", b"X")
    sent = row(1)._replace(header_keys=names, header_values=(b"another",) * len(names))
    assert sink.send(sent, "o.1", 7).error is None
    sink.close()
    ((_, _, headers),) = nats_bench._server.messages("S")
    ours = {"Nats-Msg-Id": "o.1", "Harvest-Epoch": "7", "Nats-Expected-Stream": "S"}
    assert headers == {**ours, "X": "another"}


def test_a_subject_that_no_stream_takes_is_the_messages_fault(nats_bench: NatsBench) -> None:
    sink = nats_bench.sink("elsewhere", None)
    outcome = sink.send(row(1), "o.1", 1)
    sink.close()
    assert "no stream takes the subject 'elsewhere'" in str(outcome.error)
    assert not outcome.unavailable


def test_another_stream_than_the_configured_is_an_error(nats_bench: NatsBench) -> None:
    sink = nats_bench.sink(stream="OTHER")
    outcome = sink.send(row(1), "o.1", 1)
    sink.close()
    assert "JetStream 400" in str(outcome.error)
    assert nats_bench.received() == []


@pytest.mark.parametrize("more", [0, 1_000_000])
def test_a_message_that_is_too_large_is_not_tried_again(nats_bench: NatsBench, more: int) -> None:
    """Its headers count, too: 1 MiB is what the server takes."""
    sink = nats_bench.sink()
    outcome = sink.send(row(1)._replace(value=b"x" * ((1 << 20) - 10 + more)), "o.1", 1)
    sink.close()
    assert outcome.lasting


@pytest.mark.parametrize("key", [b"*", b"a b", b">", b"", b"a..b"])
def test_subjects_are_words(nats_bench: NatsBench, key: bytes) -> None:
    sink = nats_bench.sink()
    assert sink.send(row(1)._replace(key=key), "o.1", 1).lasting
    sink.close()
    with pytest.raises(ConfigurationError):
        nats_bench.sink("a.*")
