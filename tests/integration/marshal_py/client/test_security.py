"""TLS, SCRAM and ACLs on a real broker: what is needed, what is said of what lacks, secrets."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from marshal_py import AccessDenied, AuthenticationFailed, ConfigurationError, Consumer, Marshal
from marshal_py.admin.connection import Connection
from marshal_py.cli.app import app
from marshal_py.client.topics import create_topics
from marshal_py.dashboard.topic_ends import TopicEnds
from marshal_py.protocol.messages import ReleaseGroup, encode
from tests.support.secure_kafka import ADMIN_PASSWORD, SecureKafka, secure_kafka

pytestmark = pytest.mark.kafka

PASSWORD = "pw-that-nobody-may-see"
_names = iter(range(1_000))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with secure_kafka(tmp_path_factory.mktemp("secure")) as kafka:
        yield kafka


@pytest.fixture
def topic(secure: SecureKafka) -> str:
    """A coordination topic with one record, so that there is something to read."""
    name = f"__marshal.{next(_names)}"
    admin = secure.config("admin", ADMIN_PASSWORD, mechanism="PLAIN")
    create_topics(admin, topic=name, partitions=2)
    producer = Producer({**admin, "log_level": 0})
    for topic in (name, f"{name}.snapshots"):
        for p in range(2):
            record = encode(ReleaseGroup(2, "ops", "i", "x", 0, 1))
            producer.produce(topic, record, key=b"0", partition=p)
    assert producer.flush(60) == 0
    return name


@pytest.fixture
def user(secure: SecureKafka) -> str:
    """A user without any right."""
    name = f"user-{next(_names)}"
    secure.add_user(name, PASSWORD)
    return name


def start(secure: SecureKafka, user: str, topic: str, **settings: Any) -> Marshal:
    password = settings.pop("password", PASSWORD)
    settings = {"interval_ms": 1_000, "connect_timeout_ms": 10_000, **settings}
    return Marshal(secure.config(user, password), group_id="g", topic=topic, **settings).start()


def claims(secure: SecureKafka, user: str, topic: str, **settings: Any) -> bool:
    """Start a client, claim, and close. Ends with what the client raises."""
    marshal = start(secure, user, topic, **settings)
    try:
        return marshal.claim("t", 0, timeout_s=60).held
    finally:
        marshal.close(timeout_s=5)


RIGHTS = (("Read", ""), ("Write", ""), ("Read", ".snapshots"), ("Write", ".snapshots"))
"""The rights that a client needs, on the coordination topic and on that of the snapshots."""


def grant(secure: SecureKafka, user: str, topic: str, *but: tuple[str, str]) -> None:
    for right in RIGHTS:
        if right not in but:
            secure.allow(user, right[0], topic + right[1])


def test_read_and_write_on_two_topics_are_enough(
    secure: SecureKafka, user: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    grant(secure, user, topic)
    assert claims(secure, user, topic)
    assert "authorization" not in caplog.text.lower()
    assert "lacks" not in caplog.text


def _names_the_way_out(text: str, user: str, operation: str, topic: str) -> bool:
    """Whether an administrator can copy the command."""
    return (
        f"User:{user} lacks" in text
        and f"--allow-principal User:{user}" in text
        and f"--operation {operation}" in text
        and f"--topic {topic}" in text
    )


@pytest.mark.parametrize("missing", [("Read", ""), ("Write", "")])
def test_a_missing_right_is_named_and_granting_it_helps(
    secure: SecureKafka, user: str, topic: str, missing: tuple[str, str]
) -> None:
    grant(secure, user, topic, missing)
    with pytest.raises(AccessDenied) as refused:
        claims(secure, user, topic)
    assert _names_the_way_out(str(refused.value), user, missing[0], topic)
    secure.allow(user, missing[0], topic)
    assert claims(secure, user, topic)


def test_without_any_right_both_are_named(secure: SecureKafka, user: str, topic: str) -> None:
    with pytest.raises(AccessDenied) as refused:
        claims(secure, user, topic)
    for operation in ("Read", "Write"):
        assert _names_the_way_out(str(refused.value), user, operation, topic)


def test_without_the_snapshots_all_works_and_the_log_says_what_is_missing(
    secure: SecureKafka, user: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    grant(secure, user, topic, *RIGHTS[2:])
    assert claims(secure, user, topic)
    assert _names_the_way_out(caplog.text, user, "Read", f"{topic}.snapshots")


def test_snapshots_that_may_be_seen_but_not_read_are_an_error(
    secure: SecureKafka, user: str, topic: str
) -> None:
    grant(secure, user, topic, RIGHTS[2])
    with pytest.raises(AccessDenied) as refused:
        claims(secure, user, topic)
    assert _names_the_way_out(str(refused.value), user, "Read", f"{topic}.snapshots")


def test_to_create_the_topics_needs_a_right_of_its_own(secure: SecureKafka, user: str) -> None:
    topic = f"__marshal.{next(_names)}"
    with pytest.raises(AccessDenied) as refused:
        claims(secure, user, topic, create_topics=True)
    assert _names_the_way_out(str(refused.value), user, "Create", topic)
    for name in (topic, f"{topic}.snapshots"):
        secure.allow(user, "Create", name)
        secure.allow(user, "Describe", name)
    grant(secure, user, topic)
    assert claims(secure, user, topic, create_topics=True)


def test_a_right_that_is_taken_away_ends_the_lease_and_may_come_back(
    secure: SecureKafka, user: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    grant(secure, user, topic)
    marshal = start(secure, user, topic)
    try:
        claim = marshal.claim("t", 0, timeout_s=60)
        secure.forbid(user, "Write", topic)
        assert claim.wait_lost(60)
        secure.allow(user, "Write", topic)
        claim.commit(7, wait=True, timeout_s=60)
        assert claim.stored_offset == 7
        assert _names_the_way_out(caplog.text, user, "Write", topic)
    finally:
        marshal.close(timeout_s=5)


def test_a_wrong_password_is_named_as_the_reason(
    secure: SecureKafka, user: str, topic: str
) -> None:
    # Long before the client would give up waiting for brokers.
    with pytest.raises(AuthenticationFailed, match="SASL authentication error") as refused:
        claims(secure, user, topic, password="pw-that-is-wrong", connect_timeout_ms=3_600_000)
    assert "pw-that-is-wrong" not in str(refused.value)
    assert secure.server.bootstrap_servers in str(refused.value)


@pytest.mark.parametrize("create_topics", [False, True])
def test_a_consumer_is_told_of_a_wrong_password_as_well(
    secure: SecureKafka, user: str, topic: str, create_topics: bool
) -> None:
    config = secure.config(user, "pw-that-is-wrong")
    consumer = Consumer(
        config,
        group_id="g",
        topics="t",
        topic=topic,
        create_topics=create_topics,
        connect_timeout_ms=3_600_000,
    )
    with pytest.raises(AuthenticationFailed, match="SASL authentication error"):
        consumer.start()


def test_a_consumer_is_told_of_a_topic_that_it_may_not_see(
    secure: SecureKafka, user: str, topic: str
) -> None:
    grant(secure, user, topic)
    orders = f"orders.{next(_names)}"
    create_topics(secure.config("admin", ADMIN_PASSWORD, mechanism="PLAIN"), topic=orders)
    config = secure.config(user, PASSWORD)
    consumer = Consumer(config, group_id="g", topics=orders, topic=topic)
    with pytest.raises(AccessDenied) as refused:
        consumer.start()
    assert _names_the_way_out(str(refused.value), user, "Read", orders)


def test_plaintext_against_tls_is_told_as_what_it_is(secure: SecureKafka, topic: str) -> None:
    config = {"bootstrap.servers": secure.server.bootstrap_servers}
    with pytest.raises(AuthenticationFailed, match="TLS listener"):
        Marshal(config, group_id="g", topic=topic, connect_timeout_ms=1_000).start()


def test_an_unknown_authority_is_named_as_the_reason(secure: SecureKafka, topic: str) -> None:
    config = secure.config("admin", ADMIN_PASSWORD, mechanism="PLAIN")
    del config["ssl.ca.location"]
    marshal = Marshal(config, group_id="g", topic=topic, connect_timeout_ms=3_600_000)
    with pytest.raises(AuthenticationFailed, match="certificate"):
        marshal.start()


def test_errors_come_once_in_a_while_not_with_every_attempt(
    secure: SecureKafka, user: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AuthenticationFailed):
        claims(secure, user, topic, password="wrong")
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) <= 2


def _everything_said(marshal: Marshal) -> str:
    said = io.StringIO()
    print(marshal, repr(marshal.settings), vars(marshal), file=said)
    return said.getvalue()


def test_a_password_is_in_no_log_repr_or_error(
    secure: SecureKafka, user: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    grant(secure, user, topic)
    marshal = start(secure, user, topic)
    said = _everything_said(marshal)
    claim = marshal.claim("t", 0, timeout_s=60)
    said += repr(claim) + _everything_said(marshal)
    marshal.close(timeout_s=5)
    errors = []
    for config in (
        {**secure.config(user, PASSWORD), "sasl.mechanism": "NONSENSE"},
        {**secure.config(user, PASSWORD), "no.such.setting": "1"},
        {**secure.config(user, PASSWORD), "acks": PASSWORD},
        {**secure.config(user, PASSWORD), "ssl.key.password": PASSWORD, "ssl.key.location": "/no"},
        {**secure.config(user, PASSWORD), "bootstrap.servers": ""},
    ):
        with pytest.raises(ConfigurationError) as refused:
            Marshal(config, group_id="g", topic=topic, connect_timeout_ms=1_000).start()
        errors.append(str(refused.value))
    assert PASSWORD not in said
    assert PASSWORD not in "".join(errors)
    assert PASSWORD not in caplog.text


def test_the_command_line_takes_a_password_from_a_file_and_shows_it_nowhere(
    secure: SecureKafka, user: str, topic: str, tmp_path: Path
) -> None:
    grant(secure, user, topic)
    path = tmp_path / "client.properties"
    settings = secure.config(user, PASSWORD)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [sys.executable, "-m", "marshal_py.cli", "status", "--config", str(path)]
    command += ["--topic", topic, "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ}
    )
    shown = ""
    with contextlib.suppress(OSError):  # as `ps` sees it, for as long as it runs
        shown = Path(f"/proc/{process.pid}/cmdline").read_text()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    json.loads(said)
    assert PASSWORD not in shown + said


def test_a_wrong_password_on_the_command_line_is_an_error_of_configuration(
    secure: SecureKafka, user: str, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    settings = secure.config(user, "pw-that-is-wrong")
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [sys.executable, "-m", "marshal_py.cli", "status", "--config", str(path)]
    done = subprocess.run(
        [*command, "--topic", topic], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "SASL" in done.stderr
    assert "pw-that-is-wrong" not in done.stdout + done.stderr


def test_doctor_names_the_missing_right_and_the_command_that_grants_it(
    secure: SecureKafka, user: str, topic: str
) -> None:
    from marshal_py.admin.cluster_checks import check_cluster
    from marshal_py.admin.cluster_facts import gather_cluster_facts

    connection = Connection(secure.config(user, PASSWORD), topic)
    blind = {(c.subject, c.name): c for c in check_cluster(gather_cluster_facts(connection))}
    assert blind[topic, "acl"].text == "this client lacks Read and Write"
    secure.allow(user, "Read", topic)
    half = next(
        c
        for c in check_cluster(gather_cluster_facts(connection))
        if (c.subject, c.name) == (topic, "acl")
    )
    assert half.level == "error"
    assert half.fix == (
        f"kafka-acls.sh --bootstrap-server {secure.server.bootstrap_servers} --add "
        f"--allow-principal User:{user} --operation Write --topic {topic}"
    )
    grant(secure, user, topic)
    checks = check_cluster(gather_cluster_facts(connection))
    assert {c.level for c in checks if c.name == "acl"} == {"ok"}
    assert "settings" in {c.name for c in checks if c.level == "skipped"}, "no DescribeConfigs"
    assert PASSWORD not in repr(checks) + repr(connection)


def test_lag_of_a_topic_that_may_not_be_seen_is_an_error_and_not_zero(
    secure: SecureKafka, user: str, topic: str
) -> None:
    """It exists, a group consumes it, and the brokers leave it out of every list."""
    orders = f"orders-{user}"
    secure.server.create_topic(orders, 1)
    admin = secure.config("admin", ADMIN_PASSWORD, mechanism="PLAIN")
    with Marshal(admin, group_id="billing", topic=topic, interval_ms=1_000) as marshal:
        marshal.claim(orders, 0, timeout_s=60).commit(0, wait=True)
    for name in (topic, f"{topic}.snapshots"):
        secure.allow(user, "Read", name)
    environment = {"MARSHAL_TOPIC": topic, "MARSHAL_BOOTSTRAP_SERVERS": ""}
    flags = [f"-X{name}={value}" for name, value in secure.config(user, PASSWORD).items()]

    def lag() -> Any:
        return CliRunner().invoke(app, [*flags, "lag", "--max", "10"], env=environment)

    hidden = lag()
    assert hidden.exit_code == 2
    assert _names_the_way_out(hidden.output.replace("\n", " "), user, "Describe", orders)
    dashboard = TopicEnds(Connection(secure.config(user, PASSWORD), topic))
    assert (dashboard.ask({orders}), dashboard.hidden({orders})) == ({}, [orders])
    secure.allow(user, "Describe", orders)
    assert lag().exit_code == 0
    assert (dashboard.ask({orders}), dashboard.hidden({orders})) == ({orders: {0: 0}}, [])
