"""How commands end: whose fault it is, in one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import IO

import pytest
import typer
from confluent_kafka import KafkaError, KafkaException

from marshal_py.cli import output
from marshal_py.cli.exit_codes import errors_as_exit_codes, fail
from marshal_py.errors import (
    BrokerUnavailable,
    ConfigurationError,
    InvalidArgument,
    LogHole,
    TopicMissing,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgument("of the caller"), 2),
        (ConfigurationError("of who configured it"), 2),
        (LogHole("of the log"), 1),
        (BrokerUnavailable("of the brokers"), 3),
        (TopicMissing("of who did not make it"), 3),
        (KafkaException(KafkaError(KafkaError._TRANSPORT, "no connection")), 3),
        (KafkaException("no such setting"), 3),
    ],
)
def test_an_error_is_one_line_and_the_code_that_says_whose_it_is(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as end, errors_as_exit_codes():
        raise error
    assert end.value.exit_code == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


def test_ctrl_c_is_130_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as end, errors_as_exit_codes():
        raise KeyboardInterrupt
    assert end.value.exit_code == 130
    assert capsys.readouterr().err == ""


def test_what_strangers_wrote_into_an_error_is_shown_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit), errors_as_exit_codes():
        raise InvalidArgument("no group '[/bold] [red]x[/red]\x1b[2J'\nall is well")
    assert capsys.readouterr().err == (
        "error: no group '[/bold] [red]x[/red]\\x1b[2J'\\nall is well\n"
    ), "one line, whoever wrote it"


def test_only_a_line_feed_of_our_own_begins_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """There are more characters that terminals, or Python, take for the end of one."""
    with pytest.raises(typer.Exit):
        fail("two\nlines\x85\u2028\v\f\r\x1c", 1, lines=True)
    assert capsys.readouterr().err == "error: two\nlines\\x85\\u2028\\x0b\\x0c\\r\\x1c\n"


def test_an_error_of_this_program_is_none_of_these() -> None:
    with pytest.raises(ZeroDivisionError), errors_as_exit_codes():
        raise ZeroDivisionError


def without_reader() -> IO[str]:
    read, write = os.pipe()
    os.close(read)
    return open(write, "w")


def print_table() -> None:
    made = output.table("NAME")
    made.add_row("x")
    output.show(output.console(), made)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: output.console().print("x"),
        print_table,
        lambda: output.say("x"),
        lambda: output.print_json([]),
    ],
)
def test_a_reader_that_has_seen_enough_found_nothing_wrong(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[], None]
) -> None:
    with without_reader() as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(typer.Exit) as end, errors_as_exit_codes():
            answer()
    assert end.value.exit_code == 0, "and what was left is flushed without an error"


@pytest.mark.parametrize("tell", [output.note, lambda text: output.say(text, stderr=True)])
def test_an_answer_whose_notes_nobody_reads_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tell: Callable[[str], None]
) -> None:
    with without_reader() as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with errors_as_exit_codes():
            tell("before")
            output.say("the answer")
            tell("after")
        with pytest.raises(typer.Exit) as end:
            fail("an error", 3)
    assert end.value.exit_code == 3
    assert capsys.readouterr().out == "the answer\n"
