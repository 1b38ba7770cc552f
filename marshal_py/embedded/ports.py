"""Free TCP ports on 127.0.0.1 for servers that must keep their port over a restart."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

HOST = "127.0.0.1"
_LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def _first_ephemeral_port() -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(_RANGE.read_text().split()[0])
    return 32_768


def free_ports(count: int) -> list[int]:
    """`count` distinct ports that are free now; another process may still take one: retry then.

    They lie below the ephemeral range. A port from inside it could be given to somebody's outgoing
    connection while the server is down for a restart, or a client that reconnects to a dead server
    could even connect to itself.
    """
    limit = _first_ephemeral_port()
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            usable = limit - _LOWEST > 1_000
            wanted = random.randrange(_LOWEST, limit) if usable else 0
            probe = stack.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind((HOST, wanted))  # without SO_REUSEADDR: strictly free
                ports.append(probe.getsockname()[1])
        return ports
