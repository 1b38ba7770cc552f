"""Links: TCP proxies that can be cut, or made black holes (one way too), slow, and lossy."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Coroutine
from typing import Any, Literal

__all__ = ["Link", "Network"]

State = Literal["open", "cut", "hole", "hole_up", "hole_down"]

_HOST = "127.0.0.1"

_RETRANSMISSION_S = (0.2, 0.4, 0.8, 1.6)
"""How long TCP waits for the acknowledgement of a packet before it sends it again, each time."""


class Link:
    """One way to one server. `cut` resets and refuses; a hole swallows, and gives back on `open`.

    `up` is from the client to the server. What a hole has swallowed comes later, as with TCP.
    """

    def __init__(self, name: str, port: int, target: int) -> None:
        self.name, self.port, self.target = name, port, target
        self.bytes_passed = 0
        self.delay_s = 0.0
        """Added to every piece that passes, one after the other: slow, and narrow too."""
        self.loss = 0.0
        """The part of packets that get lost. With TCP that is a wait: all behind one waits, too."""
        self._gates = {"up": asyncio.Event(), "down": asyncio.Event()}
        for gate in self._gates.values():
            gate.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Accept connections."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, _HOST, self.port)

    async def set_state(self, state: State) -> None:
        """Change how the link behaves, for connections that exist and for new ones."""
        closed = {"hole": ("up", "down"), "hole_up": ("up",), "hole_down": ("down",)}.get(state, ())
        for way, gate in self._gates.items():
            if way in closed:
                gate.clear()
            else:
                gate.set()
        if state == "cut":
            server, self._server = self._server, None
            if server is not None:
                server.close()
            for task in list(self._connections):
                task.cancel()
        else:
            await self.listen()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        ends = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(_HOST, self.target)
            ends.append(far_writer)
            pumps = [
                asyncio.ensure_future(self._pump(reader, far_writer, "up")),
                asyncio.ensure_future(self._pump(far_reader, writer, "down")),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # the server is down, or the link was cut
        finally:
            self._connections.discard(task)
            for end in ends:
                end.transport.abort()

    def _lost_s(self) -> float:
        """How long it takes until a packet arrives that may get lost, several times in a row."""
        lost_s = 0.0
        for again_s in _RETRANSMISSION_S:
            if random.random() >= self.loss:
                break
            lost_s += again_s
        return lost_s

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if wait_s := self.delay_s + self._lost_s():
                    await asyncio.sleep(wait_s)
                await self._gates[way].wait()
                writer.write(data)
                await writer.drain()
                self.bytes_passed += len(data)


class Network:
    """All links, in a thread of their own."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def add(self, name: str, port: int, target: int) -> None:
        """Make an open link."""

        async def make() -> None:
            self.links[name] = Link(name, port, target)
            await self.links[name].listen()

        self._do(make())

    def set(self, name: str, state: State) -> None:
        """Change the state of a link."""
        self._do(self.links[name].set_state(state))

    def slow(self, name: str, delay_s: float) -> None:
        """Make a link slow; 0 for none."""
        self.links[name].delay_s = delay_s

    def lose(self, name: str, loss: float) -> None:
        """Let that part of a link's packets get lost; 0 for none."""
        self.links[name].loss = loss

    def heal(self) -> None:
        """Open all links, and make them fast and sound."""
        for name in self.links:
            self.slow(name, 0.0)
            self.lose(name, 0.0)
            self.set(name, "open")

    def close(self) -> None:
        """Close all."""
        for name in self.links:
            self.set(name, "cut")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
