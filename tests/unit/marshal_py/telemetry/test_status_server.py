"""Health and metrics over HTTP: what is answered, and where it may listen."""

from __future__ import annotations

import logging
import socket
import urllib.request
from collections.abc import Callable

import pytest

from marshal_py.errors import ConfigurationError
from marshal_py.telemetry.status_server import StatusServer, _Handler, parse_address
from tests.unit.marshal_py.telemetry.test_consumer_status import get

LOG = logging.getLogger("marshal_py.consumer")


def server(
    health: dict[str, object],
    scrape: Callable[[], bytes] | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> StatusServer:
    return StatusServer((host, port), lambda: health, scrape, LOG)


def test_a_probe_may_ask_with_a_query() -> None:
    with server({"ok": True}) as found:
        assert get(found.port, "/healthz?verbose=1")[0] == 200
        assert get(found.port, "/healthz/more")[0] == 404


def test_who_is_not_well_says_so_by_503_and_why() -> None:
    with server({"ok": False, "problems": ["no disk"]}) as found:
        code, text = get(found.port, "/healthz")
    assert code == 503
    assert "no disk" in text


def test_without_the_extra_metrics_are_told_to_be_missing_and_health_is_there() -> None:
    """An empty page would look like a program without metrics."""
    with server({"ok": True}) as found:
        code, text = get(found.port, "/metrics")
        assert (code, get(found.port, "/healthz")[0]) == (501, 200)
    assert "pip install 'marshal-py[metrics]'" in text


def test_metrics_are_what_is_scraped() -> None:
    with server({"ok": True}, lambda: b"a 1\n") as found:
        assert get(found.port, "/metrics") == (200, "a 1\n")


def test_who_connects_and_asks_nothing_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread for each, as long as the process lives."""
    waited_s: list[float | None] = []
    answer = _Handler.do_GET

    def note(handler: _Handler) -> None:
        waited_s.append(handler.connection.gettimeout())
        answer(handler)

    monkeypatch.setattr(_Handler, "do_GET", note)
    with server({"ok": True}) as found:
        assert get(found.port, "/healthz")[0] == 200
    assert waited_s == [10.0]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/healthz", "application/json"),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),  # else Prometheus refuses it
    ],
)
def test_an_answer_says_what_it_is(path: str, kind: str) -> None:
    with (
        server({"ok": True}, lambda: b"a 1\n") as found,
        urllib.request.urlopen(f"http://127.0.0.1:{found.port}{path}", timeout=60) as answer,
    ):
        body = answer.read()
        assert answer.headers["Content-Type"] == kind
        assert int(answer.headers["Content-Length"]) == len(body)


def test_an_ipv6_address_can_be_listened_on() -> None:
    with server({"ok": True}, host="::1") as found, socket.create_connection(("::1", found.port)):
        pass


def test_an_address_that_is_taken_is_named() -> None:
    with server({"ok": True}) as first, pytest.raises(ConfigurationError) as refused:
        server({"ok": True}, port=first.port)
    assert f"127.0.0.1:{first.port}': Address already in use" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), (":0", ("", 0)), ("[::1]:65535", ("::1", 65535))],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "80", "host", "host:", "host:http", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write HOST:PORT"):
        parse_address(text)
