"""One HTTP/1.1 connection: a request is written, and its answer read.

Nearly every answer is a status, a few headers, and a body whose length is given: it is read here.
All others (chunks, pieces, interim answers, garbage) are given to h11, from their first byte on: it
decides what is HTTP. With h11 throughout an exchange would cost several times the CPU.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import h11
import httpcore

__all__ = ["Answer", "Connection", "Headers"]

Headers = Sequence[tuple[bytes, bytes]]

_PLAIN: Final = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)*)\r\n"
)
_LENGTH: Final = re.compile(rb"[0-9]{1,9}")
_READ_BYTES: Final = 65_536
_MAX_BODY_BYTES: Final = 65_536
_MAX_HEAD_BYTES: Final = 102_400
_KEEP_ALIVE_S: Final = 30.0


class Answer(NamedTuple):
    """A status, the headers with their names in lower case, and how the body begins."""

    status: int
    headers: Headers
    said: bytes


class _Plain(NamedTuple):
    """An answer of which the end is known; `end` bytes in all."""

    status: int
    headers: Headers
    begin: int
    end: int


class Connection:
    """A connection over `stream`, for one thread, and one exchange at a time."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self._reusable = True
        self._used_s = time.monotonic()
        self._exchanging = threading.Lock()

    @property
    def usable(self) -> bool:
        """Whether another exchange can be tried: both sides keep the connection open."""
        if not self._reusable or time.monotonic() - self._used_s > _KEEP_ALIVE_S:
            return False
        return not self._stream.get_extra_info("is_readable")  # closed, or out of step

    def exchange(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> Answer:
        """Send a request, return the answer. Everything in it is known to be allowed in HTTP.

        Raises `httpcore.NetworkError`, `ProtocolError`, and `TimeoutException`. Once there is a
        status, it decides: what goes wrong with the body costs the connection, and nothing else.
        """
        with self._exchanging:
            return self._exchange(method, target, headers, body)

    def _exchange(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> Answer:
        self._reusable = False
        lines = [b"%b %b HTTP/1.1" % (method, target)]
        lines += [b"%b: %b" % header for header in headers]
        lines += [b"", body]
        with contextlib.suppress(httpcore.WriteError):  # it may have answered before the end
            self._stream.write(b"\r\n".join(lines))
        data = self._stream.read(_READ_BYTES)
        plain = None if method in (b"HEAD", b"CONNECT") else _plain(data)
        if plain is None:
            answer = self._read_on(method, target, headers, body, data)
        else:
            answer = self._rest(plain, data)
        self._used_s = time.monotonic()
        return answer

    def close(self) -> None:
        """Close it. From any thread: an exchange that is under way breaks off."""
        connected = self._stream.get_extra_info("socket")
        if connected is not None:
            with contextlib.suppress(OSError):
                # Wakes who waits for it, as closing does not. Not TLS's own shutdown, which waits.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)
        with self._exchanging:
            self._stream.close()

    def _rest(self, plain: _Plain, data: bytes) -> Answer:
        with contextlib.suppress(httpcore.NetworkError, httpcore.TimeoutException):
            while len(data) < plain.end and (more := self._stream.read(_READ_BYTES)):
                data += more
        self._reusable = len(data) == plain.end
        return Answer(plain.status, plain.headers, data[plain.begin : plain.end])

    def _read_on(
        self, method: bytes, target: bytes, headers: Headers, body: bytes, data: bytes
    ) -> Answer:
        """The answer that begins with `data`, as h11 reads it."""
        protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        protocol.send(h11.Request(method=method, target=target, headers=list(headers)))
        protocol.send(h11.Data(body))
        protocol.send(h11.EndOfMessage())
        protocol.receive_data(data)
        head: h11.Response | None = None
        said = b""
        try:
            while len(said) <= _MAX_BODY_BYTES:
                event = protocol.next_event()
                if event is h11.NEED_DATA:
                    data = self._stream.read(_READ_BYTES)
                    if not data and head is None:
                        raise httpcore.RemoteProtocolError(
                            "the server disconnected without an answer"
                        )
                    protocol.receive_data(data)
                elif isinstance(event, h11.Response):
                    head = event
                elif isinstance(event, h11.Data):
                    said += event.data
                elif not isinstance(
                    event, h11.InformationalResponse
                ):  # the end, of the answer or of the connection
                    done = protocol.our_state is h11.DONE and protocol.their_state is h11.DONE
                    self._reusable = done and protocol.trailing_data == (b"", False)
                    break
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
            if head is None:
                raise
        except h11.RemoteProtocolError as error:
            if head is None:
                raise httpcore.RemoteProtocolError(str(error)) from error
        if head is None:
            raise httpcore.RemoteProtocolError("the server disconnected without an answer")
        return Answer(head.status_code, list(head.headers), said)


def _plain(data: bytes) -> _Plain | None:
    """What `data` begins with, if that is an answer whose end is known."""
    match = _PLAIN.match(data)
    if match is None:
        return None
    status = int(match[1])
    headers = []
    length = None
    for line in match[2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if name == b"content-length":
            if length is not None or not _LENGTH.fullmatch(value):
                return None
            length = int(value)
        elif name == b"transfer-encoding" or (
            name == b"connection" and value.lower() != b"keep-alive"
        ):
            return None
        headers.append((name, value))
    if status in (204, 304):
        length = 0
    if length is None or length > _MAX_BODY_BYTES:
        return None
    return _Plain(status, headers, match.end(), match.end() + length)
