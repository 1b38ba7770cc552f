"""Handlers for the tests of `Consumer.run` that run in processes: they must be importable."""

from __future__ import annotations

import json
import os
import time
from typing import Any

LOG = "RUN_TEST_LOG"


def write_down(message: Any, claim: Any) -> None:
    """Append what was given to a file."""
    line = {
        "pid": os.getpid(),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "key": message.key().decode(),
        "value": message.value().decode(),
        "headers": [[name, value.decode()] for name, value in message.headers()],
        "timestamp": message.timestamp()[1] > 0,
        "error": message.error(),
        "epoch": claim.epoch,
        "held": claim.held,
    }
    file = os.open(os.environ[LOG], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (json.dumps(line) + "\n").encode())
    os.close(file)


def write_down_slowly(message: Any, claim: Any) -> None:
    """Append what was given to a file, and again when it is done with, some time later."""
    write_down(message, claim)
    time.sleep(0.5)
    write_down(message, claim)


def die_of_poison(message: Any, claim: Any) -> None:
    """Take the process down with some messages, as a crash in C would; raise with others."""
    if message.value() == b"3":
        write_down(message, claim)
        os._exit(9)
    if message.value() == b"5":
        raise Unpicklable("five", 5)
    write_down(message, claim)


class CannotStart:
    """A handler that can be sent to another process, and not be received there."""

    def __call__(self, message: Any) -> None: ...

    def __setstate__(self, state: object) -> None:
        raise OSError("no")

    def __getstate__(self) -> dict[str, int]:
        return {"x": 1}


class Unpicklable(Exception):
    """An error that cannot be sent between processes: its arguments are not those of __init__."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


def sleep(message: Any) -> None:
    """Work for so many seconds as the value says."""
    time.sleep(float(message.value()))
