"""Which parts a configuration makes: each mode has its own, and shards have names of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harvest.config.destinations import DestinationConfig
from harvest.config.load import parse
from harvest.config.model import ReaperConfig
from harvest.databases.postgres.dead_letters import PostgresDeadLetters
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.two_databases import TwoDatabasesStore
from harvest.databases.postgres.wal_dead_letters import PostgresWalDeadLetters
from harvest.errors import SinkUnavailable
from harvest.runtime import parts as module
from harvest.runtime.mark_leader import MarkTools
from harvest.runtime.range_leader import RangeTools
from harvest.runtime.relay_leader import RelayTools
from harvest.runtime.wal_leader import WalTools


def config(more: str = "") -> ReaperConfig:
    return parse(
        "database: host=d\nkafka: {bootstrap.servers: 'localhost:1'}\ngroup: g\n"
        f"coordination: {{topic: elsewhere}}\n{more}"
    )


class Made:
    """Notes with what it was made."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.given, self.named = given, named


@pytest.fixture
def sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TransactionalSink", "IdempotentSink"):
        monkeypatch.setattr(module, name, type(name, (Made,), {}))


def sink(made: ReaperConfig, name: str | None = None) -> Any:
    return module.make_sink(made, name)


@pytest.mark.parametrize(("delivery", "exact"), [("transactional", True), ("idempotent", False)])
def test_checkpoints_rest_on_a_place_in_the_log_where_there_are_any(
    delivery: str, *, exact: bool
) -> None:
    tools = module.make_mark_tools(config(f"delivery: {delivery}"))
    assert tools.guard is not None
    assert tools.guard._exact is exact


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "TransactionalSink"),
        ("delivery: idempotent", "IdempotentSink"),
        ("mode: range", "TransactionalSink"),
        ("mode: wal", "TransactionalSink"),
        ("mode: wal\ndelivery: idempotent", "TransactionalSink"),
    ],
)
@pytest.mark.usefixtures("sinks")
def test_the_position_of_wal_mode_is_kept_in_transactions_whatever_the_delivery(
    text: str, kind: str
) -> None:
    assert type(sink(config(text))).__name__ == kind


@pytest.mark.usefixtures("sinks")
def test_each_shard_has_a_transactional_id_of_its_own() -> None:
    """With one id for two shards, each leader would shut out the other."""
    made = config("mode: range\nshards: 3\n")
    tools = [module.make_tools(made, shard) for shard in range(3)]
    names = [tool.sink.named["name"] for tool in tools]  # type: ignore[attr-defined]
    assert names == ["g.outbox.0", "g.outbox.1", "g.outbox.2"]
    assert sink(made).named["name"] == "g.outbox"
    assert sink(made).named["checkpoint_topic"] == "elsewhere"


@pytest.mark.parametrize(
    ("bad_rows", "waits"),
    [
        ("{unknown_topic: wait, on_bad_row: stop}", True),
        ("{unknown_topic: wait}", False),
        ("{on_bad_row: stop}", False),
        ("{}", False),
    ],
)
@pytest.mark.usefixtures("sinks")
def test_all_rows_wait_for_a_topic_only_where_none_can_be_set_aside(
    bad_rows: str, waits: bool
) -> None:
    for delivery in ("transactional", "idempotent"):
        made = config(f"bad_rows: {bad_rows}\ndelivery: {delivery}\n")
        assert sink(made).named["wait_for_topics"] is waits


@pytest.mark.parametrize(("delivery", "durable"), [("transactional", True), ("idempotent", False)])
def test_marks_are_on_the_disk_where_a_checkpoint_rests_on_them(
    monkeypatch: pytest.MonkeyPatch, delivery: str, durable: bool
) -> None:
    seen: list[dict[str, Any]] = []

    class Tables:
        def mark_store(self, table: object, **given: Any) -> None:
            del table
            seen.append(given)

    monkeypatch.setattr(module, "database", lambda _: Tables())
    module.make_store(config(f"delivery: {delivery}\ncolumns: {{headers: {{trace: trace_id}}}}\n"))
    assert seen == [{"durable": durable, "extra": {"trace": "trace_id"}}]


def test_each_mode_has_its_tools() -> None:
    relay = "destinations: {shop: {kafka: {}}}\n"
    for text, kind in (
        ("", MarkTools),
        ("mode: range", RangeTools),
        ("mode: wal", WalTools),
        (relay, RelayTools),
    ):
        assert type(module.make_tools(config(text))) is kind


@pytest.mark.parametrize(
    ("text", "looked_after"),
    [
        ("mode: range\nshards: 2", [True, False]),
        ("mode: range\nshards: 2\npartitions: {automatic: false}", [False, False]),
        ("mode: range\nprimary: {database: host=p}", [False]),
        ("mode: wal\nwal: {purge: partitions}", [True]),
        ("mode: wal\nwal: {purge: partitions}\npartitions: {automatic: false}", [False]),
        ("mode: wal", [False]),
    ],
)
def test_one_leader_looks_after_the_partitions(text: str, looked_after: list[bool]) -> None:
    made = config(text)
    tools: list[Any] = [module.make_tools(made, shard) for shard in range(made.shards)]
    assert [tool.maintain is not None for tool in tools] == looked_after


def test_with_two_databases_rows_are_not_set_aside() -> None:
    """The ids are the primary's, and say nothing about the outbound table."""
    tools: Any = module.make_tools(config("mode: range\nprimary: {database: host=p}"))
    assert tools.dead_letters is None
    assert isinstance(tools.reader, TwoDatabasesStore)
    assert tools.message_of == tools.reader.message_of
    tools = module.make_tools(config("mode: range"))
    assert isinstance(tools.dead_letters, PostgresDeadLetters)
    assert tools.message_of is None


def test_a_replica_is_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was promoted is no replica any more, and has to be found out."""
    monkeypatch.setattr(module, "PostgresIds", Made)
    monkeypatch.setattr(module, "TwoDatabasesStore", Made)
    made: Any = module.make_range_store(
        config("mode: range\nprimary: {database: host=p, replica: host=r, ids: mine}")
    )
    ids, _, replica = made.given
    assert (ids.given, ids.named) == (("host=p", "mine"), {})
    assert (replica.given, replica.named) == (("host=r", "mine"), {"standby": True})
    made = module.make_range_store(config("mode: range\nprimary: {database: host=p}"))
    assert made.given[2] is None


def test_each_mode_has_its_table_and_dead_letters() -> None:
    assert isinstance(module.make_any_store(config()), PostgresMarkStore)
    assert isinstance(module.make_any_store(config("mode: range")), PostgresRangeStore)
    assert type(module.make_dead_letters(config("mode: range"))) is PostgresDeadLetters
    assert type(module.make_dead_letters(config("mode: wal"))) is PostgresWalDeadLetters


def test_at_least_once_wal_mode_has_a_second_sink() -> None:
    tools: Any = module.make_tools(config("mode: wal\ndelivery: idempotent"))
    assert tools.pipeline is not None
    tools = module.make_tools(config("mode: wal"))
    assert tools.pipeline is None


@pytest.mark.usefixtures("sinks")
def test_what_is_said_of_records_and_topics_is_so_of_both_sinks_of_wal_mode() -> None:
    made = config(
        "mode: wal\ndelivery: idempotent\nharvest_id: shop\ncloudevents: {source: /shop}\n"
        "bad_rows: {on_bad_row: stop, unknown_topic: wait}\n"
    )
    tools: Any = module.make_tools(made)
    for its in (tools.sink, tools.pipeline):
        assert its.named["envelope"] == made.envelope()
        assert its.named["wait_for_topics"] is True


def test_a_certificate_that_is_being_replaced_is_waited_for(tmp_path: Path) -> None:
    """The process would end as it begins to lead, though the files were whole when it began."""
    file = tmp_path / "ca.pem"
    file.write_text("")
    torn = DestinationConfig.model_validate({"http": {"uri": "https://h/", "ca_file": str(file)}})
    made = config("destinations: {shop: {http: {uri: 'https://h/'}}}")
    made = made.model_copy(update={"destinations": {"shop": torn}})
    with pytest.raises(SinkUnavailable, match="the certificates cannot be read"):
        module.make_tools(made)


def test_the_slot_reads_the_further_columns() -> None:
    made = config("mode: wal\ncolumns: {headers: {trace: trace_id}}")
    assert module.make_wal_source(made).options.layout.headers["trace"] == "trace_id"


def test_a_relay_knows_the_time_of_day_and_the_time_that_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harvest.runtime.parts.time.time", lambda: 1_700_000_000.0)
    monkeypatch.setattr("harvest.runtime.parts.time.monotonic", lambda: 50.0)
    clocks: list[Any] = []
    monkeypatch.setattr(ReaperConfig, "router", lambda _, clock: clocks.append(clock))
    monkeypatch.setattr(module, "RelayTools", Made)
    module.make_relay_tools(ReaperConfig.model_validate(config().model_dump(exclude_unset=True)))
    assert clocks[0]() == (1_700_000_000_000.0, 50_000.0)
