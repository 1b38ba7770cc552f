"""What JetStream's answers mean, without a server."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from nats.errors import MaxPayloadError, NoServersError
from nats.js.errors import APIError, NoStreamResponseError

from harvest.core.dispatcher import Outcome
from harvest.core.row import Row
from harvest.sinks.nats import NatsEndpoint, NatsSink

ROW = Row(1, "t", b"k", b"v")


@pytest.mark.parametrize(
    ("raised", "status", "unavailable", "lasting"),
    [
        (APIError(code=400, description="no"), 400, False, False),
        (APIError(code=499, description="no"), 499, False, False),
        (APIError(code=500, description="no"), 500, True, False),
        (APIError(code=503, description="no"), 503, True, False),
        (APIError(description="no"), 0, False, False),
        (NoStreamResponseError(), 503, False, False),
        (MaxPayloadError(), None, False, True),
        (NoServersError(), None, True, False),
        (ConnectionResetError("gone"), None, True, False),
        (TimeoutError(), None, True, False),
    ],
    ids=repr,
)
def test_who_is_to_blame(
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    status: int | None,
    unavailable: bool,
    lasting: bool,
) -> None:
    async def publish(*_: Any) -> None:
        raise raised

    with closing(NatsSink(NatsEndpoint(("nats://127.0.0.1:1",), "s"))) as sink:
        monkeypatch.setattr(sink, "_publish", publish)
        outcome = sink.send(ROW, "key", 1)
    assert outcome.error
    assert outcome == Outcome(status, outcome.error, unavailable=unavailable, lasting=lasting)
