"""NATS JetStream as a destination: one published message a row (specs/RELAYER.md §5).

The idempotency key goes along as `Nats-Msg-Id`: within the stream's duplicate window (2 minutes by
default) the server keeps a message that is repeated only once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import re
import ssl
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import nats
import nats.errors
from nats.aio.client import Client
from nats.errors import BadSubjectError, Error, MaxPayloadError
from nats.js.errors import APIError, NoStreamResponseError

from harvest.core.dispatcher import Outcome
from harvest.core.row import Row
from harvest.core.templates import Template
from harvest.errors import ConfigurationError, InvalidRecord

__all__ = ["NatsEndpoint", "NatsSink"]

_SUBJECT: Final = re.compile(r"[^\s.*>\x00-\x20]+(?:\.[^\s.*>\x00-\x20]+)*")
_HEADER: Final = re.compile(r"[!#-9;-~]+")  # printable, without a colon
_BAD_HEADER: Final = getattr(nats.errors, "BadHeaderError", BadSubjectError)
"""What newer versions of nats-py say of a header's name that they do not send."""
_UNAVAILABLE: Final = 500
_OURS: Final = ("nats-", "harvest-epoch")
"""How headers begin that are not a row's to give: they tell JetStream what to do."""
_AGAIN_S: Final = 0.1
_CLOSE_S: Final = 2.0
_SPARE_S: Final = 2.0
"""So much longer than its time-out a message is waited for: the loop may not get to end it."""
_CREDENTIALS: Final = (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")
_LOG: Final = logging.getLogger("harvest")


@dataclass(frozen=True, slots=True)
class NatsEndpoint:
    """How messages are published.

    - `servers`: URLs, ``nats://host:4222`` or ``tls://…``. `subject`: a template.
    - `stream`: what must take the message, if it is given; another one is an error.
    - `timeout_ms`: of everything, until the server has stored the message.
    - `credentials_file`: a NATS ``.creds`` file. `ca_file`: certificates to trust.
    """

    servers: tuple[str, ...] = field(repr=False)
    subject: str
    stream: str | None = None
    forward_headers: bool = True
    timeout_ms: int = 10_000
    credentials_file: str | None = None
    ca_file: str | None = None


class NatsSink:
    """Publishes to JetStream. Implements `harvest.core.interfaces.message_sink.MessageSink`.

    One connection, in a thread of its own that is started by the first message. Raises
    `ConfigurationError`.
    """

    def __init__(self, endpoint: NatsEndpoint, outbox: str = "") -> None:
        self._endpoint = endpoint
        self._subject = Template.parse(endpoint.subject, outbox, "subject")
        if self._subject.constant:
            self._checked(self._subject.render(Row(0, "", b"", b"")), ConfigurationError)
        self._ssl: ssl.SSLContext | None = None
        if endpoint.ca_file is not None:
            try:
                self._ssl = ssl.create_default_context(cafile=endpoint.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigurationError(f"the certificates cannot be read: {error}") from None
        if endpoint.credentials_file is not None:
            _check_credentials(endpoint.credentials_file)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._connecting: asyncio.Lock | None = None
        self._under_way: Counter[Client] = Counter()
        """How many messages each connection has; one that was left is closed with the last."""
        self._closing: set[asyncio.Future[None]] = set()

    def send(self, row: Row, idempotency_key: str, epoch: int) -> Outcome:
        """See `MessageSink.send`."""
        try:
            subject = self._checked(self._subject.render(row), InvalidRecord)
            headers = self._headers(row, idempotency_key, epoch)
        except InvalidRecord as error:
            return Outcome(error=str(error), lasting=True)
        timeout_s = self._endpoint.timeout_ms / 1000
        work = asyncio.wait_for(self._publish(subject, row.value or b"", headers), timeout_s)
        with self._lock:  # not closed in between
            future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            future.result(timeout_s + _SPARE_S)
        except MaxPayloadError:
            text = "the message, with its headers, is larger than max_payload of the server"
            return Outcome(error=text, lasting=True)
        except (BadSubjectError, _BAD_HEADER) as error:
            text = f"nats-py does not send it: {type(error).__name__}: {error}"
            return Outcome(error=text, lasting=True)
        except NoStreamResponseError:
            text = f"no stream takes the subject {subject!r}: create one, or correct `subject`"
            return Outcome(503, text)
        except APIError as error:
            code = error.code or 0
            text = f"JetStream {code}: {error.description}"
            return Outcome(code, text, unavailable=code >= _UNAVAILABLE)
        except (TimeoutError, concurrent.futures.CancelledError):
            text = f"no acknowledgement within {self._endpoint.timeout_ms} ms"
            return Outcome(error=text, unavailable=True)
        except (Error, OSError, ValueError) as error:
            text = f"{type(error).__name__}: {error}"
            return Outcome(error=text, unavailable=True)
        except Exception as error:  # what nats-py makes of an answer of somebody else
            text = f"the answer is none of JetStream's ({type(error).__name__})"
            return Outcome(error=text, unavailable=True)
        return Outcome(200)

    def close(self) -> None:
        """See `MessageSink.close`."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(self._disconnect(), loop).result(_CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)

    def _headers(self, row: Row, idempotency_key: str, epoch: int) -> dict[str, str]:
        headers = {}
        given = zip(row.header_keys, row.header_values, strict=False)
        for name, value in given if self._endpoint.forward_headers else ():
            try:
                text, said = (name or b"").decode("ascii"), (value or b"").decode()
            except UnicodeDecodeError:
                raise InvalidRecord(f"the header {name!r} is no text") from None
            if not _HEADER.fullmatch(text) or "\r" in said or "\n" in said:
                raise InvalidRecord(f"the header {name!r} cannot be one of NATS")
            if not text.lower().startswith(_OURS):
                headers[text] = said.strip()
        if "\r" in idempotency_key or "\n" in idempotency_key:  # with a space: another row's
            raise InvalidRecord(f"the idempotency key {idempotency_key!r} has the end of a line")
        headers |= {"Nats-Msg-Id": idempotency_key, "Harvest-Epoch": str(epoch)}
        if self._endpoint.stream is not None:
            headers["Nats-Expected-Stream"] = self._endpoint.stream
        return headers

    @staticmethod
    def _checked(subject: str, error: type[Exception]) -> str:
        if not _SUBJECT.fullmatch(subject):
            raise error(
                f"the subject {subject!r} cannot be published to: words with dots between, no "
                "spaces, * or >"
            )
        return subject

    # --- In the thread of the connection ---

    def _running(self) -> asyncio.AbstractEventLoop:
        """The loop; under the lock."""
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            self._connecting = asyncio.Lock()
            self._client = None
            threading.Thread(target=_run, args=(loop,), name="harvest-nats", daemon=True).start()
        return self._loop

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        client = await self._connected()
        if len(body) + _size(headers) > client.max_payload:
            raise MaxPayloadError  # nats-py looks at the body alone; the server would hang up
        self._under_way[client] += 1
        try:
            await client.jetstream(timeout=self._endpoint.timeout_ms / 1000).publish(
                subject, body, headers=headers
            )
        except (TimeoutError, asyncio.CancelledError):
            if self._client is client:  # the next message connects anew:
                self._client = None  # nats-py takes minutes to find out that nobody is there
            raise
        finally:
            self._under_way[client] -= 1
            if not self._under_way[client]:
                del self._under_way[client]
                if self._client is not client:
                    closing = asyncio.ensure_future(_close(client))
                    self._closing.add(closing)  # which the loop itself does not keep
                    closing.add_done_callback(self._closing.discard)

    async def _connected(self) -> Client:
        assert self._connecting is not None  # noqa: S101 - made with the loop
        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                if self._endpoint.credentials_file is not None:  # it may have changed
                    _check_credentials(self._endpoint.credentials_file)
                self._client = await nats.connect(
                    servers=list(self._endpoint.servers),  # one that is there is found among them
                    name="harvest",
                    allow_reconnect=False,  # the next message connects
                    connect_timeout=self._endpoint.timeout_ms / 1000 / len(self._endpoint.servers),
                    error_cb=_note,
                    tls=self._ssl,
                    user_credentials=self._endpoint.credentials_file,
                )
            return self._client

    async def _disconnect(self) -> None:
        if self._client is not None:
            await _close(self._client)


def _check_credentials(path: str) -> None:
    """nats-py fails without `nkeys`, and reads a file without the JWT for ever.

    Raises `ConfigurationError`.
    """
    try:
        import nkeys  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "credentials_file needs nkeys: run `pip install 'marshal-py[nats]'`"
        ) from None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"credentials_file cannot be read: {error}") from None
    for marker in _CREDENTIALS:
        if marker not in text:
            raise ConfigurationError(
                f"credentials_file is no .creds file of NATS: it has no {marker.decode()}"
            )


def _size(headers: dict[str, str]) -> int:
    """In bytes, as they are sent."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    return len("".join(["NATS/1.0\r\n", *lines, "\r\n"]).encode())


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    while given_up := asyncio.all_tasks(loop):  # somebody waits for each
        for task in given_up:
            task.cancel()
        # Before Python 3.12, `wait_for` forgets a cancellation that meets the end of its wait.
        loop.run_until_complete(asyncio.wait(given_up, timeout=_AGAIN_S))
    loop.close()


async def _close(client: Client) -> None:
    with contextlib.suppress(Exception):  # what is left to send may not go
        await asyncio.wait_for(client.close(), _CLOSE_S)


async def _note(error: Exception) -> None:
    _LOG.debug("NATS: %s", error)
