"""`/healthz` and `/metrics` over HTTP, for a container's probes and for Prometheus.

::

    from marshal_py.telemetry import serve_status

    with serve_status(consumer, "0.0.0.0:8080"):
        consumer.run(handle)
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, Self

from marshal_py.consumer.consumer import Consumer
from marshal_py.errors import ConfigurationError

__all__ = ["StatusServer", "parse_address", "serve_status"]

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_CLIENT_TIMEOUT_S: Final = 10


def parse_address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; the host may be empty (all addresses) or an IPv6 one in brackets.

    Raises `ConfigurationError`.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"listen = {text!r}: write HOST:PORT, as in 127.0.0.1:9101")
    return host.strip("[]"), int(port)


@contextmanager
def serve_status(consumer: Consumer, listen: str) -> Iterator[StatusServer]:
    """Serve a consumer's health and metrics on ``HOST:PORT`` within the block, and start it.

    ``/healthz``: 200 when `Consumer.health` is ok, 503 when not, with JSON that says why; it is not
    before the consumer has started. ``/metrics``: for Prometheus, those of `ConsumerMetrics` and
    `MarshalMetrics`; 501 without the extra `metrics`. Raises `ConfigurationError`, without starting
    the consumer, when the address cannot be listened on, and as `Consumer.start` does.
    """
    address = parse_address(listen)
    registry: Any = None
    scrape: Callable[[], bytes] | None = None
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        pass
    else:
        registry = CollectorRegistry()
        scrape = lambda: generate_latest(registry)  # noqa: E731

    def health() -> Mapping[str, object]:
        found = consumer.health()
        return {"ok": found.ok, "problems": list(found.problems)}

    log = logging.getLogger("marshal_py.consumer")
    with StatusServer(address, health, scrape, log) as server, ExitStack() as stack:
        consumer.start()  # now: if the address were taken, nobody would close it
        if registry is not None:
            from marshal_py.telemetry.client_metrics import MarshalMetrics
            from marshal_py.telemetry.consumer_metrics import ConsumerMetrics

            stack.enter_context(MarshalMetrics(consumer.marshal, registry))
            stack.enter_context(ConsumerMetrics(consumer, registry))
        yield server


class StatusServer:
    """Serves on `address`, in threads of its own, until `close`.

    `health`: what ``/healthz`` answers, with ``ok``; `scrape`: what ``/metrics`` does, None if the
    extra `metrics` is missing. Raises `ConfigurationError` when the address cannot be listened on.
    """

    def __init__(
        self,
        address: tuple[str, int],
        health: Callable[[], Mapping[str, object]],
        scrape: Callable[[], bytes] | None,
        log: logging.Logger,
    ) -> None:
        class Handler(_Handler):
            source = _Source(health, scrape, log)

        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        kind = type("Server", (ThreadingHTTPServer,), {"address_family": family})
        try:
            self._server: ThreadingHTTPServer = kind(address, Handler)
        except OSError as error:
            where = f"{address[0]}:{address[1]}"
            raise ConfigurationError(f"listen = {where!r}: {error.strerror or error}") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="marshal-http", daemon=True
        )
        self._thread.start()
        log.info("serving /healthz and /metrics on port %d", self.port)

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


class _Source(NamedTuple):
    health: Callable[[], Mapping[str, object]]
    scrape: Callable[[], bytes] | None
    log: logging.Logger


class _Handler(BaseHTTPRequestHandler):
    source: _Source
    timeout = _CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            health = self.source.health()
            text = json.dumps(health).encode() + b"\n"
            self._answer(200 if health["ok"] else 503, "application/json", text)
        elif path == "/metrics":
            scrape = self.source.scrape
            if scrape is None:
                text = b"install the extra: pip install 'marshal-py[metrics]'\n"
                self._answer(501, "text/plain", text)
            else:
                self._answer(200, _METRICS_TYPE, scrape())
        else:
            self._answer(404, "text/plain", b"/healthz or /metrics\n")

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        self.source.log.debug("http: " + format, *arguments)
