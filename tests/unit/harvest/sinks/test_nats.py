"""What JetStream's answers mean, without a server."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Coroutine
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import nats
import pytest
import trustme
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import MaxPayloadError, NoServersError
from nats.js.errors import APIError, NoStreamResponseError

from harvest.core.dispatcher import Outcome
from harvest.core.row import Row
from harvest.errors import ConfigurationError
from harvest.sinks import nats as nats_sink
from harvest.sinks.nats import NatsEndpoint, NatsSink

ROW = Row(1, "t", b"k", b"v")


@pytest.mark.parametrize(
    ("raised", "status", "unavailable", "lasting"),
    [
        (APIError(code=400, description="no"), 400, False, False),
        (APIError(code=499, description="no"), 499, False, False),
        (APIError(code=500, description="no"), 500, True, False),
        (APIError(code=503, description="no"), 503, True, False),
        (APIError(description="no"), 0, False, False),
        (NoStreamResponseError(), 503, False, False),
        (MaxPayloadError(), None, False, True),
        (NoServersError(), None, True, False),
        (ConnectionResetError("gone"), None, True, False),
        (TimeoutError(), None, True, False),
        (TypeError("x"), None, True, False),
    ],
    ids=repr,
)
def test_who_is_to_blame(
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    status: int | None,
    unavailable: bool,
    lasting: bool,
) -> None:
    async def publish(*_: Any) -> None:
        raise raised

    with closing(NatsSink(NatsEndpoint(("nats://127.0.0.1:1",), "s"))) as sink:
        monkeypatch.setattr(sink, "_publish", publish)
        outcome = sink.send(ROW, "key", 1)
    assert outcome.error
    assert outcome == Outcome(status, outcome.error, unavailable=unavailable, lasting=lasting)


class Server:
    """Connects a client of nats-py that sends to nobody, and keeps what it would have sent."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        max_payload: int = 1_000,
        answer: bytes = b'{"stream": "S", "seq": 1}',
    ) -> None:
        self.sent: list[bytes] = []
        self.waits_s: list[float] = []
        self.connects = 0
        self.asked: dict[str, Any] = {}
        """How the last connection was asked for."""
        client = Client()
        client._status = Client.CONNECTED
        client._max_payload = max_payload

        async def connect(**how: Any) -> Client:
            self.connects += 1
            self.asked = how
            return client

        async def request(
            subject: str, payload: bytes, *, timeout: float, headers: dict[str, str]
        ) -> Any:
            self.waits_s.append(timeout)
            await client._send_publish(subject, "inbox", payload, len(payload), headers)
            return Msg(client, data=answer)

        async def send(command: bytes) -> None:
            self.sent.append(command)

        async def close() -> None: ...

        monkeypatch.setattr(nats, "connect", connect)
        monkeypatch.setattr(client, "request", request)
        monkeypatch.setattr(client, "_send_command", send)
        monkeypatch.setattr(client, "close", close)

    def take(self, row: Row, key: str = "o.1", **endpoint: Any) -> Outcome:
        at = NatsEndpoint(("nats://127.0.0.1:1",), "s", **endpoint)
        with closing(NatsSink(at)) as sink:
            return sink.send(row, key, 7)


def test_what_a_connection_meets_is_no_error_beside_the_outcome_of_each_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """nats-py's own way is a traceback for each."""
    caplog.set_level(logging.DEBUG)
    server = Server(monkeypatch)
    server.take(ROW)
    asyncio.run(server.asked["error_cb"](ConnectionResetError("gone")))
    assert ("harvest", logging.DEBUG, "NATS: gone") in caplog.record_tuples


def test_a_message_is_too_large_with_its_headers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would end the connection, and with it all that is under way."""
    headed = ROW._replace(header_keys=(b"X",), header_values=(("ä" * 200).encode(),))
    server = Server(monkeypatch)
    assert server.take(headed, stream="S").error is None
    (command,) = server.sent
    head, size = map(int, command.split(b"\r\n", 1)[0].split()[-2:])
    assert size == head + len(b"v")
    assert Server(monkeypatch, max_payload=size).take(headed, stream="S").error is None
    smaller = Server(monkeypatch, max_payload=size - 1)
    assert smaller.take(headed, stream="S").lasting
    assert smaller.sent == []


@pytest.mark.parametrize("name", [b"a/b", b"[x]", b"@type", b"a(b)"])
def test_a_header_that_is_not_sent_is_the_rows_fault(
    monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    """Nothing is known about the destination by that."""
    server = Server(monkeypatch)
    outcome = server.take(ROW._replace(header_keys=(name,), header_values=(b"x",)))
    assert (outcome.lasting, outcome.unavailable, server.sent) == (True, False, [])


@pytest.mark.parametrize("key", ["1\n2", "1\r2", "1\r\nNats-Rollup: all"])
def test_an_idempotency_key_of_two_lines_is_no_other_one(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Sent with a space, it would be taken for that of another row, whose message would be lost."""
    server = Server(monkeypatch)
    outcome = server.take(ROW, key)
    assert (outcome.lasting, server.sent) == (True, [])


@pytest.mark.parametrize(
    "answer", [b'{"ok": true}', b"[]", b"1", b"null", b'{"error": "x"}', b"thanks", b"\xff"]
)
def test_somebody_else_who_answers_is_no_jetstream(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """A subscriber of the subject that responds may be the first to do so."""
    outcome = Server(monkeypatch, answer=answer).take(ROW)
    assert outcome.error
    assert outcome == Outcome(error=outcome.error, unavailable=True)


def test_a_thread_of_the_connection_that_hangs_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited_s: list[float | None] = []

    class Hung:
        def result(self, timeout: float | None = None) -> None:
            waited_s.append(timeout)
            raise TimeoutError

    def submit(work: Coroutine[Any, Any, Any], _: object) -> Hung:
        work.close()
        return Hung()

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit)
    with closing(NatsSink(NatsEndpoint(("nats://127.0.0.1:1",), "s", timeout_ms=1_000))) as sink:
        monkeypatch.setattr(sink, "_publish", lambda *_: None)
        assert sink.send(ROW, "key", 1).unavailable
    assert waited_s[0] == 3.0


CREDENTIALS = b"-----BEGIN NATS USER JWT-----\nx\n-----BEGIN USER NKEY SEED-----\ny\n"


def credentials(monkeypatch: pytest.MonkeyPatch, folder: Path, text: bytes) -> Path:
    monkeypatch.setitem(sys.modules, "nkeys", ModuleType("nkeys"))
    path = folder / "app.creds"
    path.write_bytes(text)
    return path


@pytest.mark.parametrize("missing", [b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED"])
def test_a_file_that_holds_no_credentials_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: bytes
) -> None:
    """nats-py would read it for ever."""
    path = credentials(monkeypatch, tmp_path, CREDENTIALS.replace(missing, b""))
    with pytest.raises(ConfigurationError, match=f"it has no {missing.decode()}"):
        NatsSink(NatsEndpoint(("nats://n",), "s", credentials_file=str(path)))
    path.unlink()
    with pytest.raises(ConfigurationError, match="credentials_file cannot be read"):
        NatsSink(NatsEndpoint(("nats://n",), "s", credentials_file=str(path)))


def test_credentials_need_nkeys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = credentials(monkeypatch, tmp_path, CREDENTIALS)
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(ConfigurationError, match=r"marshal-py\[nats\]"):
        NatsSink(NatsEndpoint(("nats://n",), "s", credentials_file=str(path)))


def test_credentials_that_are_gone_when_it_connects_make_it_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = credentials(monkeypatch, tmp_path, CREDENTIALS)
    server = Server(monkeypatch)
    assert server.take(ROW, credentials_file=str(path)) == Outcome(200)
    assert server.asked["user_credentials"] == str(path)
    endpoint = NatsEndpoint(("nats://n",), "s", credentials_file=str(path))
    with closing(NatsSink(endpoint)) as sink:
        path.write_bytes(b"")
        assert sink.send(ROW, "key", 1).unavailable
    assert server.connects == 1


def test_a_connection_that_gives_no_answer_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server went without a word: for minutes, nothing else says so."""
    made: list[Client] = []
    closed: list[Client] = []
    gone = threading.Event()

    async def connect(**_: Any) -> Client:
        client = Client()
        client._status = Client.CONNECTED
        client._max_payload = 1_000
        is_dead = not made

        async def request(*_: Any, **__: Any) -> Any:
            if is_dead:
                await asyncio.Event().wait()
            return Msg(client, data=b'{"stream": "S", "seq": 1}')

        async def close() -> None:
            closed.append(client)
            gone.set()

        monkeypatch.setattr(client, "request", request)
        monkeypatch.setattr(client, "close", close)
        made.append(client)
        return client

    monkeypatch.setattr(nats, "connect", connect)
    endpoint = NatsEndpoint(("nats://127.0.0.1:1",), "s", timeout_ms=10_000)
    with closing(NatsSink(endpoint)) as sink:
        too_large = sink.send(ROW._replace(value=b"v" * 1_001), "key", 1)
        assert too_large.lasting, "and nothing of it is under way"
        sink._endpoint = replace(endpoint, timeout_ms=50)
        assert sink.send(ROW, "key", 1).unavailable
        sink._endpoint = endpoint
        assert [sink.send(ROW, "key", 1), sink.send(ROW, "key", 1)] == [Outcome(200), Outcome(200)]
        assert len(made) == 2
        assert gone.wait(60)
        assert closed == made[:1]


def test_a_message_without_an_answer_takes_none_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They share a connection; a stream without a leader says nothing, others do."""
    asked, may_answer = threading.Event(), threading.Event()
    client = Client()
    client._status = Client.CONNECTED
    client._max_payload = 1_000

    async def request(subject: str, *_: Any, **__: Any) -> Any:
        asked.set()
        while subject == "dead" or not may_answer.is_set():
            await asyncio.sleep(0.01)
        if client.is_closed:
            await asyncio.Event().wait()  # as nats-py
        return Msg(client, data=b'{"stream": "S", "seq": 1}')

    async def connect(**_: Any) -> Client:
        return client

    monkeypatch.setattr(client, "request", request)
    monkeypatch.setattr(nats, "connect", connect)
    endpoint = NatsEndpoint(("nats://127.0.0.1:1",), "{topic}", timeout_ms=10_000)
    found: list[Outcome] = []
    with closing(NatsSink(endpoint)) as sink:
        slow = threading.Thread(
            target=lambda: found.append(sink.send(Row(1, "t", b"", b""), "1", 1))
        )
        slow.start()
        assert asked.wait(60)
        sink._endpoint = replace(endpoint, timeout_ms=50)
        assert sink.send(Row(2, "dead", b"", b""), "2", 1).unavailable
        may_answer.set()
        slow.join(60)
    assert found == [Outcome(200)]


def test_a_server_that_gives_no_answer_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []

    async def connect(*, connect_timeout: float, **_: Any) -> Client:
        seen.append(connect_timeout)
        raise NoServersError

    monkeypatch.setattr(nats, "connect", connect)
    endpoint = NatsEndpoint(("nats://a", "nats://b", "nats://c"), "s", timeout_ms=900)
    with closing(NatsSink(endpoint)) as sink:
        assert sink.send(ROW, "key", 1).unavailable
    assert seen == [pytest.approx(0.3)]


def test_an_acknowledgement_is_waited_for_as_long_as_was_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By itself nats-py gives up after five seconds."""
    server = Server(monkeypatch)
    for timeout_ms in (500, 60_000):
        assert server.take(ROW, timeout_ms=timeout_ms) == Outcome(200)
    assert server.waits_s == [0.5, 60.0]


@pytest.mark.parametrize("breaks", [True, False])
def test_a_connection_that_cannot_be_closed_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, *, breaks: bool
) -> None:
    """What is left to send may find the server gone, or nobody who reads it. The sink is closed
    then, too, and whoever closes it goes on to close others."""
    Server(monkeypatch)
    before, freed = threading.enumerate(), threading.Event()
    sink = NatsSink(NatsEndpoint(("nats://127.0.0.1:1",), "s"))
    assert sink.send(ROW, "key", 1) == Outcome(200)
    (thread,) = [t for t in threading.enumerate() if t not in before]

    async def close() -> None:
        if breaks:
            raise ConnectionResetError("Connection lost")
        freed.wait(60)

    monkeypatch.setattr(nats_sink, "_CLOSE_S", 0.05)
    monkeypatch.setattr(sink._client, "close", close)
    sink.close()
    freed.set()
    thread.join(60)
    assert not thread.is_alive()


def test_a_server_is_trusted_as_configured_and_left_when_it_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next message connects: a client that did so itself would go on beside the next one."""
    given: list[dict[str, Any]] = []

    async def connect(**its: Any) -> Client:
        given.append(its)
        raise NoServersError

    monkeypatch.setattr(nats, "connect", connect)
    ca_file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(ca_file)
    endpoint = NatsEndpoint(("tls://n",), "s")
    for ca in (None, str(ca_file)):
        with closing(NatsSink(replace(endpoint, ca_file=ca))) as sink:
            assert sink.send(ROW, "key", 1).unavailable
    by_default, ours = given
    assert by_default["tls"] is None
    assert len(ours["tls"].get_ca_certs()) == 1
    assert not any(its["allow_reconnect"] for its in given)
