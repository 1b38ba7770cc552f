"""Connections whose every read and write ends at one deadline, however slowly bytes arrive.

A time-out per read lets a server that sends one byte a second hold a thread for ever. What is
written is kept until something is to be read, so that a small request is one packet.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Final

import httpcore

__all__ = ["Deadline", "DeadlineBackend", "NameLookupTimeout"]


_KEPT_BYTES: Final = 32_768
_PIECE_BYTES: Final = 16_384
"""So much is written at a time: who takes bytes slowly is given no more time for each of them."""


class NameLookupTimeout(httpcore.ConnectTimeout):
    """The addresses of a host were not found in time."""


class Deadline:
    """A moment, of one thread's connections; set it before each request."""

    def __init__(self) -> None:
        self._at_s = 0.0

    def set(self, timeout_s: float) -> None:
        """From now on."""
        self._at_s = time.monotonic() + timeout_s

    def left_s(self, error: type[Exception]) -> float:
        """Seconds that are left. Raises `error` when there are none."""
        left_s = self._at_s - time.monotonic()
        if left_s <= 0:
            raise error("the time is up")
        return left_s


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline
        self._kept = b""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del timeout
        if self._kept:
            with contextlib.suppress(httpcore.WriteError):  # it may have answered all the same
                self._flush()
        return self._stream.read(max_bytes, self._deadline.left_s(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        del timeout
        self._kept = self._kept + buffer if self._kept else buffer
        if len(self._kept) > _KEPT_BYTES:
            self._flush()

    def _flush(self) -> None:
        kept, self._kept = self._kept, b""
        for begin in range(0, len(kept), _PIECE_BYTES):
            left_s = self._deadline.left_s(httpcore.WriteTimeout)
            self._stream.write(kept[begin : begin + _PIECE_BYTES], left_s)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        del timeout
        left_s = self._deadline.left_s(httpcore.ConnectTimeout)
        stream = self._stream.start_tls(ssl_context, server_hostname, left_s)
        return _Stream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class DeadlineBackend(httpcore.NetworkBackend):
    """Opens connections for one thread. The deadline holds for connecting, and for the name, too.

    Of a host with several addresses, each has its share of the time that is left: the first may
    drop what is sent to it.
    """

    def __init__(self, deadline: Deadline) -> None:
        self._backend = httpcore.SyncBackend()
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """See `httpcore.NetworkBackend`."""
        del timeout
        addresses = _addresses(host, port, self._deadline)
        for left in range(len(addresses), 0, -1):
            share_s = self._deadline.left_s(httpcore.ConnectTimeout) / left
            try:
                stream = self._backend.connect_tcp(
                    addresses[-left], port, share_s, local_address, socket_options
                )
                return _Stream(stream, self._deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if left == 1:
                    raise
        raise httpcore.ConnectError(f"{host} has no address")


def _addresses(host: str, port: int, deadline: Deadline) -> list[str]:
    """Look up a host's addresses, as numbers.

    The system's resolver has time-outs of its own, and knows of no other: so it is asked in a
    thread, which is left to itself when the time is up.
    """
    answer: Future[list[str]] = Future()

    def look_up() -> None:
        try:
            answer.set_result(_look_up(host, port))
        except BaseException as error:
            answer.set_exception(error)

    left_s = deadline.left_s(httpcore.ConnectTimeout)
    threading.Thread(target=look_up, name="harvest-lookup", daemon=True).start()
    try:
        return answer.result(left_s)
    except TimeoutError:
        raise NameLookupTimeout(host) from None


def _look_up(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore.ConnectError(error) from error
    # As numbers, with the scope that a link-local address has.
    numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    return [socket.getnameinfo(address, numeric)[0] for *_, address in found]
