"""A real nats-server with JetStream, on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats

__all__ = ["NatsServer", "nats_server"]

_WAIT_S = 20.0


class NatsServer:
    """The server, and what a user of it does."""

    def __init__(self, url: str) -> None:
        self.url = url

    def use(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do something with a JetStream context."""

        async def connected() -> Any:
            client = await nats.connect(self.url)
            try:
                return await work(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(connected())

    def create_stream(self, name: str, *subjects: str) -> None:
        async def create(stream: Any) -> None:
            await stream.add_stream(name=name, subjects=list(subjects))

        self.use(create)

    def messages(self, name: str) -> list[tuple[str, bytes, dict[str, str]]]:
        """Everything in a stream: subject, payload, headers."""

        async def read(stream: Any) -> list[tuple[str, bytes, dict[str, str]]]:
            info = await stream.stream_info(name)
            found = []
            for number in range(1, info.state.last_seq + 1):
                message = await stream.get_msg(name, number)
                found.append((message.subject, message.data or b"", message.headers or {}))
            return found

        result: list[tuple[str, bytes, dict[str, str]]] = self.use(read)
        return result


@contextlib.contextmanager
def nats_server(folder: Path) -> Iterator[NatsServer | None]:
    """One that runs until the block ends; None where `nats-server` is not installed."""
    program = shutil.which("nats-server")
    if program is None:
        yield None
        return
    files = ["-sd", str(folder / "data"), "--ports_file_dir", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "-a", "127.0.0.1", "-p", "-1", "-js", *files], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + _WAIT_S
        ports: list[Path] = []
        while not ports or not ports[0].read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.02)
            ports = list(folder.glob("*.ports"))
        yield NatsServer(json.loads(ports[0].read_text())["nats"][0])
    finally:
        process.terminate()
        process.wait(_WAIT_S)
