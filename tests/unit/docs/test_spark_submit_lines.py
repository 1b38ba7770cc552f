"""The lines of specs/AUDIT.md §4: their arguments are what the commands take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from harvest.cli.app import app as harvest
from marshal_py.cli.app import app as marshal
from tests.support.paths import SPECS

SPEC = SPECS / "AUDIT.md"
APPS = {"marshal_py": marshal, "harvest": harvest}
SUBMIT = {"--master", "--jars", "--conf"}


def lines() -> list[str]:
    section = SPEC.read_text().split("\n## 4.")[1].split("\n## 5.")[0]
    text = "\n".join(line for line in section.splitlines() if line.startswith("    "))
    return text.replace("\\\n", " ").splitlines()


def test_there_is_one_for_each_pipeline() -> None:
    found = [
        re.search(r'"\$\(python -m (\w+)\.cli\.spark_submit\)" (\w+)', line) for line in lines()
    ]
    assert [match.groups() if match else None for match in found] == [
        ("marshal_py", "audit"),
        ("harvest", "reconcile"),
        ("harvest", "lake"),
        ("marshal_py", "lake"),
    ]


@pytest.mark.parametrize("line", lines())
def test_its_arguments_are_known(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)
    program = next(n for n, word in enumerate(words) if word.endswith(".cli.spark_submit)"))
    assert words[0] == "spark-submit"
    assert set(words[1:program:2]) <= SUBMIT
    name = words[program].removeprefix("$(python -m ").removesuffix(".cli.spark_submit)")
    group = typer.main.get_command(APPS[name])
    with group.make_context(name, words[program + 1 :]) as context:
        rest = [*context._protected_args, *context.args]
        sub, command, arguments = group.resolve_command(context, rest)  # type: ignore[attr-defined]
        if hasattr(command, "commands"):  # a family of commands
            sub, *arguments = arguments
            command = command.commands[sub]
        command.make_context(sub, arguments, parent=context)  # raises for what is unknown
