"""Who gets the page: strangers and other sites do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")

from starlette.responses import PlainTextResponse

from marshal_py.dashboard.guard import HEADERS, Guard, given_token, is_loopback, new_token
from marshal_py.errors import ConfigurationError

TOKEN = "t0ken-of-the-test"


def ask(
    guard: Guard, path: str = "/", *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str]]:
    path, _, query = path.partition("?")
    given = {"host": "127.0.0.1:8090"} | {k.replace("_", "-"): v for k, v in headers.items()}
    scope = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(),
        "headers": [(k.encode(), v.encode()) for k, v in given.items()],
    }  # fmt: skip
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(guard(scope, receive, send))
    start = sent[0]
    return start["status"], {k.decode().lower(): v.decode() for k, v in start["headers"]}


def guard(**settings: Any) -> Guard:
    return Guard(PlainTextResponse("the page"), **settings)


def test_a_loopback_name_is_enough_on_this_machine() -> None:
    for host in ("127.0.0.1:8090", "localhost:8090", "[::1]:8090", "LOCALHOST"):
        status, headers = ask(guard(), host=host)
        assert status == 200
        assert HEADERS.items() <= headers.items()
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example:8090", "127.0.0.1.evil.example", "", "10.0.0.7"])
def test_a_name_that_was_rebound_to_this_machine_gets_nothing(host: str) -> None:
    assert ask(guard(), host=host)[0] == 421
    assert ask(guard(host_names=["Evil.example"]), host="evil.example:8090")[0] == 200


def test_other_sites_get_nothing() -> None:
    assert ask(guard(), "/api/stream", origin="http://evil.example")[0] == 403
    assert ask(guard(), "/api/stream", origin="null")[0] == 403
    assert ask(guard(), "/api/stream", origin="http://127.0.0.1:9999")[0] == 403
    assert ask(guard(), "/api/stream", origin="http://127.0.0.1:8090")[0] == 200
    for site in ("cross-site", "same-site"):
        assert ask(guard(), "/api/at", sec_fetch_site=site)[0] == 403
        link = {"sec_fetch_site": site, "sec_fetch_mode": "navigate"}
        assert ask(guard(), "/", **link)[0] == 200, "a link may lead to the page"
        assert ask(guard(), "/api/at", **link)[0] == 403, "and to nothing that works"


def test_reading_is_all_that_is_let_through() -> None:
    own = {"origin": "http://127.0.0.1:8090"}
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert ask(guard(), method=method, **own)[0] == 405
    assert ask(guard(write=True), method="POST", **own)[0] == 200
    assert ask(guard(write=True), method="POST")[0] == 403, "nobody says where it comes from"
    assert ask(guard(write=True), method="POST", origin="http://evil.example")[0] == 403
    assert ask(guard(write=True), method="DELETE", **own)[0] == 405


def test_what_is_refused_is_as_closed_to_other_sites_as_the_page() -> None:
    for asked, settings, status in (
        ({"host": "evil.example"}, {}, 421),
        ({"host": "[::1"}, {}, 400),
        ({"method": "PUT"}, {}, 405),
        ({"origin": "http://evil.example"}, {}, 403),
        ({}, {"token": TOKEN}, 401),
        ({"path": f"/?token={TOKEN}"}, {"token": TOKEN}, 303),
    ):
        found, headers = ask(guard(**settings), **asked)
        assert found == status
        assert {**HEADERS, "cache-control": "no-store"}.items() <= headers.items()


@pytest.mark.parametrize("token", ["short", "x" * 24 + "é", "x" * 24 + "\n", "x y" * 9, ""])
def test_a_token_that_could_be_guessed_or_that_no_address_holds_is_refused(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    assert given_token("TOKEN") is None
    monkeypatch.setenv("TOKEN", "x-_9" * 6)
    assert given_token("TOKEN") == "x-_9" * 6
    monkeypatch.setenv("TOKEN", token)
    with pytest.raises(ConfigurationError, match="TOKEN has to be 24 or more"):
        given_token("TOKEN")


def test_a_token_opens_once_and_becomes_a_cookie() -> None:
    locked = guard(token=TOKEN)
    far = {"host": "box.example:8090"}
    assert ask(locked, **far)[0] == 401
    assert ask(locked, "/?token=wrong", **far)[0] == 401
    status, headers = ask(locked, f"/?a=1&token={TOKEN}", **far)
    assert (status, headers["location"]) == (303, "/?a=1"), "the token leaves the address"
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    value = cookie.split(";")[0]
    assert ask(locked, "/api/stream", cookie=value, **far)[0] == 200
    assert ask(locked, "/api/stream", cookie=value, host="box.example:9999")[0] == 401
    assert ask(locked, "/api/stream", cookie=f"{value}x", **far)[0] == 401
    assert ask(locked, "/api/stream", authorization=f"Bearer {TOKEN}", **far)[0] == 200
    assert ask(locked, "/api/stream", authorization=f"Basic {TOKEN}", **far)[0] == 401
    assert ask(locked, "/api/at", cookie=value, origin="http://evil.example", **far)[0] == 403


@pytest.mark.parametrize("other", ['prefs={"theme": "dark"}', "a/b=1", "x", 'q="1', "=;;"])
def test_cookies_of_other_programs_on_this_host_are_in_nobodys_way(other: str) -> None:
    """Browsers send them to all ports."""
    locked = guard(token=TOKEN)
    mine = f"marshal_token_8090={TOKEN}"
    for cookie in (f"{other}; {mine}", f"{mine}; {other}"):
        assert ask(locked, "/api/stream", cookie=cookie)[0] == 200
    assert ask(locked, "/api/stream", cookie=other)[0] == 401


def test_a_token_leads_to_what_was_asked_for() -> None:
    status, headers = ask(guard(token=TOKEN), f"/book?topic=t&token={TOKEN}")
    assert (status, headers["location"]) == (303, "/book?topic=t")


def test_what_may_be_kept_says_so_itself() -> None:
    page = PlainTextResponse("a picture", headers={"cache-control": "max-age=60"})
    assert ask(Guard(page))[1]["cache-control"] == "max-age=60"


@pytest.mark.parametrize(("kind", "seen"), [("websocket", []), ("lifespan", ["lifespan"])])
def test_of_what_is_no_request_only_start_and_end_are_let_through(
    kind: str, seen: list[str]
) -> None:
    found: list[str] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        found.append(scope["type"])

    no_channel: Any = None
    asyncio.run(Guard(app)({"type": kind}, no_channel, no_channel))
    assert found == seen


@pytest.mark.parametrize("nonsense", ["tök€n", "\x7f", "a" * 100_000])
def test_nonsense_is_refused_and_raises_nothing(nonsense: str) -> None:
    locked = guard(token=TOKEN)
    latin = nonsense.encode().decode("latin-1")
    assert (
        ask(locked, cookie=f"marshal_token_8090={latin}", authorization=f"Bearer {latin}")[0] == 401
    )
    assert ask(locked, f"/?token={latin}")[0] == 401


@pytest.mark.parametrize("nonsense", ["[::1", "[zz]:1", "127.0.0.1:port", "127.0.0.1:99999"])
def test_a_malformed_host_or_origin_is_a_bad_request(nonsense: str) -> None:
    for settings in ({}, {"token": TOKEN}):
        assert ask(guard(**settings), host=nonsense)[0] == 400
        assert ask(guard(**settings), origin=f"http://{nonsense}")[0] == 400


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "")))
    assert len(new_token()) >= 32
    assert new_token() != new_token()
