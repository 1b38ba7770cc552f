"""`/healthz` and `/metrics` over HTTP, for probes and Prometheus."""

from __future__ import annotations

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from harvest.errors import ConfigurationError
from harvest.runtime.monitor import Monitor

__all__ = ["StatusServer", "parse_address"]

_LOG: Final = logging.getLogger("harvest")
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_CLIENT_TIMEOUT_S: Final = 10


def parse_address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; the host may be empty (all addresses) or an IPv6 one in brackets.

    Raises `ConfigurationError`.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"--listen {text!r}: write HOST:PORT, as in 127.0.0.1:9101")
    return host.strip("[]"), int(port)


class StatusServer:
    """Serves what `monitor` knows on `address`, in threads of its own, until `close`.

    ``/healthz``: 200 when healthy, 503 when not, with JSON that says why. ``/metrics``: for
    Prometheus; 501 without the extra `metrics`.

    Raises `ConfigurationError` when the address cannot be listened on.
    """

    def __init__(self, monitor: Monitor, address: tuple[str, int]) -> None:
        class Handler(_Handler):
            pass

        Handler.monitor = monitor
        kind = type("Server", (ThreadingHTTPServer,), {"address_family": _family(address[0])})
        try:
            self._server: ThreadingHTTPServer = kind(address, Handler)
        except OSError as error:
            where = f"{address[0]}:{address[1]}"
            raise ConfigurationError(f"--listen {where}: {error.strerror or error}") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="harvest-http", daemon=True
        )
        self._thread.start()
        _LOG.info("serving /healthz and /metrics on port %d", self.port)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    monitor: Monitor
    timeout = _CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            health = self.monitor.health()
            body = {"ok": health.ok, "state": health.state, "problems": list(health.problems)}
            text = json.dumps(body).encode() + b"\n"
            self._answer(200 if health.ok else 503, "application/json", text)
        elif path == "/metrics":
            self._metrics()
        else:
            self._answer(404, "text/plain", b"/healthz or /metrics\n")

    def _metrics(self) -> None:
        try:
            from harvest.runtime.metrics import scrape
        except ImportError:
            text = b"install the extra: pip install 'marshal-py[metrics]'\n"
            self._answer(501, "text/plain", text)
            return
        self._answer(200, _METRICS_TYPE, scrape(self.monitor))

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        _LOG.debug("http: " + format, *arguments)


def _family(host: str) -> int:
    import socket

    return socket.AF_INET6 if ":" in host else socket.AF_INET
