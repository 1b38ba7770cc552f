"""What JetStream's answers mean, without a server."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import MaxPayloadError, NoServersError
from nats.js.errors import APIError, NoStreamResponseError

from harvest.core.dispatcher import Outcome
from harvest.core.row import Row
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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_payload: int = 1_000) -> None:
        self.sent: list[bytes] = []
        client = Client()
        client._status = Client.CONNECTED
        client._max_payload = max_payload

        async def connect(**_: Any) -> Client:
            return client

        async def request(
            subject: str, payload: bytes, *, timeout: float, headers: dict[str, str]
        ) -> Any:
            del timeout
            await client._send_publish(subject, "inbox", payload, len(payload), headers)
            return Msg(client, data=b'{"stream": "S", "seq": 1}')

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
