"""Peers as processes, and the events that they print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.support.paths import ROOT


class PeerProcess:
    """One peer. `expect` waits for an event; everything it said is in `events`.

    Leaving the block kills it.
    """

    event_key = "ev"

    def __init__(self, module: str, *args: object, hb: int = 4) -> None:
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._errors: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "MARSHAL_HB": str(hb)},
        )
        self._threads = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                fields = json.loads(line)
                self.events.append({"ev": fields.pop(self.event_key), **fields})
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def said(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return what it has said of this kind, with these fields."""
        with self._changed:
            return [
                e
                for e in self.events
                if e["ev"] == event and all(e.get(k) == v for k, v in fields.items())
            ]

    def expect(
        self, event: str, timeout_s: float = 120, count: int = 1, **fields: Any
    ) -> dict[str, Any]:
        """Wait until it has said this `count` times; return the last of them."""
        self.wait_for(lambda: len(self.said(event, **fields)) >= count, timeout_s, event, fields)
        return self.said(event, **fields)[count - 1]

    def wait_for(
        self, true: Callable[[], bool], timeout_s: float, event: str = "", fields: Any = None
    ) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not true():
                left = deadline - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self._alive()):
                    if true():
                        return
                    raise AssertionError(
                        f"{self.process.args!r} did not say {event} {fields} (ended: "
                        f"{self.process.poll()}); it said {self.events[-20:]}, "
                        f"{''.join(self._errors)[-2000:]}"
                    )
                self._changed.wait(min(left, 0.2))

    def errors(self) -> str:
        """Return what it has written to standard error; all of it once it has ended."""
        if self.process.poll() is not None:
            self._threads[1].join(60)
        return "".join(self._errors)

    def _alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def claims(self) -> set[tuple[str, int]]:
        """Return what it holds, by its own claim and unclaim events."""
        held: set[tuple[str, int]] = set()
        with self._changed:
            for e in self.events:
                if e["ev"] == "claim":
                    held.add((e["topic"], e["partition"]))
                elif e["ev"] == "unclaim":
                    held.discard((e["topic"], e["partition"]))
        return held

    def terminate(self, timeout_s: float = 120) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout_s)
        for thread in self._threads:
            thread.join(60)
        return code

    def crash(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait(60)
        for thread in self._threads:
            thread.join(60)


def deliveries(*peers: PeerProcess) -> Counter[tuple[str, int, int]]:
    return Counter(
        (e["topic"], e["partition"], e["offset"]) for peer in peers for e in peer.said("msg")
    )


def await_all(topic: str, partitions: int, messages: int, *peers: PeerProcess) -> None:
    expected = {(topic, p, n) for p in range(partitions) for n in range(messages)}
    deadline = time.monotonic() + 120
    while not expected <= set(deliveries(*peers)):
        missing = sorted(expected - set(deliveries(*peers)))
        assert time.monotonic() < deadline, f"{len(missing)} are missing, such as {missing[:5]}"
        time.sleep(0.1)


def await_claims(count: int, *peers: PeerProcess, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while sum(len(peer.claims()) for peer in peers) != count:
        assert time.monotonic() < deadline, [peer.claims() for peer in peers]
        time.sleep(0.05)
