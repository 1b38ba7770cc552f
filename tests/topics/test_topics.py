"""Consumers on every kind of topic, at the size of a test run; and that what is wrong is found.

``python -m tests.topics --histories 1000`` runs more, with a broker that compacts soon.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.embedded.kafka import EmbeddedKafka
from tests.topics.history import KINDS, MODES, STYLES, History, case_of, run

SEEDS = (0, 7, 14, 21, 28, 35, 36, 43, 6403)


@pytest.mark.kafka
@pytest.mark.slow
def test_at_least_once_nothing_is_lost_and_at_most_once_nothing_comes_twice(
    kafka: EmbeddedKafka,
) -> None:
    cases = [case_of(seed) for seed in SEEDS]
    assert [{case[i] for case in cases} for i in range(3)] == [{*KINDS}, {*MODES}, {*STYLES}]
    with ThreadPoolExecutor(len(SEEDS)) as pool:
        outcomes = list(pool.map(partial(run, kafka.bootstrap_servers), SEEDS))
    assert [outcome for outcome in outcomes if outcome.problems] == []


def judged(mode: str, *sessions: tuple[list[str], float, bool], readable: list[str]) -> list[str]:
    """What is said of sessions: (what each was given at the second 10, its end, whether a crash)"""
    history: Any = History("127.0.0.1:1", 0)
    history.outcome.mode = mode
    history.readable = lambda: readable
    history.drain = lambda: None
    history.sessions = [
        SimpleNamespace(
            got=[(value, 10.0) for value in got],
            ended_s=ended_s,
            crashed=crashed,
            in_flight=1,
            bound=2,
            consumer=SimpleNamespace(dropped=0),
            end=lambda how: None,
        )
        for got, ended_s, crashed in sessions
    ]
    history.session = history.sessions[-1]
    history.finish()
    return list(history.outcome.problems)


@pytest.mark.parametrize(
    ("mode", "sessions", "problem"),
    [
        ("at_least_once", [(["0.1", "0.2"], 11.0, False)], ""),
        ("at_least_once", [(["0.1"], 11.0, False)], "1 of 2 never came, from 0.2"),
        ("at_least_once", [(["0.1"], 10.5, True), (["0.1", "0.2"], 12.0, False)], ""),
        (
            "at_least_once",
            [(["0.1"], 14.0, True), (["0.1", "0.2"], 15.0, False)],
            "0.1 came again, done 4.0 s before the crash",
        ),
        (
            "at_least_once",
            [(["0.1"], 10.5, False), (["0.1", "0.2"], 12.0, False)],
            "0.1 came again after a member that closed",
        ),
        ("at_most_once", [(["0.1"], 10.5, True), (["0.2"], 12.0, False)], ""),
        ("at_most_once", [([], 10.5, True), ([], 12.0, False)], ""),
        ("at_most_once", [([], 10.5, False)], "2 lost, from 0.1; 0 may be"),
        (
            "at_most_once",
            [(["0.1"], 10.5, True), (["0.1", "0.2"], 12.0, False)],
            "1 came twice, from 0.1",
        ),
    ],
)
def test_what_is_wrong_is_found(mode: str, sessions: list[Any], problem: str) -> None:
    assert judged(mode, *sessions, readable=["0.1", "0.2"]) == ([problem] if problem else [])
