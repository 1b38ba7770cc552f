"""A client gives a log a genesis, while others do so as well."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py import Marshal
from marshal_py.client.driver import GENESIS_AGAIN_S
from marshal_py.client.marshal import driver_of
from marshal_py.errors import AccessDenied, BrokerUnavailable
from marshal_py.protocol.messages import Genesis, decode

SEEN = 10**18
"""An epoch that this client has seen, and nobody else."""


class Log:
    """A log without an identity, in which each record comes when the clock says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.state = SimpleNamespace(identity=None, base=0, next_offset=0)
        self.written: list[tuple[float, Genesis]] = []
        self.taken: dict[int, str] = {}
        """How many of ours there are when another's comes first → its identity."""
        clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: self.now_s})
        monkeypatch.setattr("marshal_py.client.driver.time", clock)
        driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
        driver.reader = SimpleNamespace(
            partitions=[0],
            highest_epoch=SEEN,
            check_founding=lambda _: {0: 0},
            poll=self._poll,
            fold=lambda _: (),
            world=SimpleNamespace(states=[self.state], partitions=1),
        )
        driver._writer = SimpleNamespace(
            append=self._append, serve=lambda: None, take_failures=list, refusal=None
        )
        self.driver = driver

    def _append(self, _: int, __: int, value: bytes) -> None:
        record = decode(value)
        assert isinstance(record, Genesis)
        self.written.append((self.now_s - 100.0, record))

    def _poll(self, timeout_s: float) -> None:
        self.now_s += timeout_s
        state = self.state
        other = self.taken.pop(len(self.written), None)
        if other is not None:
            state.identity, state.base, state.next_offset = other, 5, 2
        elif not self.taken and self.written and self.written[-1][1].previous == state.identity:
            state.identity, state.base = self.written[-1][1].identity, self.written[-1][1].base


def test_whoever_is_beaten_to_it_by_a_smaller_base_writes_another_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until it has, epochs that it has seen may be given out again (G12)."""
    log = Log(monkeypatch)
    log.taken = {1: "first", 2: "second"}
    log.driver._found()
    assert [record.previous for _, record in log.written] == ["", "first", "second"]
    assert all(record.base > SEEN for _, record in log.written)
    assert log.written[-1][0] < GENESIS_AGAIN_S
    seqs = [record.seq for _, record in log.written]
    assert seqs == sorted(set(seqs))


def test_one_that_does_not_come_is_written_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(monkeypatch)
    log.taken = {3: "late"}
    log.driver._found()
    at = [int(s / GENESIS_AGAIN_S) for s, _ in log.written]
    assert at == [0, 1, 2, 2], "the last as the log has got another identity"


def test_who_may_not_found_a_log_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    refusal = AccessDenied("lacks Write on topic '__marshal'")

    def serve() -> None:
        log.driver._writer.refusal = refusal

    log.driver._writer.serve, log.taken = serve, {-1: "never"}
    with pytest.raises(AccessDenied) as raised:
        log.driver._found()
    assert raised.value is refusal
    assert log.now_s < 100 + GENESIS_AGAIN_S


def test_how_a_genesis_failed_is_told_when_none_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    failures = iter([[(1, "Local: Message timed out")]])
    log.driver._writer.take_failures, log.taken = lambda: next(failures, []), {-1: "never"}
    with pytest.raises(BrokerUnavailable, match="could not be written: Local: Message timed out"):
        log.driver._found()
    assert log.now_s >= 100 + log.driver.settings.connect_timeout_ms / 1_000
