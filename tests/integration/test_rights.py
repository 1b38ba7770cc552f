"""Each right of the table in docs/operate/operating.md is needed, and named where it is missing.

With what a row of the table says, and nothing else, its command does its work. Without any one of
these rights it ends with an error that names the right and the command that grants it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from marshal_py import Marshal
from marshal_py.cli.app import app
from marshal_py.client.topics import create_topics
from tests.support.paths import ROOT
from tests.support.secure_kafka import ADMIN_PASSWORD, SecureKafka, secure_kafka

pytestmark = pytest.mark.kafka

TOPIC = "__marshal"
PASSWORD = "pw"
ARGUMENTS = {
    "status": "",
    "groups": "",
    "members": "",
    "claims": "",
    "lag": "",
    "tail": "--since 1d",
    "explain": "billing orders 1",
    "verify": "",
    "snapshot": "",
    "topic trim": "--yes",
    "group pause": "billing --for 1s",
    "group resume": "billing",
    "group describe": "billing",
    "group set-position": "billing --topic orders --to 0",
}
"""What each command of the table is given."""
BEFORE = {
    "snapshot": ("group pause",),
    "topic trim": ("group pause", "snapshot"),
    "group resume": ("group pause",),
}
"""What is there to be done, before it is tried."""
_names = itertools.count()


class Right(NamedTuple):
    operation: str
    topic: str


def table() -> dict[str, list[Right]]:
    """Command → its rights, as the table has them."""
    text = (ROOT / "docs/operate/operating.md").read_text()
    section = text.split("\n## Rights\n")[1].split("\n## ")[0]
    found = {}
    for commands, rights in re.findall(r"^\| (`marshal .*?) \| (.*?) \|$", section, re.M):
        needed = [Right(*right) for right in re.findall(r"(\w+) `(.+?)`", rights)]
        for command in re.findall(r"`marshal (.+?)`", commands):
            found[command] = needed
    return found


TABLE = table()
CASES = [(c, missing) for c, rights in TABLE.items() for missing in (None, *rights)]


def test_the_table_has_the_commands_that_are_tried() -> None:
    assert TABLE.keys() == ARGUMENTS.keys()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """A broker with an outsider's view of a group `billing`, which consumes `orders`."""
    with secure_kafka(tmp_path_factory.mktemp("secure")) as kafka:
        admin = kafka.config("admin", ADMIN_PASSWORD, mechanism="PLAIN")
        create_topics(admin, topic=TOPIC, partitions=1)
        kafka.server.create_topic("orders", 2)
        with Marshal(admin, group_id="billing", interval_ms=1_000) as marshal:
            marshal.claim("orders", 1, timeout_s=60).commit(0, wait=True)
        # Without the snapshots, nobody can know the state of a log that was trimmed.
        assert run(admin, "snapshot")[0] == 0
        assert run(admin, "topic trim")[0] == 0
        yield kafka


def run(config: dict[str, str], command: str) -> tuple[int, str]:
    """Exit code and output."""
    flags = [f"-X{name}={value}" for name, value in config.items()]
    arguments = [*command.split(), *ARGUMENTS[command].split()]
    done = CliRunner().invoke(app, [*flags, *arguments], env={"MARSHAL_BOOTSTRAP_SERVERS": ""})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output.replace("\n", " ")


@pytest.mark.parametrize(("command", "missing"), CASES)
def test_each_right_is_enough_with_the_others_and_missed_by_name(
    secure: SecureKafka, command: str, missing: Right | None
) -> None:
    user = f"user-{next(_names)}"
    secure.add_user(user, PASSWORD)
    for right in TABLE[command]:
        if right != missing:
            secure.allow(user, right.operation, right.topic)
    admin = secure.config("admin", ADMIN_PASSWORD, mechanism="PLAIN")
    for prepare in BEFORE.get(command, ()):
        assert run(admin, prepare)[0] == 0
    code, said = run(secure.config(user, PASSWORD), command)
    if missing is None:
        assert code == 0, said
        assert "lacks" not in said
        return
    assert code == 2, said
    named = rf"User:{user} lacks [\w ]*\b{missing.operation}\b[\w ]* on topic '{missing.topic}'"
    assert re.search(named, said), said
    grant = rf"--add .*--operation {missing.operation} .*--topic {missing.topic}"
    assert re.search(grant, said), said
