"""Where the relay sends rows: an HTTP server that knows the newest leader, and has bad moments."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal, NamedTuple, Self

__all__ = ["Mood", "Received", "Receiver"]

Mood = Literal["well", "down", "broken", "silent"]
"""It takes rows; answers 503; answers 500, and has taken them all the same; does not answer."""

_SILENT_S: Final = 6.0
"""Longer than the relay waits for an answer."""
_STATUS: Final[dict[Mood, int]] = {"well": 204, "down": 503, "broken": 500, "silent": 504}


class Received(NamedTuple):
    """A request that was taken, whatever was answered."""

    key: str
    body: str
    idempotency_key: str
    epoch: int


class Receiver:
    """Takes what the newest leader sends, and refuses what comes of an older one (409)."""

    def __init__(self) -> None:
        self.mood: Mood = "well"
        self.received: list[Received] = []
        self.refused = 0
        """Requests of leaders that had been replaced."""
        self.turned_away = 0
        """Requests that met a bad moment."""
        self._epoch = -1
        self._lock = threading.Lock()
        self._awake = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                if len(body) < length:
                    self.close_connection = True  # whoever sent it is gone
                    return
                self.send_response(receiver._take(self, body.decode()))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A connection was cut."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def _take(self, request: BaseHTTPRequestHandler, body: str) -> int:
        """Decide about a request; return the status."""
        epoch = int(request.headers["Harvest-Epoch"])
        key = request.headers["Idempotency-Key"]
        mood = self.mood
        with self._lock:
            if epoch < self._epoch:
                self.refused += 1
                return 409
            self._epoch = epoch
            self.turned_away += mood != "well"
            if mood != "down":
                self.received.append(Received(request.path.rpartition("/")[2], body, key, epoch))
        if mood == "silent":
            self._awake.wait(_SILENT_S)
        return _STATUS[mood]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._awake.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
