"""Every decoder on hostile input (see `targets`)."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import NAMES
from tests.fuzz.command_lines import COMMANDS, VALUES
from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS


def test_every_target_is_known_to_the_command() -> None:
    assert list(TARGETS) == NAMES


@st.composite
def _damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A good input with some bytes replaced, removed, doubled or added."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        cut = draw(st.integers(0, 3))
        data[at : at + cut] = draw(st.binary(max_size=4))
    return bytes(data)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "command_line"])
@given(data=st.data())
@settings(max_examples=300, deadline=2_000)
def test_nothing_but_the_documented_errors(name: str, data: st.DataObject) -> None:
    TARGETS[name](data.draw(st.one_of(st.binary(max_size=300), _damaged(SEEDS[name]))))


@pytest.mark.parametrize("name", NAMES)
def test_extremes(name: str) -> None:
    deep = b"\x91" * 10_000
    wide = b"\xdd\xff\xff\xff\xff"
    for data in (b"", b"\0", deep, wide, b"\xc6\xff\xff\xff\xff", b"[" * 5_000, b"{a: " * 500):
        TARGETS[name](data)
    for data in (b"a: &a [*a, *a]", b"&b [" * 50, b"a: &a {b: *a}", b"a: 2001-99-99"):
        TARGETS[name](data)
    TARGETS[name](b"a: " + b"9" * 5_000)
    for data in (
        b'[2, 1, 0, 1, Infinity, ""]',
        b"[1, NaN, 1, 1, 1, 1]",
        b'[1, 1, "1", 1e99, 1, 1]',
    ):
        TARGETS[name](data)


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris not installed: pip install atheris"
)
@pytest.mark.parametrize("name", ["record", "log", "snapshot", "version_1"])
def test_a_few_seconds_of_guided_fuzzing(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, "--seconds", "3"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]


@st.composite
def _command_lines(draw: st.DrawFn) -> list[str]:
    words, options = draw(st.sampled_from(COMMANDS))
    known = st.sampled_from([*options, "--help", "--no-such"])
    values = st.one_of(st.sampled_from(VALUES), st.text(max_size=8))
    return [*words, *draw(st.lists(st.one_of(known, values), max_size=5))]


@pytest.fixture(scope="module", autouse=True)
def ctrl_c() -> Iterator[None]:
    """As it was: a command line may start Spark, which handles Ctrl-C from then on."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@given(_command_lines())
@settings(max_examples=300, deadline=None)
def test_no_command_line_ends_in_a_traceback(words: list[str]) -> None:
    """Without brokers, so nothing is contacted: each ends with help, or an error of ours."""
    TARGETS["command_line"]("\n".join(words).encode("utf-8", "replace"))
