"""`marshal group migrate`: what is moved, how long it is waited for, and how it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.admin import migration, version1_positions
from marshal_py.admin.migration_plan import Step
from marshal_py.cli import migrate as module
from marshal_py.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DuplicateClientId,
    TopicMissing,
)
from tests.support.marshal_command import without_brokers

FREE = Step("orders", 0, "free", None, 60, None, -1)
IN_USE = Step("orders", 1, "in_use", "old", 60, "new", 70)
MOVED = Step("orders", 2, "moved", None, 60, "new", 70)


class Client:
    """A client that holds nothing, of the topic and the version that it was made for."""

    rows: ClassVar[dict[tuple[str, int], int]] = {("orders", 0): -1}
    """The cells of its group, and their positions."""

    def __init__(self, _kafka: object, *, topic: str, wire: str = "msgpack", **given: Any) -> None:
        self.settings = SimpleNamespace(topic=topic)
        self.group_id, self.wire, self.given = given["group_id"], wire, given
        self.missing = False
        self.closed: list[bool] = []

    def start(self) -> None:
        if self.missing:
            raise TopicMissing(self.settings.topic)

    def close(self, *, release: bool) -> None:
        self.closed.append(release)

    def cell(self, *_: object) -> None:
        return None

    @contextmanager
    def world(self) -> Iterator[Any]:
        rows = [
            (0, ("g", *key), SimpleNamespace(position=position))
            for key, position in self.rows.items()
        ]
        yield SimpleNamespace(cells=lambda _: rows)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """Those that were made; nothing connects."""
    found: list[Client] = []

    def make(*given: Any, **settings: Any) -> Client:
        found.append(Client(*given, **settings))
        return found[-1]

    metadata = {"orders": SimpleNamespace(partitions={0: 0, 1: 0, 2: 0})}
    admin = SimpleNamespace(list_topics=lambda **_: SimpleNamespace(topics=metadata))
    monkeypatch.setattr(module, "Marshal", make)
    monkeypatch.setattr(module, "admin_client", lambda _: admin)
    return found


def rehearse(
    monkeypatch: pytest.MonkeyPatch, steps: dict[int, Step], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(module, "assess", lambda key, *_, **__: steps[key[1]])
    done = without_brokers("group", "migrate", "g", "--dry-run", *arguments)
    return done.exit_code, done.stdout, done.stderr


def test_a_rehearsal_says_what_cannot_move_by_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, clients: list[Client]
) -> None:
    code, text, said = rehearse(monkeypatch, {0: FREE, 1: FREE, 2: MOVED})
    assert code == 0
    assert [line.split()[2] for line in text.splitlines()[1:]] == ["free", "free", "moved"]
    assert "2 would move at once, 0 when their holders are stopped, 1 have moved" in said
    assert "Nothing was written" in said
    code, text, said = rehearse(monkeypatch, {0: FREE, 1: IN_USE, 2: MOVED})
    assert code == 1
    assert "in use" in text
    assert "1 cannot" in said
    code, text, _ = rehearse(monkeypatch, {0: FREE, 1: IN_USE, 2: MOVED}, "--json")
    assert code == 1
    assert [row["state"] for row in json.loads(text)] == ["free", "in_use", "moved"]


def test_both_sides_are_opened_with_their_own_topic_and_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, clients: list[Client]
) -> None:
    rehearse(monkeypatch, {0: FREE, 1: FREE, 2: FREE}, "--text-topic", "old", "--interval", "24")
    text, new = clients
    assert (text.settings.topic, text.wire, text.given["interval_ms"]) == ("old", "text", 24_000)
    assert (new.settings.topic, new.wire, new.given["interval_ms"]) == ("old.v2", "msgpack", 2_000)
    assert new.given["member"] is False
    assert [client.closed for client in clients] == [[False], [False]]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--text-topic", "old", "--new-topic", "old"], "is the topic of version 1"),
        (["--dry-run", "--topics", "orders, bills"], "--topics: there is no topic 'bills'"),
    ],
)
def test_what_cannot_be_moved_is_refused(
    clients: list[Client], arguments: list[str], why: str
) -> None:
    done = without_brokers("group", "migrate", "g", *arguments)
    assert done.exit_code == 2
    assert why in done.stderr


@pytest.mark.parametrize(("agreed", "how"), [(16, "keys"), (1, "keys"), (65_536, "ranges")])
@pytest.mark.parametrize("arguments", [[], ["--topics", "orders"]])
def test_what_is_shared_by_keys_or_ranges_does_not_go_back_to_who_knows_partitions_alone(
    monkeypatch: pytest.MonkeyPatch,
    clients: list[Client],
    arguments: list[str],
    agreed: int,
    how: str,
) -> None:
    """Its slots and ranges would move as topics of their own, and its positions would not."""
    cells = {("orders#slots", 0): agreed, ("orders/1#16", 3): 60, ("orders/2@900", 0): 950}
    monkeypatch.setattr(Client, "rows", cells)
    code, text, said = rehearse(monkeypatch, {}, "--back", *arguments)
    assert (code, text) == (2, "")
    assert f"shares topic 'orders' by {how}" in said
    assert "`marshal group slots g orders partitions` first" in " ".join(said.split())


def test_what_is_left_of_slots_does_not_move(
    monkeypatch: pytest.MonkeyPatch, clients: list[Client]
) -> None:
    cells = {("orders", 0): 60, ("orders#slots", 0): 0, ("orders/1#16", 3): 60}
    monkeypatch.setattr(Client, "rows", cells | {("bills#slots", 0): 8, ("leader:x", 0): -1})
    monkeypatch.setattr(module, "assess", lambda key, *_, **__: FREE._replace(topic=key[0]))
    done = without_brokers("group", "migrate", "g", "--dry-run", "--back", "--topics", "orders")
    assert {line.split()[0] for line in done.stdout.splitlines()[1:]} == {"orders"}
    monkeypatch.setattr(Client, "rows", cells | {("leader:x", 0): -1})
    done = without_brokers("group", "migrate", "g", "--dry-run", "--back")
    assert {line.split()[0] for line in done.stdout.splitlines()[1:]} == {"orders", "leader:x"}


class Turn:
    """The claim to be the bridge: one claim after the other, each held after so many looks."""

    def __init__(self) -> None:
        self.looks = 0
        """How often a claim is looked at before it is held."""
        self.reasons: list[str | None] = []
        """Why the next claims end before they are held."""
        self.wanted = 0
        self.held = True
        self.reason: str | None = None

    def want(self, topic: str, partition: int) -> Turn:
        assert (topic, partition) == ("leader:migration", 0)
        self.wanted += 1
        self.held = True
        self.reason = self.reasons.pop(0) if self.reasons else None
        return self

    def wait_held(self, timeout_s: float) -> bool:
        assert timeout_s == module.POLL_S
        self.looks -= 1
        return self.looks < 0 and self.reason is None


class Play:
    """What becomes of bridges: `script` says what each step does."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.holder: str | None = None
        """Who is the bridge, according to the log."""
        self.script: list[Callable[[FakeBridge], list[Step]]] = []
        self.bridges: list[FakeBridge] = []
        self.block_errors: list[Exception] = []
        self.ended = False
        self.abandoned: list[str] = []


class FakeBridge:
    """Moves what its script says."""

    def __init__(
        self,
        play: Play,
        source: Client,
        target: Client,
        topics: dict[str, int],
        *,
        every: bool,
        skip_to_target: bool,
    ) -> None:
        self.play, self.source, self.target, self.topics = play, source, target, topics
        self.every, self.skip_to_target = every, skip_to_target
        self.keys = [("orders", 0)]
        self.moved: set[tuple[str, int]] = set()
        self.conflicts: dict[tuple[str, int], str] = {}
        self.complete = self.busy = self.finished = False
        self.ended = play.ended
        self.adopted: list[dict[str, int]] = []
        play.bridges.append(self)

    def block(self, timeout_s: float) -> None:
        assert timeout_s >= 30
        if self.play.block_errors:
            raise self.play.block_errors.pop(0)

    def step(self) -> list[Step]:
        return self.play.script.pop(0)(self)

    def adopt(self, topics: dict[str, int]) -> list[tuple[str, int]]:
        self.adopted.append(topics)
        return [("new", n) for n in range(7)] if len(self.adopted) == 1 else []

    def plan(self) -> list[Step]:
        return [MOVED, FREE._replace(state="held", source_holder="old")]

    def finish(self) -> None:
        self.finished = True


def waits(_: FakeBridge) -> list[Step]:
    return []


def moves_all(bridge: FakeBridge) -> list[Step]:
    bridge.moved, bridge.complete = {("orders", 0)}, True
    return [MOVED]


def is_taken_by_force(bridge: FakeBridge) -> list[Step]:
    bridge.moved, bridge.complete = set(), False
    bridge.conflicts = {("orders", 0): "taken by old\x1b"}
    return []


def moves_again(bridge: FakeBridge) -> list[Step]:
    bridge.conflicts = {}
    return moves_all(bridge)


def is_stopped(_: FakeBridge) -> list[Step]:
    signal.raise_signal(signal.SIGTERM)
    return []


def loses_its_turn(bridge: FakeBridge) -> list[Step]:
    bridge.play.turn.held = False
    return []


@pytest.fixture
def program() -> Iterator[Callable[..., None]]:
    """The handler of SIGTERM that was there before."""

    def unexpected(*_: object) -> None:
        raise AssertionError("the command does not listen to SIGTERM")

    before = signal.signal(signal.SIGTERM, unexpected)
    yield unexpected
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def play(
    monkeypatch: pytest.MonkeyPatch, clients: list[Client], program: Callable[..., None]
) -> Play:
    made = Play()

    def cell(*_: object) -> Any:
        return made.holder and SimpleNamespace(holder=made.holder, held=True)

    monkeypatch.setattr(Client, "want", made.turn.want, raising=False)
    monkeypatch.setattr(Client, "cell", cell)
    monkeypatch.setattr(Client, "__enter__", lambda client: client, raising=False)
    monkeypatch.setattr(
        Client, "__exit__", lambda client, *_: client.close(release=True), raising=False
    )
    monkeypatch.setattr(
        module,
        "driver_of",
        lambda client: SimpleNamespace(
            check_open=lambda: None,
            abandon=lambda: made.abandoned.append(client.wire),
        ),
    )
    monkeypatch.setattr(module, "Bridge", partial(FakeBridge, made))
    monkeypatch.setattr(module, "POLL_S", 0.001)
    return made


def migrate(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Return the exit code, what was told as JSON, and what was said."""
    done = without_brokers("group", "migrate", "g", "--json", *arguments)
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_group_whose_old_side_was_stopped_moves_and_the_command_ends(
    play: Play, clients: list[Client]
) -> None:
    play.script = [waits, moves_all]
    code, told, _ = migrate("--source-stopped", "--skip-to-target")
    assert (code, [row["event"] for row in told]) == (0, ["blocked", "moved", "finished"])
    assert (told[0]["moved"], told[1]["partition"], told[1]["target_offset"]) == (0, 2, 70)
    (bridge,) = play.bridges
    assert bridge.finished
    assert (bridge.source.wire, bridge.target.wire) == ("text", "msgpack")
    assert (bridge.topics, bridge.every, bridge.skip_to_target) == ({"orders": 3}, True, True)
    looks, lead, text, new = clients
    assert (looks.wire, looks.given["client_id"]) == ("text", "marshal-migrate-looks")
    assert lead.given["create_topics"], "the group is there"
    assert lead.given["client_id"].startswith("marshal-migrate-")
    assert text.given["client_id"] == new.given["client_id"] == "marshal-migrate"
    # What the next bridge goes on with is not released; the turn is.
    assert [client.closed for client in clients] == [[False], [True], [False], [False]]
    assert not any(client.given["close_on_sigterm"] for client in clients), "it would release all"
    assert play.abandoned == []


def test_a_topic_that_nobody_of_the_group_has_claimed_yet_moves_as_a_whole_if_it_is_named(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "rows", {})
    play.script = [moves_all]
    code, _, _ = migrate("--source-stopped", "--topics", "orders")
    (bridge,) = play.bridges
    assert (code, bridge.topics) == (0, {"orders": 3})


def test_the_way_back_makes_no_topic_and_has_the_sides_the_other_way_round(
    play: Play, clients: list[Client]
) -> None:
    play.script = [moves_all]
    code, _, _ = migrate("--source-stopped", "--back", "--topics", "orders")
    (bridge,) = play.bridges
    assert (code, bridge.source.wire, bridge.target.wire) == (0, "msgpack", "text")
    assert not bridge.every
    assert not clients[0].given["create_topics"]
    assert len(clients) == 3


def test_a_signal_stops_it_and_says_what_is_left(play: Play, program: Callable[..., None]) -> None:
    play.script = [waits, is_stopped]
    code, told, _ = migrate("--interval", "24")
    assert (code, [row["event"] for row in told]) == (0, ["blocked", "stopped"])
    assert "1 partition left: orders/0: old holds it" in told[-1]["text"]
    assert "Version 2 stops within 24 s" in told[-1]["text"]
    assert not play.bridges[0].finished
    assert play.abandoned == []
    assert signal.getsignal(signal.SIGTERM) is program


def test_that_all_has_moved_is_told_once_and_it_goes_on_for_who_has_not_stopped(play: Play) -> None:
    play.script = [moves_all, waits, waits, is_stopped]
    code, told, _ = migrate()
    assert (code, [row["event"] for row in told]) == (
        0,
        ["blocked", "moved", "complete", "stopped"],
    )
    assert not play.bridges[0].finished


def test_what_version_1_takes_by_force_is_told_each_time_and_that_all_has_moved_again(
    play: Play,
) -> None:
    play.script = [moves_all, is_taken_by_force, waits, moves_again, is_taken_by_force, is_stopped]
    code, told, _ = migrate()
    taken, moved = ["conflict"], ["moved", "complete"]
    events = ["blocked", *moved, *taken, *moved, *taken, "stopped"]
    assert (code, [row["event"] for row in told]) == (0, events)
    assert (told[3]["topic"], told[3]["partition"]) == ("orders", 0)
    play.script = [is_taken_by_force, moves_again]
    done = without_brokers("group", "migrate", "g", "--source-stopped")
    assert (
        "orders/0: taken by old\\x1b in version 1, although version 2 worked on it: it is version "
        "1's again, and moves when that process is stopped"
    ) in done.stdout.splitlines()


def test_what_a_bridge_logs_is_heard(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """That Go's committed offsets may not be read, for one: it goes on without."""
    heard: list[str] = []
    monkeypatch.setattr(module, "log_to_stderr", lambda *, name: heard.append(name))
    play.script = [moves_all]
    migrate("--source-stopped")
    assert heard == [migration.logger.name, version1_positions.logger.name]


@pytest.mark.parametrize("how", ["turn", "name"])
def test_a_bridge_that_is_one_no_more_abandons_its_clients_and_stands_by(
    play: Play, how: str
) -> None:
    if how == "turn":
        play.script = [loses_its_turn, moves_all]
    else:
        play.script = [moves_all]
        play.block_errors = [DuplicateClientId("somebody else")]
    code, told, _ = migrate("--source-stopped")
    begun = ["blocked"] if how == "turn" else []
    events = [*begun, "again", "blocked", "moved", "finished"]
    assert (code, [row["event"] for row in told]) == (0, events)
    words = "lost its turn" if how == "turn" else "was taken for another"
    assert words in told[len(begun)]["text"]
    assert play.abandoned == ["text", "msgpack"]
    assert play.turn.wanted == 2
    assert [bridge.finished for bridge in play.bridges] == [False, True]


def test_a_standby_says_so_once_and_wants_its_turn_again_when_it_was_lost(play: Play) -> None:
    play.turn.looks, play.holder = 4, "other"
    play.turn.reasons = ["taken over by x"]
    play.script = [moves_all]
    code, told, _ = migrate("--source-stopped")
    events = ["standby", "blocked", "moved", "finished"]
    assert (code, [row["event"] for row in told]) == (0, events)
    assert "other is the bridge" in told[0]["text"]
    assert play.turn.wanted == 2


def test_who_waits_in_vain_gives_up_when_it_was_told_to(play: Play) -> None:
    play.turn.looks = 10**9
    code, told, _ = migrate("--give-up", "0.05")
    assert (code, told) == (1, [{"event": "gave_up", "text": "another is the bridge"}])
    play.turn.looks = 0
    play.script = [waits] * 10_000
    code, told, _ = migrate("--give-up", "0.05")
    assert (code, [row["event"] for row in told]) == (1, ["blocked", "gave_up"])
    assert "1 partition left" in told[-1]["text"]


def test_where_an_earlier_bridge_was_ending_the_end_is_all_that_is_left(play: Play) -> None:
    play.ended = True
    code, told, _ = migrate()
    assert (code, [row["event"] for row in told]) == (0, ["finished"])
    assert play.bridges[0].finished


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (
            KafkaException(KafkaError(KafkaError._TRANSPORT, "nobody answers")),
            "no answer from the brokers",
        ),
        (ConfigurationError("ssl.key.location failed"), "ssl.key.location"),
    ],
)
def test_topics_that_are_new_are_taken_in_while_it_moves(
    play: Play, monkeypatch: pytest.MonkeyPatch, problem: Exception, why: str
) -> None:
    looked: list[int] = []
    admin: Any = cast(Any, module).admin_client({})
    list_topics = admin.list_topics

    def look(**given: Any) -> Any:
        looked.append(len(looked))
        if len(looked) == 4:  # one looks before a topic is made, one is the bridge
            raise problem
        return list_topics(**given)

    def until_looked(bridge: FakeBridge) -> list[Step]:
        if len(looked) < 5:
            play.script.append(until_looked)
            return []
        return is_stopped(bridge)

    monkeypatch.setattr(admin, "list_topics", look)
    play.script = [until_looked]
    code, told, said = migrate("--interval", "1")
    assert (code, [row["event"] for row in told]) == (0, ["blocked", "adopted", "stopped"])
    assert "new: new/0, new/1, new/2, new/3, new/4 and 2 more" in told[1]["text"]
    assert told[1]["partitions"] == [["new", n] for n in range(7)]
    assert f"could not be looked at, and will be again: {why}" in said
    assert play.bridges[0].adopted == [{"orders": 3}] * 2


def test_an_error_of_a_side_ends_it_and_releases_nothing(play: Play, clients: list[Client]) -> None:
    def fails(_: FakeBridge) -> list[Step]:
        raise BrokerUnavailable("nobody answers")

    play.script = [fails]
    code, _, said = migrate()
    assert (code, "nobody answers" in said) == (3, True)
    assert [client.closed for client in clients] == [[False], [True], [False], [False]]


def test_without_json_it_is_told_in_words(play: Play) -> None:
    play.script = [moves_all]
    done = without_brokers("group", "migrate", "g", "--source-stopped")
    assert done.stdout.splitlines() == [
        "1 partition held for the new side: its processes may start, and those of the old side be "
        "stopped",
        "moved orders/2 at offset 70 (1 of 1)",
        "everything has moved; the old side is released",
    ]
