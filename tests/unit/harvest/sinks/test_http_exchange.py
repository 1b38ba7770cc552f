"""What is read of an HTTP answer does not depend on how it arrives, nor on who reads it."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import httpcore
import pytest

from harvest.core.dispatcher import Outcome
from harvest.core.row import Row
from harvest.sinks.http.deadline import Deadline, DeadlineBackend
from harvest.sinks.http.endpoint import HttpEndpoint, HttpSink, retry_after_ms
from harvest.sinks.http.exchange import Answer, Connection


@pytest.fixture
def far_from_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local time is five hours behind."""
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_from_greenwich")
@pytest.mark.parametrize(
    "text",
    [
        b"Thu, 01 Jan 1970 00:01:00 GMT",
        b"Thursday, 01-Jan-70 00:01:00 GMT",
        b"Thu Jan  1 00:01:00 1970",
        b"Thu, 01 Jan 1970 00:01:00 -0000",
    ],
)
def test_a_date_is_that_of_greenwich_however_it_is_written(text: bytes) -> None:
    """Of the three forms that HTTP has, one names no zone."""
    assert retry_after_ms([(b"X", b"1"), (b"retry-after", text)], 50.0) == 10_000
    assert retry_after_ms([(b"retry-after", text)], 90.0) == 0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"soon",
        b"-1",
        b"9" * 30,
        b"Thu, 99 Jan 1970 00:01:00 GMT",
        b"Thu, 01 Jan 99999999999999999999 00:01:00 GMT",
        b"Thu, 01 Jan 1970 00:01:00 +99999999999999999999",
    ],
)
def test_a_time_that_cannot_be_read_is_none(text: bytes) -> None:
    assert retry_after_ms([(b"Retry-After", text)], 0.0) == 0


class Stream(httpcore.NetworkStream):
    """Answers with `pieces`, one a read, and then with what `last` says."""

    def __init__(self, pieces: list[bytes], last: bytes | Exception = b"") -> None:
        self.written = b""
        self._pieces = [piece for piece in pieces if piece]
        self._last = last

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.written += buffer

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._pieces:
            return self._pieces.pop(0)
        if isinstance(self._last, Exception):
            raise self._last
        return self._last

    def close(self) -> None: ...

    def get_extra_info(self, info: str) -> Any:
        return bool(self._pieces)


def exchange(stream: Stream, method: bytes = b"POST") -> tuple[Answer | str, bool]:
    connection = Connection(stream)
    try:
        answer: Answer | str = connection.exchange(
            method, b"/x", [(b"Host", b"h"), (b"Content-Length", b"2")], b"{}"
        )
    except httpcore.ProtocolError:
        answer = "no HTTP"
    return answer, connection.usable


ANSWERS = [
    (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 200\r\nContent-Length: 2\r\nX: \xe4 y \r\n\r\nok", 200, b"ok", True),
    (b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
    (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        200,
        b"ok",
        True,
    ),
    (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\n\r\n",
        200,
        b"ok",
        True,
    ),
    (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", True),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 N\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", None, b"", False),
    (b"HTTP/1.1 503 No\r\nretry-AFTER: 3\r\ncontent-length: 0\r\n\r\n", 503, b"", True),
    (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", 200, b"until the end", False),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", 200, b"ok", False),  # and closed
    (b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 unasked\r\n\r\n", 204, b"", False),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", None, b"", False),
    (b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok", None, b"", False),
    (b"HTTP/1.1 200 OK\r\nX: \x00\r\nContent-Length: 2\r\n\r\nok", None, b"", False),
    (b"HTTP/1.1 20 OK\r\n\r\n", None, b"", False),
    (b"220 smtp.example ESMTP\r\n", None, b"", False),
    (b"", None, b"", False),
]


@pytest.mark.parametrize(("raw", "status", "said", "usable"), ANSWERS)
def test_an_answer_is_the_same_in_one_piece_and_in_two(
    raw: bytes, status: int | None, said: bytes, usable: bool
) -> None:
    for cut in range(len(raw) + 1):
        answer, kept = exchange(Stream([raw[:cut], raw[cut:]]))
        if status is None:
            assert answer == "no HTTP", cut
            assert not kept
            continue
        assert isinstance(answer, Answer)
        assert (answer.status, answer.said) == (status, said), cut
        assert kept == usable or raw[cut:].startswith(b"HTTP/1.1 200 unasked"), cut
        headers = dict(answer.headers)
        assert headers.get(b"retry-after") == (b"3" if status == 503 else None)
        assert headers.get(b"x", b"\xe4 y") == b"\xe4 y"


def test_what_arrives_unasked_makes_the_connection_unusable() -> None:
    stream = Stream([b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 200 unasked\r\n\r\n"])
    _, kept = exchange(stream)
    assert not kept


def test_a_connection_is_usable_for_a_while_after_it_was_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr("harvest.sinks.http.exchange.time.monotonic", lambda: now_s)
    connection = Connection(Stream([b"HTTP/1.1 204 No Content\r\n\r\n"]))
    now_s = 29.0
    connection.exchange(b"POST", b"/x", [(b"Host", b"h")], b"")
    now_s = 58.0
    assert connection.usable
    now_s = 60.0
    assert not connection.usable, "its receiver may be about to close it"


def test_a_connection_of_no_use_is_closed_when_the_next_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receiver that ends each connection would cost a file descriptor for each message."""
    made: list[Kept] = []

    class Kept(Stream):
        closed = False

        def close(self) -> None:
            self.closed = True

        def get_extra_info(self, info: str) -> Any:
            return None if info == "socket" else False

    def connect(_: Deadline) -> Kept:
        answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        made.append(Kept([answer]))
        return made[-1]

    sink = HttpSink(HttpEndpoint("http://h/"))
    monkeypatch.setattr(sink, "_connect", connect)
    for _ in range(3):
        assert sink.send(Row(1, "t", b"k", b"v"), "key", 1) == Outcome(200)
    assert [stream.closed for stream in made] == [True, True, False]
    sink.close()
    assert made[-1].closed


def test_the_answer_to_head_has_no_body() -> None:
    answer, kept = exchange(Stream([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"]), b"HEAD")
    assert (answer, kept) == (Answer(200, [(b"content-length", b"5")], b""), True)


@pytest.mark.parametrize("error", [httpcore.ReadTimeout("t"), httpcore.ReadError("e")])
def test_a_status_decides_and_a_broken_body_costs_the_connection(error: Exception) -> None:
    for head in (b"Content-Length: 9", b"Transfer-Encoding: chunked"):
        answer, kept = exchange(Stream([b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n"], error))
        assert isinstance(answer, Answer)
        assert answer.status == 200
        assert not kept
    with pytest.raises(type(error)):
        exchange(Stream([b"HTTP/1.1 2"], error))


def test_of_a_body_no_more_is_read_than_is_shown() -> None:
    """A receiver that sends without end holds up nobody, and fills no memory."""
    reads = []

    class Endless(Stream):
        def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            reads.append(max_bytes)
            return super().read(max_bytes, timeout)

    for head in (b"Content-Length: 2000000", b"X: until it closes"):
        reads.clear()
        stream = Endless([b"HTTP/1.1 500 No\r\n" + head + b"\r\n\r\n"], b"x" * 60_000)
        answer, kept = exchange(stream)
        assert isinstance(answer, Answer)
        assert (answer.status, kept) == (500, False)
        assert len(answer.said) <= 200_000
        assert len(reads) <= 5


def test_a_request_is_written_in_one_piece() -> None:
    stream = Stream([b"HTTP/1.1 204 No Content\r\n\r\n"])
    exchange(stream)
    assert stream.written == b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"


def test_a_status_that_refuses_the_message_says_nothing_of_the_destination() -> None:
    """What is said with it of when to come again is said to nobody."""
    answer = Answer(503, ((b"retry-after", b"7"),), b"")
    plain = HttpSink(HttpEndpoint("http://localhost:1/"))
    assert plain._failure(answer) == Outcome(503, "HTTP 503", True, False, 7_000.0)
    refusing = HttpSink(HttpEndpoint("http://localhost:1/", refused=frozenset({503})))
    assert refusing._failure(answer) == Outcome(503, "HTTP 503", False, True, 0.0)


class Limited(Stream):
    """Keeps how many seconds each step had; may refuse what is written."""

    def __init__(self, pieces: list[bytes], *, refuses: bool = False) -> None:
        super().__init__(pieces)
        self.had_s: list[float | None] = []
        self.refuses = refuses

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.had_s.append(timeout)
        if self.refuses:
            raise httpcore.WriteError("the other side reads no more")
        super().write(buffer)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.had_s.append(timeout)
        return super().read(max_bytes)

    def start_tls(self, *given: Any) -> Limited:
        self.had_s.append(given[-1])
        return self


def opened(
    monkeypatch: pytest.MonkeyPatch, deadline: Deadline, stream: Limited
) -> httpcore.NetworkStream:
    backend = DeadlineBackend(deadline)

    def connect(_host: str, _port: int, timeout: float, *_: Any) -> Limited:
        stream.had_s.append(timeout)
        return stream

    monkeypatch.setattr(backend._backend, "connect_tcp", connect)
    return backend.connect_tcp("localhost", 1)


@pytest.mark.parametrize("tls", [False, True])
def test_every_step_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch, tls: bool) -> None:
    deadline, below = Deadline(), Limited([b"HTTP/1.1 204 No", b" Content\r\n\r\n"])
    deadline.set(60.0)
    stream = opened(monkeypatch, deadline, below)
    if tls:
        stream = stream.start_tls(ssl.create_default_context(), "localhost")
    Connection(stream).exchange(b"POST", b"/x", [(b"Host", b"h")], b"")
    assert below.written == b"POST /x HTTP/1.1\r\nHost: h\r\n\r\n"
    assert len(below.had_s) >= 4 + tls
    assert all(had_s is not None and 0 < had_s <= 60 for had_s in below.had_s)
    deadline.set(-1.0)
    with pytest.raises(httpcore.ReadTimeout):
        stream.read(1)
    with pytest.raises(httpcore.WriteTimeout):
        stream.write(b"x" * 100_000)


def test_who_takes_bytes_slowly_is_given_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time-out for each that is taken would let a large body hold a thread for ever."""
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])

    class Slow(Limited):
        def write(self, buffer: bytes, timeout: float | None = None) -> None:
            super().write(buffer, timeout)
            now_s[0] += 25.0

    deadline, below = Deadline(), Slow([])
    deadline.set(60.0)
    stream = opened(monkeypatch, deadline, below)
    with pytest.raises(httpcore.WriteTimeout):
        Connection(stream).exchange(b"POST", b"/x", [(b"Host", b"h")], b"v" * 1_000_000)
    assert below.had_s == [60.0, 60.0, 35.0, 10.0]
    assert len(below.written) < 100_000


def test_an_address_that_gives_no_answer_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    found = [(0, 0, 0, "", (address, 1)) for address in ("::1", "10.0.0.1", "10.0.0.2")]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    deadline, below = Deadline(), Stream([])
    backend = DeadlineBackend(deadline)
    tried: list[tuple[str, float]] = []
    fails: list[Exception] = []

    def connect(address: str, _port: int, timeout: float, *_: Any) -> Stream:
        tried.append((address, timeout))
        if fails:
            raise fails.pop(0)
        return below

    monkeypatch.setattr(backend._backend, "connect_tcp", connect)
    deadline.set(60.0)
    fails += [httpcore.ConnectTimeout("silent"), httpcore.ConnectError("refused")]
    backend.connect_tcp("h", 1)
    assert tried == [("::1", 20.0), ("10.0.0.1", 30.0), ("10.0.0.2", 60.0)]
    fails += [httpcore.ConnectError("refused")] * 2 + [httpcore.ConnectError("the last")]
    with pytest.raises(httpcore.ConnectError, match="the last"):
        backend.connect_tcp("h", 1)
    now_s[0] = 60.0
    with pytest.raises(httpcore.ConnectTimeout):
        backend.connect_tcp("h", 1)
    assert len(tried) == 6


def test_a_link_local_address_keeps_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    ((index, name), *_) = socket.if_nameindex()
    found = [(socket.AF_INET6, 0, 0, "", ("fe80::1", 1, 0, index))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    deadline = Deadline()
    backend, tried = DeadlineBackend(deadline), list[str]()

    def connect(address: str, *_: Any) -> Stream:
        tried.append(address)
        return Stream([])

    monkeypatch.setattr(backend._backend, "connect_tcp", connect)
    deadline.set(60.0)
    backend.connect_tcp("h", 1)
    assert tried == [f"fe80::1%{name}"]


def test_a_host_that_is_not_known_cannot_be_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    outcome = HttpSink(HttpEndpoint("http://h/")).send(Row(1, "t", b"k", b"{}"), "key", 7)
    assert outcome.unavailable
    assert "Name or service not known" in str(outcome.error)


def test_a_name_that_is_not_looked_up_in_time_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The resolver's own time-outs may be minutes, and a thread of the relay would be held."""
    is_over = threading.Event()

    def look_up(*_: object, **__: object) -> list[Any]:
        is_over.wait(5)
        raise socket.gaierror(socket.EAI_AGAIN, "too late")

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    sink = HttpSink(HttpEndpoint("http://far.away/", timeout_ms=300))
    outcome = sink.send(Row(1, "t", b"k", b"{}"), "key", 7)
    is_over.set()
    assert outcome.unavailable
    assert outcome.error == "no answer within 300 ms (NameLookupTimeout)"


@pytest.mark.parametrize(
    ("uri", "port"), [("http://h/x", 80), ("https://h/x", 443), ("https://h:8443/x", 8_443)]
)
def test_a_port_that_is_not_named_is_that_of_the_scheme(
    monkeypatch: pytest.MonkeyPatch, uri: str, port: int
) -> None:
    asked: list[tuple[str, int]] = []

    def connect(_: DeadlineBackend, host: str, port: int) -> Stream:
        asked.append((host, port))
        raise httpcore.ConnectError("refused")

    monkeypatch.setattr(DeadlineBackend, "connect_tcp", connect)
    assert HttpSink(HttpEndpoint(uri)).send(Row(1, "t", b"k", b"{}"), "key", 7).unavailable
    assert asked == [("h", port)]


def test_who_answers_and_reads_no_more_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    deadline = Deadline()
    deadline.set(60.0)
    below = Limited([b"HTTP/1.1 413 Too large\r\nContent-Length: 0\r\n\r\n"], refuses=True)
    answer = Connection(opened(monkeypatch, deadline, below)).exchange(
        b"POST", b"/x", [(b"Host", b"h")], b"{}"
    )
    assert answer.status == 413


class Asked(Stream):
    """Its endpoint, and what was sent to it."""

    def sink(self, monkeypatch: pytest.MonkeyPatch, **endpoint: Any) -> HttpSink:
        monkeypatch.setattr(HttpSink, "_connect", lambda *_: self)
        return HttpSink(HttpEndpoint("http://h/x", **endpoint))


@pytest.mark.parametrize("key", ["1\r\nX-Admin: yes", "1\r\n\r\nDELETE / HTTP/1.1", "1\n2", "1\0"])
@pytest.mark.parametrize("batch", [None, "records"])
def test_an_idempotency_key_of_a_row_begins_no_other_header_or_request(
    monkeypatch: pytest.MonkeyPatch, key: str, batch: Literal["records"] | None
) -> None:
    """`idempotency_key` may be made of what a row says."""
    stream = Asked([b"HTTP/1.1 204 No Content\r\n\r\n"])
    outcome = stream.sink(monkeypatch, batch=batch).send(Row(1, "t", b"k", b"{}"), key, 7)
    assert (outcome.lasting, outcome.status) == (True, None)
    assert "Idempotency-Key" in str(outcome.error)
    assert stream.written == b""


@pytest.mark.parametrize("failure", [httpcore.ConnectError, httpcore.ConnectTimeout])
def test_a_handshake_that_fails_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    """It is tried again while the certificate is wrong, until there are no more sockets."""
    closed: list[str] = []

    class Stranger(httpcore.NetworkStream):
        def start_tls(self, *_: Any) -> httpcore.NetworkStream:
            raise failure("certificate verify failed")

        def close(self) -> None:
            closed.append("closed")

    monkeypatch.setattr(DeadlineBackend, "connect_tcp", lambda *_: Stranger())
    sink = HttpSink(HttpEndpoint("https://localhost:1/x"))
    for times in (1, 2):
        assert sink.send(Row(1, "t", b"k", b"v"), "o.1", 1).unavailable
        assert len(closed) == times
