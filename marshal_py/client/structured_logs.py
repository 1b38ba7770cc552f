"""Logging: stdlib loggers with structured fields, quiet by default.

Loggers: ``marshal_py`` (claims: lapses, losses, failures), ``marshal_py.log`` (the coordination
log), ``marshal_py.consumer``, ``marshal_py.rdkafka`` (librdkafka's own words, off unless its level
is lowered), and ``harvest``. Warnings and errors say what happened and what to do. Records carry
fields as attributes, where they are known: ``group_id``, ``client_id``, ``instance_id``, ``topic``,
``partition``, ``epoch``. What a harvester says of a leadership has its ``epoch``, and the shard as
``partition``. `JsonFormatter` writes them as one JSON object a line.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import MutableMapping
from typing import Any, Final

from marshal_py.printable import printable_json

__all__ = ["FIELDS", "Fields", "JsonFormatter"]

FIELDS: Final = ("group_id", "client_id", "instance_id", "topic", "partition", "epoch")


class Fields(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds the same fields to all its records, and those of each call's `extra`."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the fields: the call's own win."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, fields, traceback.

    ::

        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
        logging.getLogger("marshal_py").addHandler(handler)
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        document: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(document, ensure_ascii=False, default=str))
