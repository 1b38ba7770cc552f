"""Hosts of their own on this machine: network namespaces on one bridge.

What runs on one has a loopback of its own, and meets this machine and the other hosts at addresses
of a private network alone. Needs root and Linux.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = ["Hosts", "HostsMissing", "hosts"]

_PREFIX: Final = "marshal-"
_ATTEMPTS: Final = 20


class HostsMissing(Exception):
    """Network namespaces cannot be made here; says what is missing."""


class Hosts:
    """`here`: this machine's address among them; `addresses`: theirs."""

    def __init__(self, network: ipaddress.IPv4Network, names: list[str]) -> None:
        self.here, *addresses = [str(network[n + 1]) for n in range(len(names) + 1)]
        self.addresses = addresses
        self._names = names

    def command(self, host: int, *argv: str) -> list[str]:
        """Return what runs `argv` on a host; the process is that of `argv` itself."""
        return [_program(), "netns", "exec", self._names[host], *argv]


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Make so many hosts; they are gone at the end, however that comes. Ends no process on them.

    Those of test processes that were killed are removed first. Raises `HostsMissing`.
    """
    _remove_remnants()
    pid = os.getpid()
    bridge, names = f"mb{pid}", [f"{_PREFIX}{pid}-{n}" for n in range(count)]
    with contextlib.ExitStack() as stack:
        network = _bridge(bridge, stack)
        made = Hosts(network, names)
        for n, name in enumerate(names):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
            link = f"mv{pid}-{n}"
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", link, "master", bridge, "up")
            address = f"{made.addresses[n]}/{network.prefixlen}"
            _ip("-n", name, "address", "add", address, "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")
        yield made


def _bridge(name: str, stack: contextlib.ExitStack) -> ipaddress.IPv4Network:
    """Make a bridge with the first address of a network that nothing here uses."""
    _ip("link", "add", name, "type", "bridge")
    stack.callback(_ip, "link", "delete", name)
    for _ in range(_ATTEMPTS):
        network = ipaddress.IPv4Network((0x0A000000 | random.randrange(1 << 16) << 8, 24))
        if any(network.overlaps(used) for used in _networks()):
            continue
        _ip("address", "add", f"{network[1]}/{network.prefixlen}", "dev", name)
        _ip("link", "set", name, "up")
        return network
    raise HostsMissing("no network of 10.0.0.0/8 is free on this machine")


def _networks() -> list[ipaddress.IPv4Network]:
    found = json.loads(_ip("-json", "-4", "route", "show", "table", "all"))
    wanted = [route["dst"] for route in found if route["dst"] != "default"]
    return [ipaddress.IPv4Network(each, strict=False) for each in wanted]


def _remove_remnants() -> None:
    """Remove what test processes left behind that are gone."""
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0]
        pid = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and pid.isdigit() and not Path("/proc", pid).exists():
            _ip_if_there("netns", "delete", name)
    for link in json.loads(_ip("-json", "link", "show", "type", "bridge") or "[]"):
        name = link.get("ifname", "")
        pid = name.removeprefix("mb")
        if name.startswith("mb") and pid.isdigit() and not Path("/proc", pid).exists():
            _ip_if_there("link", "delete", name)


def _ip_if_there(*arguments: str) -> None:
    with contextlib.suppress(HostsMissing):  # another test process is faster
        _ip(*arguments)


def _program() -> str:
    found = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise HostsMissing("the program `ip` is missing: install iproute2")
    return found


def _ip(*arguments: str) -> str:
    argv: Sequence[str] = [_program(), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise HostsMissing(
            f"network namespaces cannot be made: `ip {' '.join(arguments)}` said "
            f"{done.stderr.strip()!r}. Wanted: root (CAP_NET_ADMIN, CAP_SYS_ADMIN), and a Linux "
            "with bridges and veth pairs"
        )
    return done.stdout
