"""A live peer for runs beside Go Marshal: `python -m tests.interop.peer COMMAND …`.

One JSON object a line on standard output. A thin layer on the public API of marshal_py; the
heartbeat interval, in seconds, comes from MARSHAL_HB.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from marshal_py import Marshal
from marshal_py.errors import MalformedRecord, MarshalError
from marshal_py.protocol.text.codec import (
    CLAIMING_PARTITION,
    TextRecord,
    coordinating_partition,
    decode,
    encode,
)
from marshal_py.protocol.text.rationalizer import TextCell, TextState, apply

REPLAYED: Final = 3
"""The coordination partition of what `replay` reads, as in the recorded states."""

MOST_UNTOUCHED: Final = 4_096
"""Partitions below the highest one that was touched are shown as untouched, as Go has them: up to
so many."""

_stdout_lock = threading.Lock()


def hb_s() -> int:
    text = os.environ.get("MARSHAL_HB") or "60"
    if not text.isdecimal() or int(text) == 0:
        sys.exit(f"MARSHAL_HB = {text!r} must be whole seconds, 1 or more")
    return int(text)


def write(fields: dict[str, Any]) -> None:
    """Print one line. For any thread; not for signal handlers."""
    with _stdout_lock:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def say(event: str, **fields: Any) -> None:
    write({"ev": event, **fields})


def lines() -> Iterable[str]:
    return (line for line in sys.stdin if line.strip())


def as_go(text: str) -> str:
    """Return the text that Go's JSON would have read: half a surrogate pair becomes U+FFFD."""
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)


def cells_of(
    state: TextState, marshal_partition: int, now_s: int, only_group: str | None = None
) -> list[dict[str, Any]]:
    """Return the cells of one coordination partition as Go's peer prints them."""
    highest: dict[tuple[str, str], int] = {}
    for group, topic, partition in state.cells:
        if only_group in (None, group):
            highest[group, topic] = max(partition, highest.get((group, topic), 0))
    shown = []
    for (group, topic), last in sorted(highest.items()):
        touched = sorted(p for g, t, p in state.cells if (g, t) == (group, topic))
        for partition in range(last + 1) if last < MOST_UNTOUCHED else touched:
            cell = state.cells.get((group, topic, partition)) or TextCell((topic, partition))
            assert isinstance(cell, TextCell)
            heard_s = cell.heartbeat_s
            shown.append(
                {
                    "group": group,
                    "topic": topic,
                    "partition": partition,
                    "marshal_partition": marshal_partition,
                    "instance_id": cell.owner_instance,
                    "client_id": cell.owner,
                    "last_release": cell.release_s,
                    "last_heartbeat": heard_s,
                    "current_offset": cell.current_offset,
                    "claimed": heard_s != 0 and abs(now_s - heard_s) < state.span_s,
                }
            )
    return shown


def replay() -> None:
    state, offset, now_s = TextState(REPLAYED, hb_s()), 0, 0
    for line in lines():
        request = json.loads(line)
        op = request["op"]
        if op == "reset":
            state, offset, now_s = TextState(REPLAYED, hb_s()), 0, 0
        elif op == "msg":
            # The reader's clock is of no interest to the fold: the records carry their own times.
            now_s = request["now"]
            apply(state, offset, as_go(request["raw"]).encode())
            offset += 1
        elif op == "now":
            now_s = request["now"]
        elif op == "state":
            write({"state": cells_of(state, REPLAYED, now_s)})


def hash_stdin() -> None:
    for line in lines():
        request = json.loads(line)
        write({"partition": coordinating_partition(as_go(request["topic"]), request["now"])})


def encode_stdin() -> None:
    for line in lines():
        r = json.loads(line)
        record = TextRecord(
            r["type"],
            r["version"],
            r["time"],
            as_go(r["instance_id"]),
            as_go(r["client_id"]),
            as_go(r["group_id"]),
            as_go(r["topic"]),
            r["partition"],
            None if r["type"] == CLAIMING_PARTITION else r.get("offset", 0),
        )
        # Names with a slash, too: the client refuses them, the format does not.
        sys.stdout.buffer.write(encode(record, check=False) + b"\n")
        sys.stdout.buffer.flush()


def as_json(record: TextRecord) -> dict[str, Any]:
    fields = record._asdict()
    fields["time"] = fields.pop("time_s")
    if record.offset is None:
        del fields["offset"]
    return fields


def decode_stdin() -> None:
    # An empty line is an empty record.
    for line in sys.stdin:
        try:
            write({"msg": as_json(decode(base64.b64decode(line.strip())))})
        except (MalformedRecord, binascii.Error) as error:
            write({"error": str(error)})


def observe(args: list[str]) -> None:
    from tests.interop.flags import Flags

    flags = Flags(
        args, {"brokers": "", "only-group": "", "once": False, "every": "1s", "log": "__marshal"}
    )
    group = flags.text("only-group") or None
    with Marshal(
        flags.text("brokers"),
        group_id="observer",
        topic=flags.text("log"),
        interval_ms=hb_s() * 1000,
        wire="text",
    ) as marshal:
        while True:
            with marshal.world() as world:
                now_s = int(time.time())
                cells = [
                    cell
                    for state in world.states
                    if isinstance(state, TextState)
                    for cell in cells_of(state, state.partition, now_s, group)
                    if world.coordinator(group or "", cell["topic"], 0) == state.partition
                ]
            say("world", cells=cells)
            if flags.flag("once"):
                return
            time.sleep(flags.seconds("every"))


def main() -> None:
    for stream in (sys.stdin, sys.stdout):  # whatever the locale is
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    command, args = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    try:
        if command == "consume":
            from tests.interop.peer_consume import consume

            consume(args)
        elif command == "observe":
            observe(args)
        elif command in _PURE:
            _PURE[command]()
        else:
            sys.exit(f"usage: peer {{consume,observe,{','.join(_PURE)}}} …")
    except MarshalError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read has gone; nothing must be flushed to them at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_PURE: Final[dict[str, Callable[[], None]]] = {
    "replay": replay,
    "hash-stdin": hash_stdin,
    "encode": encode_stdin,
    "decode": decode_stdin,
}

if __name__ == "__main__":
    main()
