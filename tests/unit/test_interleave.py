"""`tests.support.interleave` finds what a switch between two threads breaks, and nothing else."""

from __future__ import annotations

import sys
import threading

import pytest

from tests.support.interleave import Case, explore, locks

HERE = [sys.modules[__name__]]


class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.Lock()

    def add(self) -> None:
        count = self.count
        self.count = count + 1

    def add_in_a_line(self) -> None:
        self.count += self.one()

    def one(self) -> int:
        return 1

    def add_locked(self) -> None:
        with self.lock:
            self.add()

    def check(self, *_: object) -> None:
        assert self.count == 2


def test_a_lost_update_is_found() -> None:
    def case() -> Case:
        counter = Counter()
        return Case(counter.add, counter.add, counter.check)

    with pytest.raises(AssertionError) as found:
        explore(case, HERE, preemptions=1)
    assert "switches after" in found.value.__notes__[-1]


def test_one_within_a_line_is_found() -> None:
    def case() -> Case:
        counter = Counter()
        return Case(counter.add_in_a_line, counter.add_in_a_line, counter.check)

    with pytest.raises(AssertionError):
        explore(case, HERE, preemptions=1, grain="opcode")


@pytest.mark.parametrize("preemptions", [1, 2])
def test_what_a_lock_guards_is_not(preemptions: int) -> None:
    def case() -> Case:
        with locks():
            counter = Counter()
        return Case(counter.add_locked, counter.add_locked, counter.check)

    assert explore(case, HERE, preemptions=preemptions, grain="opcode") > 10  # type: ignore[arg-type]


def test_two_preemptions_find_what_one_does_not() -> None:
    """Wrong only if the other one looks between two steps, and looks again behind the second."""

    class Halves:
        def __init__(self) -> None:
            self.seen: list[int] = []
            self.value = 0

        def write(self) -> None:
            self.value = 1
            self.value = 2

        def look(self) -> None:
            self.seen.append(self.value)
            self.seen.append(self.value)

        def check(self, *_: object) -> None:
            assert self.seen != [1, 2]

    def case() -> Case:
        halves = Halves()
        return Case(halves.write, halves.look, halves.check)

    explore(case, HERE, preemptions=1)
    with pytest.raises(AssertionError):
        explore(case, HERE, preemptions=2)


def test_a_deadlock_is_found() -> None:
    def case() -> Case:
        with locks():
            one, other = threading.Lock(), threading.Lock()

        def take(first: threading.Lock, second: threading.Lock) -> None:
            with first, second:
                pass

        return Case(lambda: take(one, other), lambda: take(other, one), lambda *_: None)

    with pytest.raises(RuntimeError, match="deadlock"):
        explore(case, HERE, preemptions=1, grain="opcode")


def test_what_a_thread_raises_is_raised() -> None:
    def fail() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        explore(lambda: Case(fail, lambda: None, lambda *_: None), HERE)
