"""Every command, of both programs, has a help text with an example that its own parser accepts."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from harvest.cli.app import app as harvest_app
from harvest.cli.app import main as harvest_main
from marshal_py.cli.app import app as marshal_app
from tests.support.paths import DOCS

PROGRAMS = {"marshal": marshal_app, "harvest": harvest_app}


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of all commands that do something."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
    else:
        yield path


COMMAND_OF: dict[str, Any] = {name: typer.main.get_command(app) for name, app in PROGRAMS.items()}
COMMANDS = [path for name, command in COMMAND_OF.items() for path in leaves(command, (name,))]


@functools.cache
def help_of(path: tuple[str, ...]) -> str:
    done = CliRunner().invoke(
        PROGRAMS[path[0]], [*path[1:], "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}
    )
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_command_has_an_example_in_its_help(path: tuple[str, ...]) -> None:
    assert f"{' '.join(path)}" in re.sub(r"Usage:[^\n]*\n", "", help_of(path))


def check_command_line(line: str, *, complete: bool = True) -> None:
    """Parse a command line as the program would, without running it. Raises if it is wrong.

    One that is not `complete` may lack arguments, as in running text.
    """
    if "--install-completion" in line:
        return  # it would be carried out
    words = shlex.split(line, comments=True)
    # What follows belongs to the shell.
    for index, word in enumerate(words):
        if word in ("|", "||", "&", "&&", ">", ";") or word.startswith(("2>", ">")):
            words = words[:index]
            break
    command: Any = COMMAND_OF[words[0]]
    context: Any = None
    rest = words[1:]
    while True:
        try:
            context = command.make_context(words[0], list(rest), parent=context)
        except Exception as error:
            if "does not exist" in str(error):  # a file that only the reader has
                return
            if not complete and re.search(r"^Missing|requires an argument", str(error)):
                return
            raise AssertionError(f"{line}: {error}") from None
        if not hasattr(command, "commands"):
            return
        words = [*context._protected_args, *context.args]
        name, rest = words[0], words[1:]
        assert name in command.commands, f"{line}: no command {name!r}"
        command = command.commands[name]


def test_the_check_of_command_lines_can_fail() -> None:
    check_command_line("marshal -b localhost:9092 explain billing orders 7 --at 02:13 | less")
    for wrong in ("marshal claims --no-such-flag", "marshal nonsense", "harvest reap --jsn"):
        with pytest.raises(AssertionError):
            check_command_line(wrong)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_examples_in_a_help_are_understood(path: tuple[str, ...]) -> None:
    for line in help_of(path).splitlines():
        found = re.match(r"[\s│]*(?:Example:\s*)?((?:marshal|harvest) [a-z-].*?)[\s│]*$", line)
        if found and "Usage" not in line and len(found[1]) < 180:
            example = re.sub(r"\s{2,}\(.*", "", found[1])
            if example.count("'") % 2 == 0:
                check_command_line(example)


def test_commands_take_json_but_for_those_that_the_reference_names() -> None:
    without = {path for path in COMMANDS if "--json" not in help_of(path)}
    assert without == {
        ("marshal", "run"),
        *(("marshal", "metrics", name) for name in ("dashboard", "alerts", "serve")),
        ("harvest", "reap"),
        ("harvest", "stash"),
        *(("harvest", "checkpoint", name) for name in ("restore", "reset")),
    }
    said = " ".join((DOCS / "reference" / "commands.md").read_text(encoding="utf-8").split())
    assert (
        "`marshal run`, `marshal metrics …`, `harvest reap`, `harvest stash` and "
        "`harvest checkpoint restore | reset` do not." in said
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_both_programs_tell_their_version_and_know_the_short_flag(program: str) -> None:
    told = CliRunner().invoke(PROGRAMS[program], ["--version"], prog_name=program)
    assert told.output == f"{program} {version('marshal-py')}\n"
    whole, short = (CliRunner().invoke(PROGRAMS[program], [flag]) for flag in ("--help", "-h"))
    assert short.exit_code == 0
    assert short.output == whole.output
    assert "Exit codes: 0" in whole.output


def test_an_error_of_harvest_looks_like_one_of_marshal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One prefix, one exit code for one kind of fault, and no escape code of a stranger's."""
    config = tmp_path / "harvest.yaml"
    config.write_text('"\\e[31mred": 1\n')
    monkeypatch.setattr("sys.argv", ["harvest", "check", "--config", str(config)])
    with pytest.raises(SystemExit) as ended:
        harvest_main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "\x1b" not in said
    assert "red" in said


@pytest.mark.parametrize(
    ("module", "arguments", "says"),
    [
        ("marshal_py.cli", ["nonsense"], "error: No such command 'nonsense'. Try `marshal -h`."),
        ("marshal_py.cli", ["group", "nope"], "error: No such command 'nope'. Try `marshal group"),
        ("marshal_py.cli", ["claims", "--nope"], "error: No such option: --nope"),
        ("harvest.cli", ["reap"], "error: Missing option '--config'"),
        ("harvest.cli", ["nons\x1b[2Jense"], "error: No such command 'nons\\x1b[2Jense'."),
    ],
)
def test_wrong_usage_is_one_line_as_all_errors_are(
    module: str, arguments: list[str], says: str
) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(says)
    assert len(done.stderr.splitlines()) == 1
