"""A real HTTP server on a port of its own that does what the path says: also everything wrong."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

ENDLESS = 100_000


@dataclass(frozen=True)
class Request:
    """What arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int
    all_headers: tuple[tuple[str, str], ...]
    """In lower case, as they came: also those that came twice."""


@dataclass
class HttpServer:
    """`script` maps the beginning of a target to what is done; else it answers 204.

    - a number: that status. Bytes: exactly these, then the connection is closed.
    - ``reset``, ``close``, ``hang``, ``slow headers``, ``slow body``, ``large body``.
    - a list of those: one after the other, the last one for ever.
    """

    port: int = 0
    tls: bool = False
    script: dict[str, object] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}"

    def bodies(self) -> list[bytes]:
        with self.lock:
            return [request.body for request in self.requests]

    def action(self, target: str) -> object:
        with self.lock:
            for beginning, action in self.script.items():
                if target.startswith(beginning):
                    if isinstance(action, list):
                        return action.pop(0) if len(action) > 1 else action[0]
                    return action
        return 204


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while self._one():
                pass

    def _one(self) -> bool:
        server: HttpServer = self.server.world  # type: ignore[attr-defined]
        line = self.rfile.readline().split()
        if len(line) != 3:
            return False
        all_headers = []
        while header := self.rfile.readline().strip():
            name, _, value = header.decode("latin-1").partition(":")
            all_headers.append((name.lower(), value.strip()))
        headers = dict(all_headers)
        size = int(headers.get("content-length", 0))
        body = self.rfile.read(size)
        if len(body) < size:
            return False  # the client was killed meanwhile
        target = line[1].decode()
        with server.lock:
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
            connection = self.client_address[1]
            server.requests.append(
                Request(line[0].decode(), target, headers, body, connection, tuple(all_headers))
            )
        try:
            return self._act(server, server.action(target))
        finally:
            with server.lock:
                server.at_once -= 1

    def _act(self, server: HttpServer, action: object) -> bool:
        send = self.wfile.write
        if isinstance(action, int):
            send(b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n" % (action, 0))
            return True
        if isinstance(action, bytes):
            send(action)
            return False
        if action == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        elif action == "hang":
            server.over.wait()
        elif action == "slow headers":
            self._drip(server, b"HTTP/1.1 200 OK\r\nX: ", b"x")
        elif action == "slow body":
            self._drip(server, b"HTTP/1.1 500 Bad\r\nContent-Length: 100000\r\n\r\n", b"y")
        elif action == "large body":
            send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(ENDLESS):
                send(b"1000\r\n%s\r\n" % (b"z" * 0x1000))
        return False

    def _drip(self, server: HttpServer, begin: bytes, drop: bytes) -> None:
        self.wfile.write(begin)
        while not server.over.wait(0.02):
            self.wfile.write(drop)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    context: ssl.SSLContext | None = None

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        if self.context is not None:
            connection = self.context.wrap_socket(connection, server_side=True)
        return connection, address

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


@contextlib.contextmanager
def http_server(context: ssl.SSLContext | None = None, port: int = 0) -> Iterator[HttpServer]:
    """One that runs until the block ends. A `context` makes it speak TLS."""
    with _Server(("127.0.0.1", port), _Handler) as server:
        server.context = context
        world = HttpServer(server.server_address[1], context is not None)
        server.world = world  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield world
        finally:
            world.over.set()
            server.shutdown()
            thread.join()
