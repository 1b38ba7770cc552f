"""Who may see the page: strangers and other sites may not. An ASGI middleware.

- Bound to the loopback interface, anybody on this machine may look. The `Host` of a request must
  then name this machine, so that a site whose name is made to point here (DNS rebinding) gets
  nothing.
- Bound elsewhere, a token is needed: once as ``?token=…``, which becomes a cookie, or as
  ``Bearer``. It is compared in constant time. A rebound name has no cookie.
- A request that a browser sends for another site (``Sec-Fetch-Site``, ``Origin``) is refused,
  whatever it asks for. The cookie is ``SameSite=Strict`` and ``HttpOnly`` besides.
- Nothing may frame the page, and it may load nothing from elsewhere (Content-Security-Policy).
- Methods are GET and HEAD; with `write`, POST too, and only with an `Origin` that is this one.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marshal_py.errors import ConfigurationError

__all__ = ["Guard", "given_token", "is_loopback", "new_token"]

_TOKEN: Final = re.compile(r"[\w-]{24,}", re.ASCII)

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(24)


def given_token(name: str) -> str | None:
    """Return the token in an environment variable, None if it is not set.

    Raises `ConfigurationError` for one that could be guessed, or that no address can hold.
    """
    token = os.environ.get(name)
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"{name} has to be 24 or more of A-Z, a-z, 0-9, - and _, as "
            '`python -c "import secrets; print(secrets.token_urlsafe())"` prints them'
        )
    return token


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Lets through what the page itself asks for.

    `token` None: none is needed, and the requests' `Host` must be a loopback name or one of
    `host_names`. `write`: POST is let through.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None = None,
        host_names: Iterable[str] = (),
        write: bool = False,
    ) -> None:
        self._app = app
        self._token = token
        self._host_names = {name.lower() for name in host_names}
        self._methods = {"GET", "HEAD", "POST"} if write else {"GET", "HEAD"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._judge(scope)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _judge(self, scope: Scope) -> Response | None:
        """Return what to answer instead of the page; None: let it through."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not _well_formed(f"//{host}") or not _well_formed(origin or ""):
            return _refuse(400, "Host or Origin is malformed")
        if scope["method"] not in self._methods:
            return _refuse(405, "this dashboard only reads; start it with --write to change things")
        if self._token is None and not self._is_ours(host):
            return _refuse(421, "this name is not this dashboard's; use 127.0.0.1 or localhost")
        # A link from another site may lead to the page; nothing else of another site may.
        link = headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not link:
            return _refuse(403, "requests of other sites are refused")
        if origin is None and scope["method"] == "POST":
            return _refuse(403, "a request that changes something must say where it comes from")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return _refuse(403, "requests of other sites are refused")
        return None if self._token is None else self._check_token(scope, headers, self._token)

    def _is_ours(self, host: str) -> bool:
        name = urlsplit(f"//{host}").hostname or ""
        return is_loopback(name) or name.lower() in self._host_names

    def _check_token(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None and _same(given, token):
            # The token leaves the address, so that it is in no history and no screenshot.
            rest = urlencode([(k, v) for k, v in query if k != "token"])
            answer = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(_cookie(headers), token, httponly=True, samesite="strict", path="/")
            return answer
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(bearer.strip(), token):
            return None
        # Other programs on this host may have cookies that http.cookies cannot read.
        cookie = HTTPConnection(scope).cookies.get(_cookie(headers))
        if cookie is not None and _same(cookie, token):
            return None
        return _refuse(401, "open the address with ?token=… that the dashboard has printed")


def _well_formed(address: str) -> bool:
    try:
        found = urlsplit(address)
        return found.port is None or found.port >= 0  # it is parsed here
    except ValueError:
        return False


def _cookie(headers: Headers) -> str:
    """Cookies do not know ports: two dashboards on one machine must not share one."""
    port = urlsplit(f"//{headers.get('host', '')}").port
    return f"marshal_token_{port or 0}"


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _refuse(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status)
