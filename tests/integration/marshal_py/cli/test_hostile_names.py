"""Names of strangers, with every control character there is, in what each command prints."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from marshal_py import Marshal
from tests.support.hostile import HOSTILE, raw_characters
from tests.support.marshal_command import Cli

pytestmark = pytest.mark.kafka

COMMANDS = [
    ["status"], ["claims"], ["groups"], ["members"], ["lag"], ["tail", "-n", "50", "--all"],
    ["top", "--count", "1"], ["verify"], ["explain", HOSTILE, HOSTILE, "0"], ["doctor"],
    ["snapshot"], ["group", "list"], ["group", "describe", HOSTILE], ["group", "level", HOSTILE],
    ["group", "pause", HOSTILE, "--for", "5m"], ["group", "resume", HOSTILE],
    ["group", "forget", HOSTILE],
]  # fmt: skip


def test_no_command_prints_a_raw_character(
    run: Cli, client: Callable[..., Marshal], made: str
) -> None:
    member = client(HOSTILE, group_id=HOSTILE)
    claim = member.claim(HOSTILE, 0, timeout_s=60)
    claim.set_metadata(HOSTILE.encode())
    with member.leader(HOSTILE):
        for command in COMMANDS:
            for more in ([], ["--json"]):
                done = run(*command, *more)
                assert done.returncode in (0, 1), (command, done.stderr)
                found = raw_characters(done.stdout + done.stderr, allowed="\n")
                assert not found, (command, done.stdout, done.stderr)
                if more and command[0] not in ("tail", "top"):
                    json.loads(done.stdout)
