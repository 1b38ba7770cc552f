"""`/healthz` and `/metrics` of a harvesting process over HTTP, for probes and Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from harvest.errors import ConfigurationError
from harvest.runtime.monitor import Monitor
from marshal_py.errors import ConfigurationError as CannotListen
from marshal_py.telemetry.status_server import StatusServer
from marshal_py.telemetry.status_server import parse_address as parse

__all__ = ["parse_address", "status_server"]

_LOG: Final = logging.getLogger("harvest")


def parse_address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; the host may be empty (all addresses) or an IPv6 one in brackets.

    Raises `ConfigurationError`.
    """
    try:
        return parse(text)
    except CannotListen as error:
        raise ConfigurationError(f"--{error}".replace("listen =", "listen")) from None


def status_server(monitor: Monitor, address: tuple[str, int]) -> StatusServer:
    """Serve what `monitor` knows on `address`, until it is closed.

    ``/healthz``: 200 when healthy, 503 when not, with JSON that says why. ``/metrics``: for
    Prometheus; 501 without the extra `metrics`. Raises `ConfigurationError` when the address cannot
    be listened on.
    """

    def health() -> Mapping[str, object]:
        found = monitor.health()
        return {"ok": found.ok, "state": found.state, "problems": list(found.problems)}

    scrape: Callable[[], bytes] | None = None
    try:
        from harvest.runtime.metrics import scrape as scrape_monitor
    except ImportError:
        pass
    else:
        scrape = lambda: scrape_monitor(monitor)  # noqa: E731
    try:
        return StatusServer(address, health, scrape, _LOG)
    except CannotListen as error:
        raise ConfigurationError(f"--{error}".replace("listen =", "listen")) from None
