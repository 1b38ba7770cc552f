"""The quickest HTTP server that a benchmark needs: it counts requests, checks the order of each
group, and answers 204. Prints its port, and on a line of input what it has seen, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
seen: dict[bytes, int] = {}
counts = {"requests": 0, "out_of_order": 0}


class Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            _, _, after = head.partition(b"\r\ncontent-length:")
            size = int(after.partition(b"\r\n")[0])
            if len(self._buffer) < end + 4 + size:
                return
            self._buffer = self._buffer[end + 4 + size :]
            # POST /KEY/ID HTTP/1.1
            _, key, row_id = head.split(b" ", 2)[1].split(b"/")
            counts["requests"] += 1
            counts["out_of_order"] += seen.get(key, 0) > int(row_id)
            seen[key] = int(row_id)
            self._transport.write(ANSWER)  # type: ignore[attr-defined]


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
