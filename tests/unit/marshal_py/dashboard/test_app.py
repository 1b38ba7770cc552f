"""The web application: what it refuses, how many pages it serves, whose name it writes down."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")

from starlette.requests import Request
from starlette.testclient import TestClient

from marshal_py.admin.connection import Connection
from marshal_py.dashboard import app as module
from marshal_py.dashboard.app import MAX_BODY, create_app
from marshal_py.dashboard.audit_trail import AuditTrail, Entry
from marshal_py.dashboard.dead_letters import DeadLetterTopics
from marshal_py.dashboard.log_follower import LogFollower
from marshal_py.dashboard.operations import Operations
from marshal_py.dashboard.replay import Replay
from marshal_py.dashboard.subscribers import Subscriber
from marshal_py.errors import AccessDenied, BrokerUnavailable, InvalidArgument, MarshalError
from marshal_py.protocol.wire import text_wire

OWN = {"origin": "http://localhost"}


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> LogFollower:
    monkeypatch.setattr(AuditTrail, "ensure", lambda _: None)
    return LogFollower(Connection.of_servers("nowhere:1"))


def pages(follower: LogFollower, **settings: Any) -> TestClient:
    return TestClient(create_app(follower, **settings), base_url="http://localhost")


def test_without_write_there_is_nothing_to_write_with(follower: LogFollower) -> None:
    for path in ("preview", "perform"):
        assert pages(follower).post(f"/api/{path}", json={}, headers=OWN).status_code == 405
        assert pages(follower, write=True).get(f"/api/{path}").status_code == 405
    assert not LogFollower(follower.connection).write


def test_who_may_write_has_a_trail_and_pages_that_offer_it(
    follower: LogFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[AuditTrail] = []
    monkeypatch.setattr(AuditTrail, "ensure", lambda trail: made.append(trail))
    create_app(follower)
    assert (made, follower.write) == ([], False)
    create_app(follower, write=True)
    assert (len(made), follower.write) == (1, True)
    of_version_1 = LogFollower(follower.connection, wire=text_wire(60))
    with pytest.raises(InvalidArgument, match="--write is for version 2"):
        create_app(of_version_1, write=True)
    assert (len(made), of_version_1.write) == (1, False)


def test_a_body_is_small_json_or_refused(follower: LogFollower) -> None:
    """A form of another site can send none."""
    asking = pages(follower, write=True)
    form = asking.post("/api/preview", data={"what": "pause"}, headers=OWN)
    assert (form.status_code, form.json()["error"]) == (400, "the body must be application/json")
    json = {**OWN, "content-type": "application/json; charset=utf-8"}
    large = asking.post("/api/preview", content=b" " * (MAX_BODY + 1), headers=json)
    assert (large.status_code, "larger than" in large.json()["error"]) == (400, True)
    for content in (b" " * MAX_BODY, b'{"ticket": 7}', b"\xff"):
        for path in ("preview", "perform"):
            answer = asking.post(f"/api/{path}", content=content, headers=json)
            assert answer.status_code == 400
            assert "larger" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("cell?topic=t&partition=0", "group is missing"),
        ("cell?group=&topic=t&partition=0", "group is missing"),
        ("cell?group=g&topic=t&partition=-1", "partition = '-1' must be a whole number"),
        ("cell?group=g&topic=t&partition=x", "partition = 'x' must be a whole number"),
        ("at", "t = '' must be a whole number"),
        (f"at?t={2**53}", "must be a whole number"),
        ("lanes?group=g&topic=t&from=0", "to = '' must be"),
        ("dead-letters?topic=orders.dlq", "limit = '' must be"),
    ],
)
def test_a_question_that_makes_no_sense_is_a_bad_request(
    follower: LogFollower, path: str, why: str
) -> None:
    answer = pages(follower).get(f"/api/{path}")
    assert answer.status_code == 400
    assert why in answer.json()["error"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidArgument("not so"), 400),
        (BrokerUnavailable("nobody answers"), 503),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT)), 503),
    ],
)
def test_whose_fault_an_error_is_is_told_by_the_status(
    follower: LogFollower, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(Replay, "at", fail)
    answer = pages(follower).get("/api/at?t=1")
    assert answer.status_code == status
    assert answer.json()["error"] == str(error)


def test_a_log_of_version_1_is_not_written_to(follower: LogFollower) -> None:
    follower.wire = text_wire(60)
    with pytest.raises(InvalidArgument, match="--write is for version 2"):
        create_app(follower, write=True)


def test_so_many_pages_are_served_and_one_that_leaves_makes_room(
    follower: LogFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PAGES", 1)
    monkeypatch.setattr(follower, "subscribe", lambda page: page.put(None))  # its end
    asking = pages(follower)
    for _ in range(3):
        assert asking.get("/api/stream").status_code == 200
    monkeypatch.setattr(module, "MAX_PAGES", 0)
    answer = asking.get("/api/stream")
    assert (answer.status_code, answer.json()["error"]) == (503, "0 pages are open already")


def test_a_page_that_was_too_slow_is_sent_everything(
    follower: LogFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    def subscribe(page: Subscriber) -> None:
        sent = [("delta", b"1")] if not page.overrun else [("state", b"2"), None]
        page.overrun = not page.overrun
        for item in sent:
            page.put(item)

    monkeypatch.setattr(follower, "subscribe", subscribe)
    text = pages(follower).get("/api/stream").text
    assert text == "event: delta\ndata: 1\n\nevent: state\ndata: 2\n\n"


def test_who_has_gone_by_the_time_of_their_turn_has_no_log_read_for_them(
    follower: LogFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_disconnected(_: Request) -> bool:
        return True

    def fail(*_: object) -> bytes:
        raise AssertionError("the log was read")

    monkeypatch.setattr(Request, "is_disconnected", is_disconnected)
    monkeypatch.setattr(Replay, "at", fail)
    assert pages(follower).get("/api/at?t=1").status_code == 204


def test_of_the_trail_the_latest_are_shown(
    follower: LogFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Entry(str(n), n, "ann", "pause", "done") for n in (3, 2, 1)]
    monkeypatch.setattr(AuditTrail, "entries", lambda _: found)
    monkeypatch.setattr(module, "MAX_AUDIT", 2)
    assert [entry["id"] for entry in pages(follower).get("/api/audit").json()] == ["3", "2"]


@pytest.mark.parametrize(
    ("user_header", "sent", "who"),
    [
        (None, "ann", "testclient"),
        ("x-user", "", "testclient"),
        ("x-user", "ann", "ann at testclient"),
        ("x-user", "\x7fann", "\\x7fann at testclient"),
        ("x-user", "a" * 500, "a" * 200 + " at testclient"),
    ],
)
def test_who_does_something_is_named_by_the_proxy_if_one_is_trusted(
    follower: LogFollower,
    monkeypatch: pytest.MonkeyPatch,
    user_header: str | None,
    sent: str,
    who: str,
) -> None:
    done: list[tuple[str, str]] = []

    def perform(_: object, ticket: str, who: str) -> dict[str, str]:
        done.append((ticket, who))
        return {}

    monkeypatch.setattr(Operations, "perform", perform)
    asking = pages(follower, write=True, user_header=user_header)
    headers = {**OWN, "x-user": sent}
    assert asking.post("/api/perform", json={"ticket": "t"}, headers=headers).status_code == 200
    assert done == [("t", who)]


@pytest.mark.parametrize("error", [AccessDenied, BrokerUnavailable])
def test_letters_are_shown_where_the_trail_may_not_be_read(
    follower: LogFollower, monkeypatch: pytest.MonkeyPatch, error: type[MarshalError]
) -> None:
    """That none were replayed would be a lie then."""
    entry = Entry("1", 5, "ann", "replay", "done", "", "orders.dlq", [(0, 3)])
    other = Entry("2", 6, "ann", "replay", "done", "", "bills.dlq", [(0, 4)])
    offline = [1, 4]
    monkeypatch.setattr(DeadLetterTopics, "latest", lambda *_: ([], offline))
    monkeypatch.setattr(AuditTrail, "entries", lambda _: [entry, other])
    path = "/api/dead-letters?topic=orders.dlq&limit=5"
    found = pages(follower).get(path).json()
    assert [each["letters"] for each in found["replayed"]] == [[[0, 3]]]
    (without_leader,) = found["unknown"]
    assert "no leader for 2 partitions of this topic (1, 4)" in without_leader
    offline.clear()

    def refuse(_: object) -> list[Entry]:
        raise error("no right to Read")

    monkeypatch.setattr(AuditTrail, "entries", refuse)
    found = pages(follower).get(path).json()
    assert (found["letters"], found["replayed"]) == ([], [])
    assert found["unknown"] == ["Which were replayed is not known: no right to Read"]
