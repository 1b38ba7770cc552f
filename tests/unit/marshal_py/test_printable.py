"""What strangers wrote reaches no terminal, no log and no JSON raw, whichever command prints it."""

from __future__ import annotations

import io
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.text import Text
from typer.testing import CliRunner

import marshal_py.client.marshal  # noqa: F401  (the loggers of both are set up)
from harvest.cli.app import app as harvest_app
from marshal_py.admin.formatting import safe
from marshal_py.cli.output import console, note, print_json, say
from marshal_py.client.structured_logs import JsonFormatter
from marshal_py.printable import LineFormatter, escape_logs, printable, printable_json, text_of
from tests.support.hostile import HOSTILE, raw_characters
from tests.support.paths import ROOT

hostile = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(HOSTILE),
        st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"]),
    )
)


@given(hostile)
def test_what_is_printable_has_nothing_raw(text: str) -> None:
    assert printable(text).isprintable()
    assert not raw_characters(printable(text, lines=True), allowed="\n\t")
    if text.isprintable():
        assert printable(text) == text


@given(hostile)
@example("\ud800\udc00")
def test_json_says_the_same_in_characters_that_can_be_seen(text: str) -> None:
    shown = printable_json(json.dumps({text: [text]}, ensure_ascii=False, indent=1))
    assert not raw_characters(shown, allowed="\n")
    # To JSON, two halves of a character that stand side by side are the character.
    same = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert json.loads(shown) == {same: [same]}


@given(hostile)
def test_rich_shows_a_name_as_it_is_or_as_escapes(text: str) -> None:
    shown = Text.from_markup(safe(text), emoji=False).plain
    assert shown == printable(text)


@given(hostile)
def test_every_way_to_print_escapes(text: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        patch.setattr("sys.stderr", err)
        say(text)
        say(text, stderr=True)
        note(text)
        print_json({"name": text}, indent=None)
        console().print(f"[bold]{safe(text)}[/]")
        console(wide=False).print(text, markup=False)  # somebody forgot `safe`
    assert not raw_characters(out.getvalue() + err.getvalue(), allowed="\n")
    assert err.getvalue().count("\n") == 2
    assert out.getvalue().startswith(printable(text) + "\n" + '{"name": "')


@given(hostile)
def test_logs_escape(text: str) -> None:
    taken = io.StringIO()
    plain, lines, document = (logging.StreamHandler(taken) for _ in range(3))
    lines.setFormatter(LineFormatter())
    document.setFormatter(JsonFormatter())
    logger = logging.getLogger("harvest")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logger, "handlers", [plain, lines, document])
        patch.setattr(logger, "propagate", False)
        logger.error("%s failed (%r, %d)", text, ValueError(text), 7)
        logger.error("%(name)s failed", {"name": text})
        logger.error(text.replace("%", ""))
        patch.setattr(logger, "handlers", [lines, document])
        try:
            raise ValueError(text)
        except ValueError:
            logger.exception("failed")
    assert not raw_characters(taken.getvalue(), allowed="\n\t")


class Mute(Exception):
    def __str__(self) -> str:
        raise AttributeError("code")

    __repr__ = __str__


@pytest.mark.parametrize("text", [str, repr])
def test_who_has_no_text_ends_nobody_who_tells_of_it(text: Callable[[object], str]) -> None:
    said = "<Mute, of which no text can be made: AttributeError>"
    assert text_of(Mute(), text) == said
    assert text_of("a", text) == text("a")
    record = logging.LogRecord("harvest", 30, "", 0, "%s", (Mute(),), None)
    logging.getLogger("harvest").filter(record)


def test_arguments_that_can_be_seen_are_handed_on_as_they_are() -> None:
    error = ValueError("plain")
    record = logging.LogRecord("harvest", 30, "", 0, "%s %d %s", ("a", 1, error), None)
    logging.getLogger("harvest").filter(record)
    assert record.args == ("a", 1, error)


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_every_logger_escapes() -> None:
    names: set[str] = set()
    for _, text in sources("marshal_py", "harvest"):
        names.update(re.findall(r'getLogger\("([^"]+)"\)', text))
    assert {"marshal_py", "harvest"} < names
    assert [name for name in sorted(names) if not logging.getLogger(name).filters] == []


OWN_WORDS = {
    "marshal_py/cli/command.py": "its version",
    "marshal_py/cli/metrics.py": "files of ours, as they are",
}


def test_commands_print_by_the_functions_that_escape_and_no_others() -> None:
    raw = re.compile(
        r"(?<![\w.])(print|Console|typer\.s?echo|sys\.std(out|err)\.write|logging\.basicConfig)\("
    )
    found = set()
    for where, text in sources("marshal_py/cli", "harvest/cli"):
        if where != "marshal_py/cli/output.py" and "/demo/" not in where and raw.search(text):
            found.add(where)
    assert found == set(OWN_WORDS)


def test_the_dead_letters_of_a_hostile_outbox(tmp_path: Path) -> None:
    """Its keys, topics, headers and errors are whatever the application's users typed."""
    url = f"sqlite:///{tmp_path}/shop.db"

    def harvest(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(harvest_app, [*words, "--database", url])
        assert done.exit_code == code, done.output
        return done.output

    harvest("init")
    harvest("stash", "orders", HOSTILE.replace("\0", ""), "value")
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute(
            "INSERT INTO outbox_dead_letters VALUES (7, ?, ?, ?, 'v', '[]', '[]', ?, 0, ?)",
            ("2026-01-01 00:00:00", HOSTILE, HOSTILE, HOSTILE, "2026-01-01 00:00:00"),
        )
    for json_ in ([], ["--json"]):
        shown = harvest("dead-letters", "list", *json_, code=1)
        shown += harvest("check", *json_) + harvest("dead-letters", "retry", "--all", "--dry-run")
        assert not raw_characters(shown, allowed="\n")
        assert "x1b" in shown or "u001b" in shown
    assert len(harvest("dead-letters", "list", code=1).splitlines()) == 2, "a row is one line"


def test_line_feeds_and_tabs_stay_in_text_of_several_lines_alone() -> None:
    assert printable("a\tb\r\n", lines=True) == "a\tb\\r\n"
    assert printable("a\tb\n") == "a\\tb\\n"


def test_a_logger_that_is_named_twice_escapes_once() -> None:
    for _ in range(2):
        escape_logs(["tests.escapes_once"])
    assert len(logging.getLogger("tests.escapes_once").filters) == 1


def test_what_can_be_seen_stays_beside_what_cannot() -> None:
    assert printable("é\x1b") == "é\\x1b"
    assert printable_json('"é\U000e0001"') == '"é\\udb40\\udc01"'
