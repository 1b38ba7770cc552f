"""Where a command connects to: flags over environment over file, and errors that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from marshal_py.admin.connection import Connection, Flags, parse_settings, read_config_file
from marshal_py.errors import ConfigurationError


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# ours\nbootstrap.servers = file:9092\nsasl.username=u=1\n\n! old\n")
    flags = Flags("flag:9092", ("client.id=me", "sasl.username=u2"), file)
    connection = Connection.of(flags)
    assert connection.kafka == {
        "bootstrap.servers": "flag:9092",
        "sasl.username": "u2",
        "client.id": "me",
    }
    assert connection.snapshot_topic == "__marshal.snapshots"


def test_later_flags_win_over_earlier_ones() -> None:
    earlier = Flags("a:1", ("x=1", "y=1"), None, "one", 5.0)
    later = Flags(None, ("x=2",), None, "two", None)
    connection = Connection.of(later.over(earlier))
    assert connection.kafka == {"bootstrap.servers": "a:1", "x": "2", "y": "1"}
    assert (connection.topic, connection.timeout_s) == ("two", 5.0)


def test_yaml_is_flattened(tmp_path: Path) -> None:
    file = tmp_path / "kafka.yaml"
    file.write_text(
        "bootstrap.servers: y:1\nsecurity:\n  protocol: SSL\n"
        "socket.timeout.ms: 500\nlog.queue: no\n"
    )
    assert read_config_file(file) == {
        "bootstrap.servers": "y:1",
        "security.protocol": "SSL",
        "socket.timeout.ms": "500",
        "log.queue": "false",
    }


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.properties", "bootstrap.servers=x\nnonsense\n", "line 2"),
        ("a.yaml", "- a\n- b\n", "mapping"),
        ("a.yaml", "a: [1\n", "not valid YAML"),
        ("a.yml", "a: [1]\n", "a must be text"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=says) as caught:
        read_config_file(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.properties", "sasl.username=Jürgen\n"), ("a.yaml", "sasl: {username: Jürgen}\n")],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_is_in_utf_8_with_a_mark_or_without(
    tmp_path: Path, name: str, text: str, mark: str
) -> None:
    (tmp_path / name).write_text(mark + text, "utf-8")
    assert read_config_file(tmp_path / name) == {"sasl.username": "Jürgen"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_config_file(tmp_path / "none.properties")


def test_a_setting_without_a_key_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="KEY=VALUE") as caught:
        parse_settings(["hunter2"])
    assert "hunter2" not in str(caught.value)


def test_a_value_may_have_equals_signs() -> None:
    assert parse_settings(["a=b=c"]) == {"a": "b=c"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (Flags(), "-b HOST:PORT"),
        (Flags("a:1", timeout_s=0.0), "--timeout"),
        (Flags("a:1", timeout_s=3_601.0), "--timeout 3601 is above 3600 seconds"),
        (Flags("a:1", ("acks=1",)), "acks"),
    ],
)
def test_what_cannot_work_is_refused(flags: Flags, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Connection.of(flags)


def test_secrets_do_not_show() -> None:
    connection = Connection.of(Flags("a:1", ("sasl.password=hunter2",)))
    assert "hunter2" not in repr(connection)


def test_a_timeout_of_zero_is_refused_and_is_not_one_that_was_left_out() -> None:
    later = Flags(timeout_s=0.0).over(Flags("a:1", timeout_s=5.0))
    with pytest.raises(ConfigurationError, match="--timeout 0 must be above 0 seconds"):
        Connection.of(later)


def test_snapshots_are_in_a_topic_that_is_named_for_the_log() -> None:
    assert Connection.of_servers("a:1", "mine").snapshot_topic == "mine.snapshots"


def test_a_setting_by_name_wins_over_the_flag_for_it() -> None:
    connection = Connection.of(Flags("a:1", ("bootstrap.servers=b:2",)))
    assert connection.kafka == {"bootstrap.servers": "b:2"}


def test_brokers_may_go_by_their_other_name() -> None:
    connection = Connection.of(Flags(settings=("metadata.broker.list=a:1",)))
    assert connection.kafka == {"metadata.broker.list": "a:1"}


def test_of_two_files_the_later_one_is_read(tmp_path: Path) -> None:
    later = Flags(config_file=tmp_path / "later").over(Flags(config_file=tmp_path / "earlier"))
    assert later.config_file == tmp_path / "later"


def test_the_line_of_yaml_that_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "kafka.yaml"
    file.write_text("a: 1\nb: c: d\n")
    with pytest.raises(ConfigurationError, match="line 2: not valid YAML"):
        read_config_file(file)
