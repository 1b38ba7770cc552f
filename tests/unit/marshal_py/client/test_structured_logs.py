"""Log records carry their fields, as attributes and as JSON; nothing is printed unasked."""

from __future__ import annotations

import json
import logging
from typing import Any

from marshal_py import Marshal
from marshal_py.client.structured_logs import Fields, JsonFormatter


def test_fields_are_merged_and_written_as_json() -> None:
    records: list[logging.LogRecord] = []
    logger = logging.Logger("marshal_py.test")

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keep()
    logger.addHandler(handler)
    log = Fields(logger, {"group_id": "g", "client_id": "a"})
    log.warning("%s lapsed", "x", extra={"topic": "t", "partition": 3, "client_id": "b"})
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("bad")
    first, second = (json.loads(JsonFormatter().format(record)) for record in records)
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "WARNING",
        "logger": "marshal_py.test",
        "message": "x lapsed",
        "group_id": "g",
        "client_id": "b",
        "topic": "t",
        "partition": 3,
    }
    assert "ValueError: no" in second["traceback"]


def test_a_client_logs_who_it_is() -> None:
    marshal = Marshal("localhost:1", group_id="g", client_id="a")
    assert dict(marshal._driver.log.extra or {}) == {
        "group_id": "g",
        "client_id": "a",
        "instance_id": marshal.instance_id,
    }


def test_what_a_harvester_says_of_a_leadership_carries_its_epoch_and_shard() -> None:
    from harvest.runtime.leadership import Leadership

    class Lease:
        epoch = 41

    lease: Any = Lease()
    leadership = Leadership(lease, shard=2)
    assert dict(leadership.log.extra or {}) == {"epoch": 41, "partition": 2}
