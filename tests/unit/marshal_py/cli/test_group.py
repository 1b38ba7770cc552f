"""`marshal group …`: what options mean, what is done only when it is asked for, how it ends."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from marshal_py.admin.connection import Connection
from marshal_py.admin.group_admin import SlotsChange
from marshal_py.admin.lag import PartitionLag
from marshal_py.admin.positions import Change, Extent, Target
from marshal_py.admin.world_reader import WorldView
from marshal_py.cli import group as module
from marshal_py.errors import AccessDenied, GroupInUse
from tests.support.log_by_hand import LogByHand
from tests.support.marshal_command import without_brokers
from tests.support.messages import heartbeat


class Admin:
    """Does nothing, and keeps what it was asked to do."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        """What, and with what."""
        self.held: dict[tuple[str, int], str] = {}
        self.level = 1
        self.in_use = False
        self.waits: list[float] = []
        """How long holders might take."""
        self.imported: list[tuple[Any, ...]] = []

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def require(self) -> None:
        self.done.append(("require", None))

    def cells(self) -> list[tuple[str, int]]:
        return [("orders", 0), ("orders", 1)]

    def keys_of(self, topic: str, partitions: list[int] | None) -> list[tuple[str, int]]:
        return [(topic, p) for p in (range(4) if partitions is None else partitions)]

    def plan(self, positions: dict[tuple[str, int], Any]) -> list[Change]:
        self.done.append(("plan", positions))
        return [Change(t, p, 60, 10, "a", Extent(0, 100)) for t, p in positions]

    def set_positions(
        self, positions: dict[tuple[str, int], Any], *, timeout_s: float
    ) -> list[Change]:
        self.waits.append(timeout_s)
        self.done.append(("set", positions))
        return [Change(t, p, 60, 10, None, Extent(0, 100)) for t, p in positions]

    def pause(self, for_s: float) -> int:
        self.done.append(("pause", for_s))
        return 1_000

    def await_released(self, timeout_s: float) -> dict[tuple[str, int], str]:
        self.done.append(("wait", timeout_s))
        return self.held

    def resume(self) -> bool:
        return True

    def import_positions(
        self, kafka_group: str, *, topics: list[str] | None, even_if_active: bool
    ) -> dict[tuple[str, int], Any]:
        self.imported.append((kafka_group, topics, even_if_active))
        return {("orders", 0): Target("committed", 10)}

    def forget(self, *, timeout_s: float) -> int:
        self.waits.append(timeout_s)
        if self.in_use:
            raise GroupInUse("client a\nall is well lives")
        self.done.append(("forget", None))
        return 2

    def set_level(self, level: int, *, even_if_unknown: bool) -> int:
        self.done.append(("even if unknown", even_if_unknown))
        before, self.level = self.level, level
        return before

    def levels_of_clients(self) -> dict[tuple[str, str], tuple[int, int]]:
        return {("a", "a-1"): (1, 2), ("b", "b-1"): (1, 1)}

    def slots_of(self, topic: str) -> int:
        return 16

    def plan_slots(self, topic: str, to: object) -> SlotsChange:
        self.done.append(("plan slots", to))
        return SlotsChange(topic, 16, 32, {(topic, 0): 7}, 3, True)

    def set_slots(self, topic: str, to: object, *, timeout_s: float) -> SlotsChange:
        self.waits.append(timeout_s)
        self.done.append(("set slots", to))
        return SlotsChange(topic, 16, 32, {(topic, 0): 7}, 3, True)


@pytest.fixture(autouse=True)
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    found = Admin()
    monkeypatch.setattr(module, "GroupAdmin", lambda *_, **__: found)
    return found


SET = ["group", "set-position", "g", "--topic", "orders"]


# Looking


def shown(monkeypatch: pytest.MonkeyPatch, *partitions: PartitionLag) -> None:
    """A group of one member, which has these partitions."""
    log = LogByHand()
    log.write(heartbeat("a", 0, instance_id="a1", membership=1))
    monkeypatch.setattr(module, "read_world", lambda *_, **__: log.view())
    monkeypatch.setattr(module, "measure_lag", lambda *_, **__: list(partitions))


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_topic_that_the_brokers_hide_is_an_error_after_what_they_show(
    monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """Without its partitions the group would look as though it were well."""
    shown(monkeypatch)

    def refuse(*_: object, group: str) -> None:
        raise AccessDenied(f"no right to Describe what {group} consumes")

    monkeypatch.setattr(module, "require_readable", refuse)
    done = without_brokers("group", "describe", "g", *options)
    assert (done.exit_code, done.stdout.count("a1")) == (2, 1)
    assert "no right to Describe what g consumes" in done.stderr


def test_a_group_is_watched_for_as_long_as_it_was_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    shown(monkeypatch)
    monkeypatch.setattr(module, "require_readable", lambda *_, **__: None)
    asked: list[dict[str, object]] = []
    log = LogByHand()
    log.write(heartbeat("a", 0, instance_id="a1", membership=1))

    def read(_: object, **how: object) -> WorldView:
        asked.append(how)
        return log.view()

    monkeypatch.setattr(module, "read_world", read)
    without_brokers("group", "describe", "g", "--observe", "2.5")
    without_brokers("group", "describe", "g")
    assert asked == [{"observe_s": 2.5}, {"observe_s": 0.0}]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_partition_without_a_leader_is_an_error_after_what_there_is(
    monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    offline = PartitionLag("g", "orders", 1, 60, None, None, None, "a", "fresh", True, offline=True)
    shown(monkeypatch, offline)
    monkeypatch.setattr(module, "require_readable", lambda *_, **__: None)
    done = without_brokers("group", "describe", "g", *options)
    assert (done.exit_code, done.stdout.count("orders")) == (3, 1)
    assert "Kafka has no leader for orders/1" in done.stderr


# What is done


def test_a_dry_run_sets_nothing(admin: Admin) -> None:
    done = without_brokers(*SET, "--to", "10", "--dry-run")
    assert [what for what, _ in admin.done] == ["require", "plan"]
    assert "4 positions would be set; nothing was written" in done.stderr
    document = json.loads(without_brokers(*SET, "--to", "10", "-n", "--json").stdout)
    assert document["dry_run"] is True
    assert [what for what, _ in admin.done] == ["require", "plan"] * 2


def test_a_position_is_set_of_those_partitions_that_were_named(admin: Admin) -> None:
    done = without_brokers(*SET, "--to", "10", "--partitions", "3,0-1", "--json")
    assert [sorted(p for _, p in keys) for what, keys in admin.done if what == "set"] == [[0, 1, 3]]
    (first, *_) = json.loads(done.stdout)["changes"]
    assert (first["first"], first["end"]) == (0, 100)
    assert "extent" not in first
    row = without_brokers(*SET, "--to", "10", "-p", "2").stdout.splitlines()[1].split()
    assert row == ["orders", "2", "60", "10", "-50", "90"]


def test_a_group_is_forgotten_only_with_yes(admin: Admin) -> None:
    done = without_brokers("group", "forget", "g")
    assert "2 partitions would be forgotten; add --yes to do it" in done.stderr
    assert ("forget", None) not in admin.done
    assert "forgot g: 2 partitions" in without_brokers("group", "forget", "g", "--yes").stdout
    assert ("forget", None) in admin.done


def test_what_somebody_still_uses_is_exit_code_1(admin: Admin) -> None:
    admin.in_use = True
    done = without_brokers("group", "forget", "g", "--yes")
    assert done.exit_code == 1
    assert "error: client a\\nall is well lives\n" in done.stderr, "no name makes a line of its own"


@pytest.mark.parametrize(
    ("held", "wait", "code"),
    [({}, "5", 0), ({("orders", 3): "a"}, "0", 0), ({("orders", 3): "a"}, "5", 1)],
)
def test_a_pause_that_waited_in_vain_is_exit_code_1(
    admin: Admin, held: dict[tuple[str, int], str], wait: str, code: int
) -> None:
    admin.held = held
    done = without_brokers("group", "pause", "g", "--for", "30m", "--wait", wait)
    assert done.exit_code == code
    assert admin.done == [("require", None), ("pause", 1_800), ("wait", float(wait))]
    assert ("orders/3 by a" in done.stderr) == bool(held)
    document = without_brokers("group", "pause", "g", "--wait", wait, "--json")
    assert document.exit_code == code
    assert len(json.loads(document.stdout)["held"]) == len(held)


def test_holders_have_as_long_as_was_said_and_a_second_at_least(admin: Admin) -> None:
    for command in (
        [*SET, "--to", "10"],
        ["group", "import", "g"],
        ["group", "slots", "g", "orders", "32"],
        ["group", "forget", "g", "--yes"],
    ):
        for wait in ([], ["--wait", "7.5"], ["--wait", "0"]):
            assert without_brokers(*command, *wait).exit_code == 0
        assert admin.waits == [60.0, 7.5, 1.0]
        admin.waits.clear()


def test_positions_are_those_of_the_kafka_group_of_the_same_name_unless_another_is_named(
    admin: Admin,
) -> None:
    assert "1 position set" in without_brokers("group", "import", "g").stderr
    without_brokers(
        *("group", "import", "g", "--from-kafka-group", "old", "--even-if-active"),
        *("--topics", "orders, bills", "--dry-run"),
    )
    assert admin.imported == [("g", None, False), ("old", ["orders", "bills"], True)]
    assert [what for what, _ in admin.done] == ["set", "plan"]


def test_a_level_that_nobody_here_knows_is_set_only_if_that_is_meant(admin: Admin) -> None:
    without_brokers("group", "level", "g", "--set", "2")
    without_brokers("group", "level", "g", "--set", "2", "--even-if-unknown")
    meant = [said for what, said in admin.done if what == "even if unknown"]
    assert meant == [False, True]


def test_a_level_is_told_with_what_it_was(admin: Admin) -> None:
    assert "g works by level 1\n" in without_brokers("group", "level", "g").stdout
    text = without_brokers("group", "level", "g", "--set", "2").stdout
    assert "g works by level 2, was 1" in text
    assert [line.split() for line in text.splitlines()[2:]] == [
        ["a", "a-1", "1", "to", "2"],
        ["b", "b-1", "1"],
    ]


def test_slots_are_shown_rehearsed_and_set(admin: Admin) -> None:
    slots = ["group", "slots", "g", "orders"]
    assert "by keys, 16 slots to a partition" in without_brokers(*slots).stdout
    assert admin.done == [("require", None)]
    done = without_brokers(*slots, "32", "--dry-run")
    assert "by keys, 16 slots" in done.stdout
    assert "1 position would be set; nothing was written" in done.stderr
    assert admin.done[-1] == ("plan slots", 32)
    done = without_brokers(*slots, "32")
    assert "by keys, 32 slots" in done.stdout
    assert admin.done[-1] == ("set slots", 32)
    without_brokers(*slots, "ranges")
    assert admin.done[-1] == ("set slots", "ranges")


def test_sigterm_is_what_it_was_when_a_command_has_ended() -> None:
    before = signal.getsignal(signal.SIGTERM)
    without_brokers("group", "resume", "g")
    assert signal.getsignal(signal.SIGTERM) is before


# What options mean


@pytest.mark.parametrize("text", ["", "x", "1,", "3-", "-3", "5-3", "1.5"])
def test_what_are_no_partitions_is_refused(admin: Admin, text: str) -> None:
    done = without_brokers(*SET, "--to", "10", f"--partitions={text}")
    assert done.exit_code == 2
    assert "must be numbers such as 0,3 or 0-5" in done.stderr
    assert "set" not in dict(admin.done)


@pytest.mark.parametrize("text", ["0-99999999999", "1234567", f"0,{'9' * 5_000}"])
def test_more_partitions_than_a_topic_has_are_refused_before_they_are_counted(
    admin: Admin, text: str
) -> None:
    done = without_brokers(*SET, "--to", "10", f"--partitions={text}")
    assert done.exit_code == 2
    assert "has a number of more than 6 digits" in done.stderr
    assert "set" not in dict(admin.done)


@pytest.mark.parametrize("text", ["2100-01-01", "soon", "10:99", ""])
def test_where_nobody_can_go_is_refused(admin: Admin, text: str) -> None:
    done = without_brokers(*SET, f"--to={text}")
    assert done.exit_code == 2
    assert f"--to {text!r}" in done.stderr
    assert admin.done == []


def test_a_duration_is_so_long_ago(admin: Admin) -> None:
    before_ms = int(time.time() * 1000)
    without_brokers(*SET, "--to", "10m")
    (target, *_) = dict(admin.done)["set"].values()
    assert target.kind == "time"
    assert before_ms - 600_000 <= target.value <= int(time.time() * 1000) - 600_000


@pytest.mark.parametrize("text", ["14:05", "2026-11-21", "1500", "soon", ""])
def test_what_is_no_duration_is_no_pause(admin: Admin, text: str) -> None:
    done = without_brokers("group", "pause", "g", f"--for={text}")
    assert done.exit_code == 2
    assert "must be a duration such as 90s" in done.stderr
    assert admin.done == []


@pytest.mark.parametrize("text", ["keys", "-1", "1e3", "99999999", "٣"])
def test_what_is_no_number_of_slots_is_refused(admin: Admin, text: str) -> None:
    done = without_brokers("group", "slots", "g", "orders", "--", text)
    assert done.exit_code == 2
    assert "must be a number from 0 to" in done.stderr
    assert admin.done == []


def test_a_group_is_looked_for_in_the_log_that_is_named(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def make(*given: object, **named: object) -> Admin:
        made.append((given, named))
        return admin

    monkeypatch.setattr(module, "GroupAdmin", make)
    connection = Connection({"bootstrap.servers": "nowhere:1"}, "log", 7.0)
    with module._admin(connection, "g"):
        pass
    [(given, told)] = made
    assert given == (connection.kafka, "g")
    assert callable(told.pop("say"))
    assert told == {"topic": "log", "connect_timeout_s": 7.0}
