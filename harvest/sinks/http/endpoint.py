"""An HTTP endpoint as a destination: a request a message, or a batch (specs/RELAYER.md §4).

What decides is the status: one that is expected means that the receiver has the message. The
connections are those of httpx (httpcore, h11), without the parts that a relayer must not have
(redirects, cookies, credentials from the environment). Every thread has one of its own.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import email.utils
import hashlib
import hmac
import re
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import quote

import httpcore
import httpx

from harvest.core.dispatcher import Outcome
from harvest.core.envelope import BATCH, STRUCTURED, CloudEvents
from harvest.core.row import Row
from harvest.core.templates import Template
from harvest.errors import ConfigurationError, InvalidRecord
from harvest.sinks.http.batches import batch_body, batch_key
from harvest.sinks.http.deadline import Deadline, DeadlineBackend
from harvest.sinks.http.exchange import Answer, Connection, Headers

__all__ = ["HttpEndpoint", "HttpSink", "Signature", "retry_after_ms"]

_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_RESERVED: Final = frozenset(
    b"connection content-length expect host keep-alive proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
_OF_SIGNATURE: Final = (b"webhook-id", b"webhook-timestamp", b"webhook-signature")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_UNAVAILABLE: Final = frozenset({408, 425, 429, 502, 503, 504})
_GONE: Final = 410
_SHOWN_BYTES: Final = 200
_CE_SAFE: Final = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')
"""What the HTTP binding of CloudEvents leaves as it is in a header."""
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Signature:
    """HMAC-SHA256 as in Standard Webhooks: of id, time and body, in the headers ``webhook-id``,
    ``webhook-timestamp`` and ``webhook-signature``.

    A secret that begins with ``whsec_`` is base64 from there on; any other is taken as text. With
    several `secrets` there is a signature of each: receivers go from one to the next at their time.
    The id is the idempotency key, with ``_`` for the dots that would divide what is signed.
    """

    secrets: tuple[str, ...] = field(repr=False)

    def keys(self) -> tuple[bytes, ...]:
        """The secrets as bytes. Raises `ConfigurationError`."""
        return tuple([_secret_key(secret) for secret in self.secrets])


def _secret_key(secret: str) -> bytes:
    if not secret.startswith("whsec_"):
        return secret.encode()
    encoded = secret.removeprefix("whsec_").rstrip("=")
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except binascii.Error:
        key = b""
    if not key:
        raise ConfigurationError(
            "the signing secret begins with whsec_, and what follows is not base64"
        )
    return key


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """How requests are made.

    - `uri`: a template (`harvest.core.templates`); placeholders in the path and the query only.
    - `headers`: templates, too. `forward_headers`: the row's headers go along.
    - `timeout_ms`: of everything: connect, send, and the whole answer.
    - `expected`: the statuses that mean success. `refused`: those that say that the message is
      wrong, and would be wrong again.
    - `batch`: several rows go in one request (`harvest.sinks.http.batches`), as ``records`` or
      ``values``. `cloudevents`: rows are CloudEvents, as its HTTP binding has them.
    - `ca_file`: certificates to trust, instead of the system's. `cert_file`, `key_file`: our own.
    """

    uri: str = field(repr=False)
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    forward_headers: bool = True
    timeout_ms: int = 10_000
    expected: frozenset[int] = frozenset(range(200, 300))
    refused: frozenset[int] = frozenset({400, 413, 414, 415, 422})
    idempotency_header: str = "Idempotency-Key"
    signature: Signature | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    batch: Literal["records", "values"] | None = None
    cloudevents: CloudEvents | None = None


class HttpSink:
    """Sends messages to one endpoint. Implements `BatchSink`.

    Raises `ConfigurationError`.
    """

    def __init__(self, endpoint: HttpEndpoint, outbox: str = "") -> None:
        self._endpoint = endpoint
        self._uri = Template.parse(endpoint.uri, outbox, "uri")
        self._origin = _origin(self._uri)
        self._target_at = _target_at(endpoint.uri)
        self._method = endpoint.method.upper().encode()
        if not _NAME.fullmatch(self._method):
            raise ConfigurationError(f"method is {endpoint.method!r}: write POST, PUT, …")
        self._secrets = () if endpoint.signature is None else endpoint.signature.keys()
        ours = _RESERVED.union((b"harvest-epoch",), _OF_SIGNATURE if self._secrets else ())
        self._idempotency = _header_name(endpoint.idempotency_header, ours)
        self._ours = ours.union((self._idempotency.lower(),))
        """Headers that neither the configuration nor a row can give."""
        self._headers = [
            (_header_name(name, self._ours), _header_template(name, text, outbox))
            for name, text in endpoint.headers
        ]
        if endpoint.cloudevents is not None:
            _check_value("cloudevents.content_type", endpoint.cloudevents.content_type)
        if endpoint.batch and not all(
            t.constant for t in (self._uri, *[t for _, t in self._headers])
        ):
            raise ConfigurationError(
                "uri and headers have placeholders of a row, and with batch a request has several: "
                "leave one or the other out"
            )
        self._ssl = _ssl_context(endpoint) if self._origin.scheme == "https" else None
        self._local = threading.local()
        self._lock = threading.Lock()
        self._connections: dict[int, Connection] = {}
        """By thread."""
        self._closes = 0
        """How often this was closed."""

    def send(self, row: Row, idempotency_key: str, epoch: int) -> Outcome:
        """See `MessageSink.send`."""
        if self._endpoint.batch is not None:
            return self.send_batch(((row, idempotency_key),), epoch)
        try:
            body, content = self._body(row)
            headers = self._request_headers(row, idempotency_key, epoch, content)
            return self._exchange(row, headers, body, idempotency_key)
        except (InvalidRecord, ValueError) as error:
            return Outcome(error=str(error), lasting=True)

    def send_batch(self, rows: Sequence[tuple[Row, str]], epoch: int) -> Outcome:
        """See `BatchSink.send_batch`."""
        endpoint = self._endpoint
        try:
            body = batch_body(rows, endpoint.batch or "records", endpoint.cloudevents)
            for _, key in rows:
                self._idempotency_value(key)
            first, _ = rows[0]
            bare, unique = first._replace(header_keys=(), header_values=()), batch_key(rows)
            content = b"application/json" if endpoint.cloudevents is None else BATCH
            headers = self._request_headers(bare, unique, epoch, [(b"Content-Type", content)])
            return self._exchange(bare, headers, body, unique)
        except (InvalidRecord, ValueError) as error:
            return Outcome(error=str(error), lasting=True)

    def _body(self, row: Row) -> tuple[bytes, Headers]:
        """And the headers that say what it is."""
        events = self._endpoint.cloudevents
        if events is None:
            return row.value or b"", ()
        if events.mode == "structured":
            return events.structured(row), [(b"Content-Type", STRUCTURED)]
        said = [
            (b"ce-" + name.encode(), quote(its, safe=_CE_SAFE).encode())
            for name, its in events.attributes(row).items()
        ]
        if row.value is not None:
            said.append((b"Content-Type", events.content_type.encode()))
        return row.value or b"", said

    def _exchange(
        self, row: Row, headers: list[tuple[bytes, bytes]], body: bytes, unique: str
    ) -> Outcome:
        """Raises `InvalidRecord` if no request can be made of it."""
        target = self._target(row)
        headers.append((b"Content-Length", b"%d" % len(body)))
        headers += self._signatures(body, unique.encode())
        try:
            connection = self._connection()
            answer = connection.exchange(self._method, target, headers, body)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            return Outcome(error=_described(error, self._endpoint.timeout_ms), unavailable=True)
        except (OSError, ValueError) as error:  # certificates; numbers that are none
            return Outcome(error=_described(error, self._endpoint.timeout_ms), unavailable=True)
        if answer.status in self._endpoint.expected:
            return Outcome(answer.status)
        return self._failure(answer)

    def close(self) -> None:
        """See `MessageSink.close`. A request that is under way in another thread breaks off."""
        with self._lock:
            self._closes += 1
            mine, self._connections = self._connections, {}
        for connection in mine.values():
            connection.close()

    def _target(self, row: Row) -> bytes:
        target = self._uri.render(row, _quoted)[self._target_at :].encode()
        if not target.startswith(b"/"):
            target = b"/" + target
        if not _TARGET.fullmatch(target):
            raise InvalidRecord(f"{target!r} is no target of an HTTP request")
        return target

    def _connection(self) -> Connection:
        """This thread's connection, with its deadline set; a new one if the last is of no use."""
        try:
            deadline = self._local.deadline
        except AttributeError:
            deadline = self._local.deadline = Deadline()
        deadline.set(self._endpoint.timeout_ms / 1000)
        thread, closes = threading.get_ident(), self._closes
        connection = self._connections.get(thread)
        if connection is not None:
            if connection.usable:
                return connection
            connection.close()
        connection = Connection(self._connect(deadline))
        with self._lock:
            if closes == self._closes:
                self._connections[thread] = connection
                return connection
        connection.close()
        raise httpcore.ConnectError("the destination was closed meanwhile")

    def _connect(self, deadline: Deadline) -> httpcore.NetworkStream:
        host = self._origin.raw_host.decode("ascii")
        port = self._origin.port or _PORTS[self._origin.scheme]
        stream = DeadlineBackend(deadline).connect_tcp(host, port)
        if self._ssl is None:
            return stream
        try:
            return stream.start_tls(self._ssl, host)
        except BaseException:
            stream.close()
            raise

    def _request_headers(
        self, row: Row, idempotency_key: str, epoch: int, content: Headers
    ) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"Host", self._origin.netloc),
            (self._idempotency, self._idempotency_value(idempotency_key)),
            (b"Harvest-Epoch", b"%d" % epoch),
        ]
        for name, template in self._headers:
            headers.append((name, _header_value(name, template.render(row).encode())))
        given = {name.lower() for name, _ in headers}
        unless_given = (*content, (b"User-Agent", b"harvest"))
        headers += [(name, value) for name, value in unless_given if name.lower() not in given]
        if self._endpoint.forward_headers and row.header_keys:
            ours = {name.lower() for name, _ in headers} | self._ours
            for key, its in zip(row.header_keys, row.header_values, strict=False):
                if key is None or not _NAME.fullmatch(key):
                    raise InvalidRecord(f"{key!r} is no name of an HTTP header")
                if key.lower() not in ours:
                    headers.append((key, _header_value(key, its or b"")))
        return headers

    def _idempotency_value(self, key: str) -> bytes:
        """It may be made of what a row says. Raises `InvalidRecord`."""
        return _header_value(self._idempotency, key.encode())

    def _signatures(self, body: bytes, unique: bytes) -> Headers:
        if not self._secrets:
            return ()
        now = b"%d" % time.time()
        message_id = unique.replace(b".", b"_")
        signed = b".".join((message_id, now, body))
        digests = [hmac.new(key, signed, hashlib.sha256).digest() for key in self._secrets]
        return [
            (b"webhook-id", message_id),
            (b"webhook-timestamp", now),
            (b"webhook-signature", b" ".join([b"v1," + base64.b64encode(d) for d in digests])),
        ]

    def _failure(self, answer: Answer) -> Outcome:
        status = answer.status
        error = f"HTTP {status}"
        if 300 <= status < 400:
            error += " (redirects are not followed)"
        shown = answer.said[:_SHOWN_BYTES].decode(errors="replace")
        shown = " ".join("".join(c if c.isprintable() else " " for c in shown).split())
        if shown:
            error += f": {shown}"
        lasting = status in self._endpoint.refused
        unavailable = status in _UNAVAILABLE and not lasting
        wait_ms = 0.0 if lasting else retry_after_ms(answer.headers, time.time())
        return Outcome(
            status, error, unavailable, lasting, wait_ms, gone=status == _GONE and not lasting
        )


def retry_after_ms(headers: Sequence[tuple[bytes, bytes]], now_s: float) -> float:
    """What a Retry-After header asks for, in seconds or as a date; 0 if it cannot be read."""
    for name, value in headers:
        if name.lower() != b"retry-after":
            continue
        text = value.decode("latin-1").strip()
        if re.fullmatch(r"[0-9]{1,9}", text):
            return int(text) * 1000.0
        try:
            date = email.utils.parsedate_to_datetime(text)
            if date.tzinfo is None:  # one of HTTP's forms names none
                date = date.replace(tzinfo=datetime.UTC)
            return max(0.0, date.timestamp() - now_s) * 1000
        except (ValueError, OverflowError, OSError):
            return 0.0
    return 0.0


def _described(error: Exception, timeout_ms: int) -> str:
    if isinstance(error, httpcore.TimeoutException):
        return f"no answer within {timeout_ms} ms ({type(error).__name__})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def _quoted(text: str) -> str:
    quoted = quote(text, safe="")
    if quoted in (".", ".."):  # a client, or a server, would take it for a folder
        raise InvalidRecord(f"{text!r} cannot be a part of a URI's path")
    return quoted


def _origin(uri: Template) -> httpx.URL:
    """Raises `ConfigurationError`, which shows no part of it: there may be a password in it."""
    literal, name = uri.parts[0] if uri.parts else ("", None)
    scheme, separator, rest = literal.partition("://")
    if not separator or scheme not in ("http", "https") or (name and "/" not in rest):
        raise ConfigurationError(
            "uri cannot be read: write http:// or https://, a host without placeholders, and a path"
        )
    try:
        url = httpx.URL(literal)
    except (httpx.InvalidURL, ValueError):
        raise ConfigurationError(
            "uri cannot be read: its host or its port is none; what belongs to neither is "
            "percent-encoded"
        ) from None
    if not url.host:
        raise ConfigurationError("uri has no host in it")
    if any(not t.isascii() or "#" in t or re.search(r"[\s\x00-\x1f]", t) for t, _ in uri.parts):
        raise ConfigurationError("uri cannot be read: percent-encode spaces, # and umlauts in it")
    if url.userinfo:
        raise ConfigurationError("uri has credentials in it: give an Authorization header")
    return url


def _target_at(uri: str) -> int:
    """Where path and query begin."""
    begin = uri.index("://") + len("://")
    found = re.search(r"[/?]", uri[begin:])
    return len(uri) if found is None else begin + found.start()


def _header_name(name: str, ours: frozenset[bytes]) -> bytes:
    encoded = name.encode()
    if not _NAME.fullmatch(encoded):
        raise ConfigurationError(f"headers: {name!r} is no name of an HTTP header")
    if encoded.lower() in ours:
        raise ConfigurationError(
            f"headers: {name!r} is no header that can be given: harvest sets it itself"
        )
    return encoded


def _header_template(name: str, text: str, outbox: str) -> Template:
    template = Template.parse(text, outbox, f"the header {name!r}")
    _check_value(template.name, "".join([literal for literal, _ in template.parts]))
    return template


def _check_value(name: str, text: str) -> None:
    """Every request would be refused for it. What it says may be a secret."""
    if _BAD_VALUE.search(text.encode()):
        raise ConfigurationError(
            f"{name} has control characters in its value, such as the end of a line: take them out"
        )


def _header_value(name: bytes, value: bytes) -> bytes:
    if _BAD_VALUE.search(value):
        raise InvalidRecord(f"the header {name.decode()!r} has control characters in its value")
    return value.strip()


def _ssl_context(endpoint: HttpEndpoint) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
        if endpoint.cert_file is not None:
            context.load_cert_chain(endpoint.cert_file, endpoint.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"the certificates cannot be read: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context
