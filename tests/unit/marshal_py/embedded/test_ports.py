"""Ports for servers: free, distinct, and none that the system gives to others."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from marshal_py.embedded import ports


def test_ports_are_distinct_free_and_not_ephemeral() -> None:
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert max(found) < ports._first_ephemeral_port()
    for port in found:
        with socket.socket() as probe:
            probe.bind((ports.HOST, port))


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        (port,) = ports.free_ports(1)
        taken.bind((ports.HOST, port))
        choices = iter([port, port, *ports.free_ports(1)])
        monkeypatch.setattr("random.randrange", lambda *_: next(choices))
        assert ports.free_ports(1) != [port]


def test_the_system_chooses_where_nearly_all_ports_are_ephemeral(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "range")
    assert len(set(ports.free_ports(3))) == 3


@pytest.mark.parametrize("text", [None, "", "many\tmore\n"])
def test_where_the_system_does_not_tell_ports_are_those_below_linuxs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "range").write_text(text)
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "range")
    asked: list[tuple[int, int]] = []

    def choose(low: int, high: int) -> int:
        asked.append((low, high))
        return 0

    monkeypatch.setattr("random.randrange", choose)
    ports.free_ports(1)
    assert asked == [(10_000, 32_768)]
