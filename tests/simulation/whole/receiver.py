"""An HTTP server in virtual time, and connections to it, below the product's own HTTP.

A request is refused, answered late or by an error, or done and never answered; and it may arrive
when its sender has long given up, or is dead.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any, Final

import httpcore

from tests.simulation.whole.green import MS, Hub, current_thread, machine
from tests.simulation.whole.outbox import Server

_RETRY_AFTER: Final = b"Retry-After: 1\r\n"
OUTBOX: Final = "outbox"


class Receiver(Server):
    """One destination. `take` hears of every row that it has, and whether it came late.

    `fences`: it refuses what carries a lower epoch than it has seen.
    """

    def __init__(self, hub: Hub, name: str, take: Callable[[str, int, bytes, bool], None]) -> None:
        super().__init__(hub, "receiver")
        self.address = name
        self.failing_until = 0
        self.fences = False
        self.is_bad: Callable[[int], bool] = lambda _: False
        self.epoch = -1
        self._take = take

    def heal(self) -> None:
        super().heal()
        self.failing_until = 0

    def arrive(self, stream: SimStream, number: int, data: bytes) -> None:
        """A request comes in, whole: that of this number on its connection."""
        hub = self.hub
        if hub.now < self.down_until:
            hub.fired["receiver_down"] += 1
            stream.brought(None)
            return
        head, _, body = data.partition(b"\r\n\r\n")
        headers = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        late = stream.closed or number <= stream.given_up or stream.machine.dead
        status, more = self._answer(late, headers, body)
        if hub.now < self.losing_until and hub.random.random() < 0.5:
            hub.fired["receiver_answer_lost"] += 1
            return
        self._send(stream, status, more)

    def _answer(self, late: bool, headers: dict[bytes, bytes], body: bytes) -> tuple[int, bytes]:
        hub, epoch = self.hub, int(headers[b"Harvest-Epoch"])
        late = late or epoch < self.epoch
        hub.fired["request_late"] += late
        if self.fences and epoch < self.epoch:
            hub.fired["request_fenced"] += 1
            return 412, b""
        self.epoch = max(epoch, self.epoch)
        rows = self._rows(headers, body)
        fails = hub.now < self.failing_until and hub.random.random() < 0.6
        if fails and hub.random.random() < 0.7:
            hub.fired["receiver_fails"] += 1
            return hub.random.choice(((500, b""), (503, b""), (429, _RETRY_AFTER), (408, b"")))
        if any(self.is_bad(row_id) for row_id, _ in rows):
            hub.fired["bad_row_refused"] += 1
            return 422, b""
        for row_id, value in rows:
            self._take(self.address, row_id, value, late)
        if fails:
            hub.fired["receiver_fails_after_all"] += 1
            return 500, b""
        return hub.random.choice((200, 202)), b""

    def _rows(self, headers: dict[bytes, bytes], body: bytes) -> list[tuple[int, bytes]]:
        if not headers[b"Idempotency-Key"].startswith(b"batch_"):
            return [(_row_id(headers[b"Idempotency-Key"].decode()), body)]
        self.hub.counts["batches"] += 1
        return [(_row_id(one["id"]), json.dumps(one["value"]).encode()) for one in json.loads(body)]

    def _send(self, stream: SimStream, status: int, more: bytes) -> None:
        """Answer: whole, in pieces, or in chunks; and sometimes end the connection."""
        hub = self.hub
        said = b"HTTP/1.1 %d said\r\n%b" % (status, more)
        manner = hub.random.choice(("whole", "whole", "whole", "pieces", "chunks", "close"))
        if manner == "chunks":
            said += b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
        elif manner == "close":
            said += b"Connection: close\r\nContent-Length: 2\r\n\r\nok"
        else:
            said += b"Content-Length: 2\r\n\r\nok"
        at = hub.now + self.latency()
        if manner == "pieces":
            cut = hub.random.randrange(1, len(said))
            hub.at(at, stream.brought, said[:cut])
            at += self.latency()
            said = said[cut:]
        hub.at(at, stream.brought, said)
        if manner == "close":
            hub.at(at + MS // 10, stream.brought, None)


def _row_id(unique: str) -> int:
    outbox, _, number = unique.rpartition(".")
    assert outbox == OUTBOX
    return int(number)


class SimStream(httpcore.NetworkStream):
    """A connection, as its client has it."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver, self.hub = receiver, receiver.hub
        self.machine = machine()
        self.written = 0
        """Requests."""
        self.given_up = 0
        """The last of them that nobody waits for any more; its answer may come yet."""
        self.closed = False
        self._data = b""
        self._ended = False
        self._wakers: list[Callable[[], None]] = []

    def brought(self, data: bytes | None) -> None:
        """Bytes come; None: the other side has ended the connection."""
        if data is None:
            self._ended = True
        else:
            self._data += data
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._ended:
            raise httpcore.WriteError("simulated")
        receiver = self.receiver
        self.written += 1
        at = self.hub.now + receiver.latency()
        self.hub.at(at, receiver.arrive, self, self.written, buffer)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        assert timeout is not None
        me = current_thread()
        deadline = me.machine.now_ns + int(timeout * 1e9)
        while not (self._data or self._ended or self.closed):
            left = (deadline - me.machine.now_ns) / 1e9
            if left <= 0:
                self.given_up = self.written
                self.hub.fired["request_timed_out"] += 1
                raise httpcore.ReadTimeout("simulated")
            self._wakers.append(me.waker())
            me.park(left)
        if self.closed:
            raise httpcore.ReadError("simulated")
        data, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return data

    def close(self) -> None:
        self.closed = True
        self.brought(None)

    def get_extra_info(self, info: str) -> Any:
        if info == "socket":  # to shut it down, which wakes who waits for it
            self.close()
            return None
        assert info == "is_readable"
        return bool(self._data) or self._ended


class _Backend:
    """As `httpcore.SyncBackend`."""

    def __init__(self, receivers: dict[str, Receiver]) -> None:
        self._receivers = receivers

    def connect_tcp(self, host: str, port: int, timeout: float, *_: Any) -> SimStream:
        receiver, me = self._receivers[host], current_thread()
        me.park(receiver.latency() / 1e9)
        if receiver.hub.now < receiver.down_until:
            receiver.hub.fired["receiver_refuses_connections"] += 1
            if receiver.hub.random.random() < 0.5:
                raise httpcore.ConnectError("simulated")
            me.park(timeout)
            raise httpcore.ConnectTimeout("simulated")
        return SimStream(receiver)


def httpcore_over(receivers: dict[str, Receiver]) -> Any:
    """As the module `httpcore`, whose connections lead to receivers by their names."""
    names = {name: getattr(httpcore, name) for name in httpcore.__all__ if hasattr(httpcore, name)}
    return types.SimpleNamespace(**names | {"SyncBackend": lambda: _Backend(receivers)})
