"""`marshal dashboard`: who needs a token, which of them are printed, and what is given back."""

from __future__ import annotations

import json
import socket
from contextlib import nullcontext
from signal import SIGINT, SIGTERM, Signals
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")
pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

from starlette.testclient import TestClient

from marshal_py.cli import dashboard as module
from marshal_py.dashboard.log_follower import LogFollower
from tests.support.marshal_command import without_brokers

SERVE = module._serve
OWN = "a-token-of-24-characters-or-more"


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was served, of one command; nothing is."""
    found: dict[str, Any] = {"closed": 0}

    def serve(app: Any, follower: LogFollower, listener: socket.socket) -> None:
        found.update(app=app, follower=follower, listener=listener)

    def close(_: LogFollower) -> None:
        found["closed"] += 1

    monkeypatch.setattr(module, "_serve", serve)
    monkeypatch.setattr(LogFollower, "start", lambda _: None)
    monkeypatch.setattr(LogFollower, "close", close)
    return found


def url_of(*arguments: str, **environment: str) -> str:
    done = without_brokers("dashboard", "--port", "0", "--json", *arguments, **environment)
    assert done.exit_code == 0, done.stderr
    return str(json.loads(done.stdout)["url"])


def status_of(served: dict[str, Any], **headers: str) -> int:
    pages = TestClient(served["app"], base_url="http://localhost", follow_redirects=False)
    return pages.get("/", headers=headers).status_code


def test_on_this_machine_no_token_is_needed_unless_it_is_asked_for(
    served: dict[str, Any],
) -> None:
    assert "token" not in url_of()
    assert status_of(served) == 200
    token = url_of("--token").rpartition("?token=")[2]
    assert len(token) >= 32
    assert status_of(served) == 401
    assert status_of(served, authorization=f"Bearer {token}") == 200


def test_beyond_this_machine_nobody_gets_in_without_a_token(served: dict[str, Any]) -> None:
    token = url_of("--host", "0.0.0.0").rpartition("?token=")[2]
    assert status_of(served) == 401
    assert status_of(served, authorization=f"Bearer {token}") == 200


def test_a_token_of_the_operators_own_is_needed_and_not_printed(served: dict[str, Any]) -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        assert OWN not in url_of("--host", host, MARSHAL_DASHBOARD_TOKEN=OWN)
        assert status_of(served) == 401
        assert status_of(served, authorization=f"Bearer {OWN}") == 200
    text = without_brokers("dashboard", "-p", "0", MARSHAL_DASHBOARD_TOKEN=OWN)
    assert OWN not in text.stdout + text.stderr


def test_a_token_that_could_be_guessed_is_refused() -> None:
    done = without_brokers("dashboard", "--port", "0", MARSHAL_DASHBOARD_TOKEN="secret")
    assert done.exit_code == 2
    assert "MARSHAL_DASHBOARD_TOKEN has to be 24 or more" in done.stderr
    assert "secret" not in done.stderr.replace("import secrets; print(secrets.", "")


def test_it_is_told_where_it_listens_and_leaves_nothing_behind(served: dict[str, Any]) -> None:
    url = url_of("--host", "::1")
    assert url.startswith("http://[::1]:")
    assert served["listener"].fileno() == -1
    assert served["closed"] == 1


@pytest.mark.parametrize(("host", "name"), [("0.0.0.0", "box"), ("::", "box"), ("::1", "[::1]")])
def test_where_all_addresses_are_listened_on_the_machine_is_named(
    monkeypatch: pytest.MonkeyPatch, host: str, name: str
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "box")
    assert url_of("--host", host).startswith(f"http://{name}:")


def test_an_address_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = without_brokers("dashboard", "--port", str(port))
    assert done.exit_code == 2
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in done.stderr


def test_nothing_is_written_unless_it_is_asked_for(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        "marshal_py.dashboard.audit_trail.AuditTrail.ensure", lambda trail: made.append(trail.topic)
    )
    logged: list[str] = []
    monkeypatch.setattr(module, "log_to_stderr", lambda *, name: logged.append(name))
    url_of()
    assert (made, served["follower"].write, logged) == ([], False, [])
    url_of("--write")
    assert (made, served["follower"].write) == (["__marshal.audit"], True)
    assert logged == ["marshal_py.dashboard.actions"], "who did what is on standard error, too"


@pytest.mark.parametrize(("number", "interrupted"), [(SIGTERM, False), (SIGINT, True)])
def test_a_second_signal_ends_it_at_once(
    monkeypatch: pytest.MonkeyPatch, number: Signals, interrupted: bool
) -> None:
    """The first lets pages end that are under way."""
    seen: list[tuple[bool, bool]] = []
    ended: list[int] = []

    def run(server: Any, sockets: list[Any]) -> None:
        assert sockets == [listener]
        for _ in range(2):
            server.handle_exit(number, None)
            seen.append((server.should_exit, server.force_exit))

    monkeypatch.setattr("uvicorn.Server.run", run)
    app: Any = None
    listener: Any = object()
    follower: Any = SimpleNamespace(end_streams=lambda: ended.append(1))
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        SERVE(app, follower, listener)
    assert seen == [(True, False), (True, True)]
    assert len(ended) == 2


def test_what_it_is_told_reaches_the_pages(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(
        "marshal_py.dashboard.app.create_app", lambda _, **named: told.update(named)
    )
    url_of(
        *("--history", "60", "--lag-every", "0", "--wire", "text"),
        *("--host-name", "box", "--host-name", "box.example"),
        *("--user-header", "X-User", "--dead-letters", "dead-*"),
    )
    follower = served["follower"]
    assert (follower.history_s, follower.lag_every_s, follower.wire.name) == (60.0, 0.0, "text")
    assert told == {
        "token": None,
        "host_names": ("box", "box.example"),
        "write": False,
        "dead_letters": "dead-*",
        "user_header": "X-User",
    }
