"""The web application: static files, one stream of events, and questions about details."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from confluent_kafka import KafkaException
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from marshal_py.admin.formatting import count
from marshal_py.dashboard.audit_trail import AuditTrail
from marshal_py.dashboard.dead_letters import PATTERN, DeadLetterTopics
from marshal_py.dashboard.details import cell_document, lanes_document, time_bar_document
from marshal_py.dashboard.guard import Guard
from marshal_py.dashboard.log_follower import LogFollower
from marshal_py.dashboard.operations import Operations, decode_action
from marshal_py.dashboard.replay import Replay
from marshal_py.dashboard.subscribers import Subscriber
from marshal_py.errors import AccessDenied, BrokerUnavailable, InvalidArgument, MarshalError
from marshal_py.printable import printable

__all__ = ["create_app"]

STATIC: Final = Path(__file__).parent / "static"
PING_S: Final = 10.0
"""A sign of life, so that both sides notice when the other is gone."""

MAX_PAGES: Final = 100
MAX_BODY: Final = 65_536
MAX_AUDIT: Final = 1_000
T = TypeVar("T")


def create_app(
    follower: LogFollower,
    *,
    token: str | None = None,
    host_names: tuple[str, ...] = (),
    write: bool = False,
    dead_letters: str = PATTERN,
    user_header: str | None = None,
) -> Starlette:
    """Return the application for a follower that was started.

    `write`: groups may be paused and resumed, positions set and dead letters replayed, each after a
    preview; not in a log of version 1 (`InvalidArgument`). What is done goes into the audit trail,
    by the address that asked, and by what `user_header` says, which a proxy sets.

    `dead_letters`: which topics hold dead letters, with * and ?.

    With a `token`, nobody gets anything without it; without one, only requests to a loopback name
    or to one of `host_names` are answered (see `guard`).
    """
    trail = AuditTrail(follower.connection)
    pages = _Pages(
        follower, DeadLetterTopics(follower.connection, dead_letters), trail, user_header
    )
    actions = []
    if write and follower.wire.name == "text":
        raise InvalidArgument(
            "--write is for version 2: what may be written into a log of Go Marshal's is in "
            "specs/INTEROP.md §4.9"
        )
    if write:
        trail.ensure()
        follower.write = True
        actions = [
            Route("/api/preview", pages.preview, methods=["POST"]),
            Route("/api/perform", pages.perform, methods=["POST"]),
        ]
    return Starlette(
        routes=[
            *actions,
            Route("/", pages.index),
            Route("/api/stream", pages.stream),
            Route("/api/at", pages.at),
            Route("/api/cell", pages.cell),
            Route("/api/story", pages.story),
            Route("/api/lanes", pages.lanes),
            Route("/api/strip", pages.strip),
            Route("/api/activity", pages.activity),
            Route("/api/dead-letters", pages.dead_letters),
            Route("/api/audit", pages.audit),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(Guard, token=token, host_names=host_names, write=write),
            Middleware(GZipMiddleware, minimum_size=4_096, compresslevel=3),
        ],
        exception_handlers={MarshalError: _on_error, KafkaException: _on_error},
    )


class _Pages:
    def __init__(
        self,
        follower: LogFollower,
        letters: DeadLetterTopics,
        trail: AuditTrail,
        user_header: str | None,
    ) -> None:
        self._follower = follower
        self._letters, self._trail, self._user_header = letters, trail, user_header
        self._replay = Replay(follower.connection, follower.wire)
        self._replay_turn = asyncio.Lock()
        self._operations = Operations(follower.connection, letters, trail)
        self._open = 0

    async def index(self, _: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def stream(self, _: Request) -> Response:
        if self._open >= MAX_PAGES:
            return JSONResponse({"error": f"{MAX_PAGES} pages are open already"}, 503)
        return StreamingResponse(
            self._events(), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    async def _events(self) -> AsyncIterator[bytes]:
        subscriber = Subscriber()
        self._open += 1
        try:
            await run_in_threadpool(self._follower.subscribe, subscriber)
            while True:
                try:
                    item = await subscriber.get(PING_S)
                except TimeoutError:
                    yield b"event: ping\ndata: {}\n\n"
                    continue
                if item is None:
                    return
                kind, data = item
                yield b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
                if subscriber.overrun:  # the page is too slow for what changes: all of it, then
                    await run_in_threadpool(self._follower.subscribe, subscriber)
        finally:
            self._open -= 1
            self._follower.unsubscribe(subscriber)

    async def at(self, request: Request) -> Response:
        at_ms = _number(request, "t")
        async with self._replay_turn:
            if await request.is_disconnected():  # somebody drags the handle on; this is over
                return Response(status_code=204)
            data = await run_in_threadpool(self._replay.at, at_ms)
        return Response(data, media_type="application/json")

    async def cell(self, request: Request) -> Response:
        key = (_text(request, "group"), _text(request, "topic"), _number(request, "partition"))
        return await self._ask(partial(cell_document, key=key))

    async def story(self, request: Request) -> Response:
        key = (_text(request, "group"), _text(request, "topic"), _number(request, "partition"))
        at_ms = _number(request, "t") if "t" in request.query_params else None
        return JSONResponse(await run_in_threadpool(self._replay.timeline, key, at_ms))

    async def lanes(self, request: Request) -> Response:
        row = (_text(request, "group"), _text(request, "topic"))
        window = (_number(request, "from"), _number(request, "to"))
        return await self._ask(partial(lanes_document, row=row, window_ms=window))

    async def strip(self, request: Request) -> Response:
        window = (_number(request, "from"), _number(request, "to"))
        return await self._ask(partial(time_bar_document, window_ms=window))

    async def activity(self, _: Request) -> Response:
        def found(follower: LogFollower) -> list[dict[str, Any]]:
            return [line.document() for line in follower.live.activity] if follower.live else []

        return await self._ask(found)

    async def preview(self, request: Request) -> Response:
        action = decode_action(await _body(request))
        return JSONResponse(await run_in_threadpool(self._operations.preview, action))

    async def perform(self, request: Request) -> Response:
        try:
            ticket = msgspec.json.decode(await _body(request), type=_Ticket).ticket
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"no ticket: {error}") from None
        return JSONResponse(
            await run_in_threadpool(self._operations.perform, ticket, self._who(request))
        )

    def _who(self, request: Request) -> str:
        address = request.client.host if request.client is not None else "an unknown address"
        user = request.headers.get(self._user_header, "") if self._user_header else ""
        return f"{printable(user[:200])} at {address}" if user else address

    async def dead_letters(self, request: Request) -> Response:
        """Without a topic, which there are; with one, its latest, and which were replayed."""
        if "topic" not in request.query_params:
            topics = await run_in_threadpool(self._letters.topics)
            return _json({"topics": topics, "pattern": self._letters.pattern})
        topic, limit = _text(request, "topic"), _number(request, "limit")

        def found() -> dict[str, Any]:
            try:
                entries, unknown = self._trail.entries(), list[str]()
            except (AccessDenied, BrokerUnavailable) as error:
                # The letters may be seen all the same.
                entries, unknown = [], [f"Which were replayed is not known: {error}"]
            replayed = [
                {"letters": e.letters, "who": e.who, "at_ms": e.at_ms, "phase": e.phase}
                for e in entries
                if e.topic == topic and e.letters
            ]
            letters, offline = self._letters.latest(topic, limit)
            if offline:
                named = ", ".join(map(str, offline))
                unknown.append(
                    f"Kafka has no leader for {count(len(offline), 'partition')} of this topic "
                    f"({named}): the letters there are not shown."
                )
            return {"letters": letters, "replayed": replayed, "unknown": unknown}

        return _json(await run_in_threadpool(found))

    async def audit(self, _: Request) -> Response:
        return _json(await run_in_threadpool(lambda: self._trail.entries()[:MAX_AUDIT]))

    async def _ask(self, question: Callable[[LogFollower], Any]) -> Response:
        """Answer from what the follower knows, in a thread, and under its lock.

        While the log is being read nothing is known yet, and "held by nobody" would be a lie: 503.
        """

        def answer() -> Response:
            with self._follower.lock:
                if self._follower.phase == "reading":
                    read = f"{self._follower.progress:.0%}"
                    return JSONResponse(
                        {"error": f"the log is being read, {read} so far: ask again"},
                        503,
                        {"retry-after": "1"},
                    )
                found = question(self._follower)
            return _json(found)

        return await run_in_threadpool(answer)


def _json(document: Any) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")


class _Ticket(msgspec.Struct):
    ticket: str


async def _body(request: Request) -> bytes:
    """Return a small JSON body. A form of another site cannot send one without being asked for."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise InvalidArgument("the body must be application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise InvalidArgument(f"the body is larger than {MAX_BODY} bytes")
    return body


def _text(request: Request, name: str) -> str:
    text = request.query_params.get(name)
    if not text:
        raise InvalidArgument(f"{name} is missing")
    return text


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < 2**53:
        raise InvalidArgument(f"{name} = {text!r} must be a whole number of 0 or more")
    return number


async def _on_error(_: Request, error: Exception) -> Response:
    blame = getattr(error, "blame", "environment")
    return JSONResponse({"error": str(error)}, 400 if blame == "usage" else 503)
