"""Configuration: our own form, goharvest's, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest.config.goharvest import parse_duration_ms
from harvest.config.load import load, parse
from harvest.config.model import ReaperConfig
from harvest.config.routes import load_route, load_routes
from harvest.core.row import Row
from harvest.databases.postgres.conninfo import libpq_conninfo
from harvest.errors import ConfigurationError, InvalidRecord
from harvest.sinks.kafka.settings import connection_settings, consumer_settings, producer_settings

OURS = """
kafka: {bootstrap.servers: "localhost:9092", sasl.password: hush}
database: postgresql://app:hush@localhost/shop
group: shop
"""
# The two example files of goharvest's own repository, key for key.
GOHARVEST = """
harvest:
  baseKafkaConfig:
    bootstrap.servers: localhost:9092
  producerKafkaConfig:
    compression.type: lz4
    delivery.timeout.ms: 10000
  leaderTopic: my-app-name
  leaderGroupID: my-app-name
  dataSource: host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable
  outboxTable: outbox
  limits:
    minPollInterval: 1s
    heartbeatTimeout: 5s
    maxInFlightRecords: 1000
    minMetricsInterval: 5s
    sendConcurrency: 4
    sendBuffer: 10
logging:
  level: Debug
"""
GOHARVEST_SECURE = """
harvest:
  baseKafkaConfig:
    bootstrap.servers: localhost:9094
    security.protocol: sasl_ssl
    ssl.ca.location: ca-cert.pem
    sasl.mechanism: SCRAM-SHA-512
    sasl.username: alice
    sasl.password: alice-secret
  leaderTopic: __consumer_offsets
  leaderGroupID: my-app-name
  dataSource: host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable
  outboxTable: outbox
logging:
  level: Debug
"""


def test_our_form_has_sound_defaults() -> None:
    config = parse(OURS)
    assert (config.outbox, config.delivery, config.logging.level) == (
        "outbox",
        "transactional",
        "info",
    )
    assert config.limits.limits().max_in_flight_records == 20_000
    assert config.coordination.interval_ms == 1_000
    assert (config.election_name, config.sink_name) == ("harvest:outbox", "shop.outbox")


def test_secrets_are_in_no_repr() -> None:
    assert "hush" not in repr(parse(OURS))
    assert "alice-secret" not in repr(parse(GOHARVEST_SECURE))


def test_goharvests_file_loads_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "reaper.yaml"
    path.write_text(GOHARVEST)
    config = load(path)
    assert config.kafka == {"bootstrap.servers": "localhost:9092"}
    assert config.producer == {"compression.type": "lz4", "delivery.timeout.ms": 10_000}
    assert (config.group, config.outbox) == ("my-app-name", "outbox")
    assert config.limits.max_in_flight_records == 1_000
    assert config.coordination.interval_ms == 2_500
    assert config.logging.python_level() == 10
    # lib/pq and libpq read `password= dbname=postgres` alike: the password is "dbname=postgres"
    assert psycopg.conninfo.conninfo_to_dict(config.database) == {
        "host": "localhost",
        "port": "5432",
        "user": "postgres",
        "password": "dbname=postgres",
        "sslmode": "disable",
    }


def test_goharvests_secure_file_loads_unchanged() -> None:
    config = parse(GOHARVEST_SECURE)
    assert config.kafka["security.protocol"] == "sasl_ssl"
    assert connection_settings(config.kafka) == config.kafka


def test_every_key_of_goharvest_is_known() -> None:
    limits = ["ioErrorBackoff", "pollDuration", "minPollInterval", "maxPollInterval"]
    limits += ["heartbeatTimeout", "drainInterval", "queueTimeout", "markBackoff"]
    lines = [f"    {name}: 250ms" for name in [*limits, "minMetricsInterval"]]
    counts = ["maxInFlightRecords", "sendConcurrency", "sendBuffer", "markQueryRecords"]
    lines += [f"    {name}: 7" for name in counts]
    config = parse("harvest:\n  name: me\n  limits:\n" + "\n".join(lines))
    assert config.name == "me"
    assert config.limits.mark_query_records == config.limits.max_in_flight_records == 7
    assert config.limits.io_error_backoff_ms == config.limits.max_poll_interval_ms == 250
    assert config.coordination.interval_ms == 125


def test_a_goharvest_file_may_name_our_delivery_and_mode() -> None:
    config = parse("harvest: {delivery: idempotent}")
    assert (config.delivery, config.mode) == ("idempotent", "mark")
    assert parse("harvest: {mode: range}").mode == "range"
    with pytest.raises(ConfigurationError, match=r"delivery: .*transactional.*idempotent"):
        parse("harvest: {delivery: twice}")
    with pytest.raises(ConfigurationError, match="must be transactional in range mode"):
        parse("harvest: {delivery: idempotent, mode: range}")


def test_notifications_may_come_past_a_pooler() -> None:
    base = {"kafka": {"bootstrap.servers": "b"}, "group": "g"}
    config = ReaperConfig.model_validate({**base, "database": "host=pooler"})
    assert config.listened_database == "host=pooler"
    direct = "host=server password=secret"
    behind = {**base, "database": "host=pooler", "direct_database": direct}
    config = ReaperConfig.model_validate(behind)
    assert config.listened_database == direct
    assert "secret" not in repr(config)
    text = "{kafka: {bootstrap.servers: b}, group: g, database: 'sqlite:///x', direct_database: x}"
    with pytest.raises(ConfigurationError, match="direct_database: only PostgreSQL"):
        parse(text)


def test_an_empty_goharvest_file_has_goharvests_defaults() -> None:
    config = parse("harvest: {}")
    assert config.kafka == {"bootstrap.servers": "localhost:9092"}
    assert config.outbox == "outbox"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OURS + "limts: {}", "limts: unknown key; did you mean 'limits'"),
        (OURS + "limits: {mark_query_record: 3}", "did you mean 'mark_query_records'"),
        (OURS + "limits: {mark_query_records: 0}", "limits.mark_query_records: .*greater"),
        (OURS + "delivery: twice", "delivery: .*'transactional' or 'idempotent'"),
        (OURS + "logging: {level: loud}", "logging.level"),
        (OURS + 'outbox: "a b"', "table name 'a b'"),
        (OURS + "producer: {acks: 1}", "'acks' is 1, must be -1 or all"),
        (OURS + "producer: {enable.idempotence: false}", "'enable.idempotence' is False"),
        (OURS + "producer: {transactional.id: x}", "'transactional.id' cannot be given"),
        ("harvest: {limits: {sendBufer: 1}}", "limits.sendBufer: .*did you mean 'sendBuffer'"),
        ("harvest: {limits: {markBackoff: 5}, x: 1}", "harvest.x: unknown key; known here"),
        ("harvest: {limits: {markBackoff: soon}}", "markBackoff: not a Go duration"),
        ("kafka: {}\ndatabase: d\ngroup: g", "'bootstrap.servers' is missing"),
        ("kafka: [", "no YAML, line"),
        ("- a", "no mapping"),
        ("", "is empty"),
        (OURS.replace("hush@", "${NO_SUCH_VARIABLE}@"), "NO_SUCH_VARIABLE is not set"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        parse(text)
    assert "hush" not in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load("nowhere.yaml")


def test_environment_variables_are_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "from-outside")
    config = parse(OURS.replace("app:hush", "app:${DB_PASSWORD}"))
    assert config.database == "postgresql://app:from-outside@localhost/shop"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1s", 1000),
        ("100ms", 100),
        ("1m30s", 90_000),
        ("1.5h", 5_400_000),
        ("250us", 0.25),
        ("1µs", 0.001),
        ("0", 0),
        (1_000_000, 1),
    ],
)
def test_go_durations(text: object, milliseconds: float) -> None:
    assert parse_duration_ms(text) == pytest.approx(milliseconds)


@pytest.mark.parametrize("text", ["", "1", "s", "1 s", "-1s", "1x", "1s2", None, True, 1.5])
def test_what_is_no_go_duration(text: object) -> None:
    with pytest.raises(ValueError, match="not a Go duration"):
        parse_duration_ms(text)


def test_server_settings_in_a_data_source_become_options() -> None:
    pairs = psycopg.conninfo.conninfo_to_dict(
        libpq_conninfo(
            "host=h search_path=a,b password='it''s' binary_parameters=yes".replace("''", "\\'")
        )
    )
    assert pairs == {"host": "h", "password": "it's", "options": "-c search_path=a,b"}
    url = libpq_conninfo("postgres://u:p%40@h/d?sslmode=disable&search_path=a b")
    assert psycopg.conninfo.conninfo_to_dict(url) == {
        "user": "u",
        "password": "p@",
        "host": "h",
        "dbname": "d",
        "sslmode": "disable",
        "options": "-c search_path=a\\ b",
    }


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20))
def test_any_password_survives(password: str) -> None:
    source = psycopg.conninfo.make_conninfo("", host="h", password=password)
    read = psycopg.conninfo.conninfo_to_dict(libpq_conninfo(source))
    assert read.get("password", "") == password


def test_producer_settings_pass_everything_through() -> None:
    settings = producer_settings({"bootstrap.servers": "b", "linger.ms": 7}, "harvest.x")
    assert settings["linger.ms"] == 7
    assert settings["transactional.id"] == "harvest.x"
    assert settings["enable.idempotence"] is True


def test_a_transaction_lasts_as_long_as_a_row_may_wait() -> None:
    settings = producer_settings({"delivery.timeout.ms": 120_000}, "x")
    assert settings["transaction.timeout.ms"] == 120_000
    assert producer_settings({"delivery.timeout.ms": 10}, "x")["transaction.timeout.ms"] == 15_000


def test_the_reader_of_the_checkpoint_takes_only_the_connection() -> None:
    settings = consumer_settings({"bootstrap.servers": "b", "linger.ms": 7, "ssl.x": "y"}, "g")
    assert settings["ssl.x"] == "y"
    assert "linger.ms" not in settings
    assert settings["isolation.level"] == "read_committed"


# --- What is put in from the environment ---


def test_variables_are_put_in_wherever_there_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "from-outside")
    config = parse(
        OURS
        + "destinations: {shop: {nats: {servers: ['nats://${SECRET}@n', 'b${SECRET}${SECRET}']}}}\n"
    )
    nats = config.destinations["shop"].nats
    assert nats is not None
    assert nats.servers == ["nats://from-outside@n", "bfrom-outsidefrom-outside"]


# --- Mistakes ---


def test_every_mistake_is_told_and_the_key_is_known_where_it_stands() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(OURS + "delivery: twice\nshards: 0\nwal: {slott: x}\npartitions: {zzz: 1}\n")
    said = str(caught.value)
    assert "delivery: " in said
    assert "shards: " in said
    assert "wal.slott: unknown key; did you mean 'slot'?" in said
    assert "partitions.zzz: unknown key; known here: automatic, rows, ahead" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: b\nb: [\n", "c is no YAML, line 3"),
        ("a: 2026-99-99\n", "c is no YAML"),
        ("[" * 50_000, "c is no YAML"),
        ("&a {b: *a, kafka: 1}", "c contains itself"),
    ],
)
def test_what_is_no_yaml_says_where(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse(text, source="c")


def test_a_file_that_is_no_text_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "reaper.yaml"
    path.write_bytes(b"group: \xff")
    with pytest.raises(ConfigurationError, match=r"reaper\.yaml cannot be read"):
        load(path)


# --- Routes in Python ---


def no_route(row: Row) -> str:
    raise KeyError(row.topic)


no_function = "text"


class Mute(Exception):
    def __str__(self) -> str:
        raise AttributeError("code")


def mute_route(row: Row) -> str:
    raise Mute


def test_a_route_whose_error_has_no_text_is_that_rows_fault_all_the_same() -> None:
    row: Any = None
    with pytest.raises(InvalidRecord, match="mute_route failed: Mute: <Mute, of which no text"):
        load_route(f"python:{__name__}:mute_route")(row)  # type: ignore[operator]


def test_what_a_route_in_python_raises_is_that_rows_fault() -> None:
    """A row that cannot be routed is set aside; an error that ends the process would stop all."""
    find = load_route(f"python:{__name__}:no_route")
    assert callable(find)
    with pytest.raises(InvalidRecord, match="no_route failed: KeyError: 'orders'"):
        find(Row(1, "orders", b"k", b"v"))


@pytest.mark.parametrize(
    ("route", "said"),
    [
        ("python:no.such.module:f", "write python:module:function"),
        (f"python:{__name__}:nothing", "write python:module:function"),
        ("python:", "write python:module:function"),
        (f"python:{__name__}:no_function", "no_function is no function"),
    ],
)
def test_a_route_that_is_no_function_is_a_mistake(route: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_route(route)


def test_of_several_routes_each_is_looked_up() -> None:
    assert load_routes(None) is None
    assert load_routes("shop") == "shop"
    found = load_routes(["shop", f"python:{__name__}:no_route"])
    assert isinstance(found, list)
    assert found[0] == "shop"
    assert callable(found[1])


# --- goharvest's file ---


def test_goharvests_group_goes_before_its_topic() -> None:
    assert parse("harvest: {leaderTopic: t, leaderGroupID: g}").group == "g"
    assert parse("harvest: {leaderTopic: t}").group == "t"
    assert parse("harvest: {}").group == "reaper"
    assert parse("harvest: {}").logging.level == "debug"


def test_goharvests_times_keep_within_ours() -> None:
    limits = parse("harvest: {limits: {markBackoff: 1ms, ioErrorBackoff: 0}}").limits
    assert (limits.max_poll_interval_ms, limits.min_poll_interval_ms) == (1, 1)
    assert limits.io_error_backoff_ms == 1
    limits = parse("harvest: {limits: {markBackoff: 10s}}").limits
    assert (limits.max_poll_interval_ms, limits.min_poll_interval_ms) == (10_000, 2)
    assert parse("harvest: {limits: {heartbeatTimeout: 1ms}}").coordination.interval_ms == 20


def test_what_has_no_effect_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "harvest")
    parse("harvest: {leaderTopic: t, limits: {sendBuffer: 1, markBackoff: 1s}}", source="r")
    assert [record.getMessage() for record in caplog.records] == [
        "r: accepted, and without effect here: leaderTopic, sendBuffer"
    ]
    caplog.clear()
    parse("harvest: {limits: {markBackoff: 1s}}")
    assert not caplog.records


# --- What follows from what is configured ---


def test_who_harvests_is_a_relay_where_there_are_destinations() -> None:
    assert parse(OURS).registration("c").mode == "mark"
    relay = parse(OURS + "destinations: {shop: {kafka: {}}}\n").registration("c")
    assert (relay.mode, relay.group, relay.cluster, relay.topic) == (
        "relay",
        "shop",
        "c",
        "__marshal",
    )


def test_one_shard_is_an_election_and_several_are_claims() -> None:
    assert parse(OURS).shard_units() == [("leader:harvest:outbox", 0)]
    config = parse(OURS + "mode: range\nshards: 2\n")
    assert config.shard_units() == [("harvest:outbox", 0), ("harvest:outbox", 1)]
    assert config.shard_units(1) == [("leader:harvest:outbox", 0)]
    assert config.shard_sink_name(1) == "shop.outbox.1"


@pytest.mark.parametrize(
    ("wal", "purge"),
    [
        ("{}", "delete"),
        ("{layout: debezium}", "keep"),
        ("{purge: keep}", "keep"),
        ("{layout: debezium, purge: delete}", "delete"),
    ],
)
def test_what_is_not_our_table_is_left_as_it_is(wal: str, purge: str) -> None:
    assert parse(OURS + f"mode: wal\nwal: {wal}\n").wal.options().purge == purge


def test_further_columns_are_beside_the_headers_of_a_layout() -> None:
    config = parse(
        OURS + "mode: wal\nwal: {layout: debezium, headers: {id: id}}\n"
        "columns: {headers: {trace: trace_id}}\n"
    )
    headers = config.wal.options(config.columns.extra()).layout.headers
    assert headers == {"id": "id", "trace": "trace_id"}


def test_rows_that_wait_for_a_topic_hold_up_their_keys() -> None:
    """Otherwise a later row of the key would come before it."""
    policy = parse(OURS + "bad_rows: {unknown_topic: wait, key_waits: false}\n").bad_rows.policy()
    assert policy.key_waits
    policy = parse(OURS + "bad_rows: {key_waits: false}\n").bad_rows.policy()
    assert not policy.key_waits


def test_times_are_in_the_units_that_are_used() -> None:
    config = parse(OURS + "mode: range\npartitions: {retain_hours: 1.5}\n")
    assert config.partitions.policy().retain_s == 5_400
    assert parse(OURS + "logging: {level: WARN}\n").logging.python_level() == 30


@pytest.mark.parametrize("hours", [".inf", "-.inf", ".nan", "1e300", "1000001", "-1"])
def test_nothing_is_kept_for_longer_than_a_database_reckons(hours: str) -> None:
    """Forever ended a harvester of MySQL a minute after its start."""
    with pytest.raises(ConfigurationError, match=r"partitions\.retain_hours: Input should be"):
        parse(OURS + f"mode: range\npartitions: {{retain_hours: {hours}}}\n")


def test_the_producers_settings_go_before_those_of_all() -> None:
    config = parse(OURS + "producer: {sasl.password: mine, linger.ms: 5}\npartitioner: java\n")
    assert config.producer_config["sasl.password"] == "mine"
    assert producer_settings(config.producer_config, None)["partitioner"] == "murmur2"
    there = "destinations: {a: {kafka: {settings: {linger.ms: 7}}}}\n"
    config = parse(f"{OURS}producer: {{linger.ms: 5, batch.size: 9}}\n{there}")
    destination: Any = config.destination_sink("a")
    settings = {"batch.size": 9, "linger.ms": 7, "bootstrap.servers": "localhost:9092"}
    assert destination._settings.items() >= settings.items()
    for key in ("producer", "kafka"):
        text = f"{OURS}partitioner: java\n"
        given = "{bootstrap.servers: b, partitioner: consistent}"
        if key == "kafka":
            text = text.replace('{bootstrap.servers: "localhost:9092", sasl.password: hush}', given)
        else:
            text += f"producer: {given}\n"
        with pytest.raises(ConfigurationError, match="partitioner is given twice"):
            parse(text)


def test_a_destination_knows_a_message_by_the_key_of_the_whole_file() -> None:
    shop = "destinations: {shop: {http: {uri: 'http://h/', cloudevents: {source: s}}}}\n"
    for key in ("{outbox}.{id}", "{topic}-{id}"):
        sink: Any = parse(f"{OURS}idempotency_key: '{key}'\n{shop}").destination_sink("shop")
        assert sink._endpoint.cloudevents.id.text == key


def test_a_record_is_known_by_database_outbox_and_id() -> None:
    envelope = parse(OURS + "harvest_id: eu\noutbox: s.orders\n").envelope()
    assert envelope is not None
    assert envelope.harvest_id == "eu/s.orders"
    assert parse(OURS).envelope() is None


def test_no_connection_string_is_shown() -> None:
    base = OURS.replace("app:hush@", "")
    for more in (
        "mode: range\nprimary: {database: 'password=hush', replica: 'password=hush'}\n",
        "mode: wal\nwal: {standby: 'password=hush'}\n",
        "producer: {ssl.key.password: hush}\n",
    ):
        assert "hush" not in repr(parse(base + more))


@pytest.mark.parametrize("named", ["database", "replica"])
@pytest.mark.parametrize("other", ["sqlite:///x", "mysql://h/d", "mariadb://h/d"])
def test_ids_are_drawn_by_postgresql(named: str, other: str) -> None:
    given = {"database": "host=p", named: other}
    with pytest.raises(ConfigurationError, match="both databases must be PostgreSQL"):
        parse(f"{OURS}mode: range\nprimary: {given}\n")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("partitions: {archive: a}\n", "partitions.archive does not keep further columns"),
        ("mode: wal\nwal: {source: message}\n", "messages have no columns"),
        ("mode: range\nprimary: {database: host=p}\n", "with `primary`"),
        ("destinations: {shop: {kafka: {}}}\n", "partition and timestamp are Kafka's"),
    ],
)
def test_further_columns_are_refused_where_they_would_be_lost(more: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse(OURS + "columns: {partition: p}\n" + more)
