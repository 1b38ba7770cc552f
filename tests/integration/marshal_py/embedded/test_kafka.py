"""`EmbeddedKafka` does what it promises: brokers die, freeze and come back with their data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from marshal_py.embedded import (
    EmbeddedKafka,
    NotRunning,
    PortTaken,
    ServerFailed,
    find_java,
    kafka,
    kafka_home,
)
from marshal_py.embedded.jars import jars
from marshal_py.embedded.ports import free_ports
from marshal_py.errors import InvalidArgument

pytestmark = pytest.mark.kafka


def produce(servers: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda e, _: failures.append(e) if e else None)
    assert producer.flush(60) == 0
    assert not failures


def consume(servers: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = [consumer.poll(60) for _ in range(count)]
    finally:
        consumer.close()
    return [message.value() for message in messages if message]


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[EmbeddedKafka]:
    """A broker that these tests may hurt."""
    with EmbeddedKafka() as server:
        yield server


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[EmbeddedKafka]:
    """A cluster that these tests may hurt."""
    with EmbeddedKafka(brokers=3) as server:
        yield server


def test_a_killed_broker_comes_back_with_its_port_and_data(own_kafka: EmbeddedKafka) -> None:
    servers, pid, topic = own_kafka.bootstrap_servers, own_kafka.pid(), own_kafka.create_topic()
    produce(servers, topic, b"1", b"2")
    own_kafka.kill()
    assert not own_kafka.running()
    with pytest.raises(NotRunning, match=r"start\(0\)"):
        own_kafka.kill()
    own_kafka.start(0)
    assert own_kafka.pid() != pid
    assert own_kafka.bootstrap_servers == servers
    produce(servers, topic, b"3")
    assert consume(servers, topic, 3) == [b"1", b"2", b"3"]


def test_a_stopped_broker_comes_back_with_its_data(own_kafka: EmbeddedKafka) -> None:
    topic = own_kafka.create_topic()
    produce(own_kafka.bootstrap_servers, topic, b"1")
    own_kafka.stop(0)
    assert not own_kafka.running()
    own_kafka.start()
    assert consume(own_kafka.bootstrap_servers, topic, 1) == [b"1"]


def test_a_paused_broker_is_frozen_until_it_is_resumed(own_kafka: EmbeddedKafka) -> None:
    topic = own_kafka.create_topic()
    own_kafka.pause()
    assert own_kafka.running()
    assert process_state(own_kafka.pid()) == "T"
    own_kafka.resume()
    produce(own_kafka.bootstrap_servers, topic, b"1")


def test_a_paused_broker_can_be_stopped(own_kafka: EmbeddedKafka) -> None:
    own_kafka.pause()
    own_kafka.stop()
    assert not own_kafka.running()
    own_kafka.start()


def test_starting_what_runs_changes_nothing(own_kafka: EmbeddedKafka) -> None:
    pid = own_kafka.pid()
    own_kafka.start()
    own_kafka.start(0)
    assert own_kafka.pid() == pid


def test_topics_come_only_when_asked_for(own_kafka: EmbeddedKafka) -> None:
    producer = Producer(
        {"bootstrap.servers": own_kafka.bootstrap_servers, "message.timeout.ms": 2000}
    )
    producer.produce("absent", b"1")
    producer.flush(60)
    assert "absent" not in own_kafka.admin().list_topics(timeout=120).topics


def test_a_topic_can_be_deleted_and_deleted_again(own_kafka: EmbeddedKafka) -> None:
    topic = own_kafka.create_topic()
    own_kafka.delete_topic(topic)
    own_kafka.delete_topic(topic)
    assert topic not in own_kafka.admin().list_topics(timeout=120).topics


def test_the_cluster_refuses_a_second_topic_of_a_name(own_kafka: EmbeddedKafka) -> None:
    topic = own_kafka.create_topic()
    with pytest.raises(KafkaException, match="already exists"):
        own_kafka.create_topic(topic)


def test_a_group_starts_and_transactions_work(own_kafka: EmbeddedKafka) -> None:
    servers, topic = own_kafka.bootstrap_servers, own_kafka.create_topic()
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "t"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"1")
    producer.commit_transaction(60)
    for protocol in ("classic", "consumer"):
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"group-{protocol}",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic])
        try:
            message = consumer.poll(60)
            assert message is not None
            assert message.value() == b"1"
        finally:
            consumer.close()


def test_a_broker_number_is_checked(own_kafka: EmbeddedKafka) -> None:
    with pytest.raises(InvalidArgument, match="broker=1 must be 0 to 0"):
        own_kafka.kill(1)


@pytest.mark.slow
def test_a_cluster_serves_on_while_any_one_broker_is_dead(own_cluster: EmbeddedKafka) -> None:
    servers, topic = own_cluster.bootstrap_servers, own_cluster.create_topic()
    for dead in range(3):
        own_cluster.kill(dead)
        produce(servers, topic, f"without {dead}".encode())
        own_cluster.start(dead)
    metadata = own_cluster.admin().list_topics(timeout=120)
    assert set(metadata.brokers) == {1, 2, 3}
    assert len(consume(servers, topic, 3)) == 3
    assert len(metadata.topics[topic].partitions[0].replicas) == 3


def test_a_cluster_comes_back_after_all_brokers_died(own_cluster: EmbeddedKafka) -> None:
    topic = own_cluster.create_topic()
    produce(own_cluster.bootstrap_servers, topic, b"1")
    for index in range(3):
        own_cluster.kill(index)
    own_cluster.start(0, wait=False)
    own_cluster.start()
    assert consume(own_cluster.bootstrap_servers, topic, 1) == [b"1"]


def test_a_cluster_stops_in_good_order_and_comes_back(own_cluster: EmbeddedKafka) -> None:
    topic = own_cluster.create_topic()
    produce(own_cluster.bootstrap_servers, topic, b"1")
    own_cluster.stop()
    assert not any(own_cluster.running(index) for index in range(3))
    own_cluster.start()
    assert consume(own_cluster.bootstrap_servers, topic, 1) == [b"1"]


def test_nothing_is_left_after_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = EmbeddedKafka()
    server.start()
    pid, first = server.pid(), server.bootstrap_servers
    assert list(tmp_path.iterdir())
    server.close()
    assert not list(tmp_path.iterdir())
    assert not Path(f"/proc/{pid}").exists()
    server.close()
    with server:
        assert server.bootstrap_servers != first


def test_a_failed_start_shows_the_log_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = EmbeddedKafka(properties={"log.segment.bytes": "many"})
    with pytest.raises(ServerFailed, match=r"(?s)broker 0 ended.*log\.segment\.bytes"):
        server.start()
    assert not list(tmp_path.iterdir())
    assert not server.running()


def test_logs_are_kept_where_the_caller_wants_them(tmp_path: Path) -> None:
    with EmbeddedKafka(log_dir=tmp_path / "logs", properties={"num.io.threads": 3}) as server:
        path = server.log_path()
    assert path == tmp_path / "logs" / "broker-0.log"
    assert "Kafka Server started" in path.read_text()


def test_a_port_taken_between_choice_and_use_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedKafka() as first:
        taken = first.port()
        choices = [[taken, *free_ports(1)], free_ports(2)]
        monkeypatch.setattr(kafka, "free_ports", lambda _: choices.pop(0))
        with EmbeddedKafka() as second:
            assert not choices
            assert second.port() != taken


def test_a_port_taken_during_a_restart_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedKafka() as first:
        first.stop()
        monkeypatch.setattr(kafka, "free_ports", lambda _: [first.port(), *free_ports(1)])
        with EmbeddedKafka(), pytest.raises(PortTaken, match="Address already in use"):
            first.start()


def test_a_broker_with_passwords() -> None:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    users = 'username="broker" password="b" user_broker="b" user_alice="a"'
    client = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "a",
    }
    properties = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": f"{login} {users};",
    }
    with EmbeddedKafka(properties=properties, client_config=client) as server:
        topic = server.create_topic()
        assert topic in server.admin().list_topics(timeout=120).topics
        with pytest.raises(KafkaException):
            server.admin(sasl_password="wrong").list_topics(timeout=2)


@pytest.mark.parametrize("java", ["path", "wheel"])
@pytest.mark.parametrize(
    "version",
    [
        "4.1.0",
        pytest.param("3.9.1", marks=pytest.mark.slow),
        pytest.param("4.2.0", marks=pytest.mark.slow),
    ],
)
def test_each_version_runs_on_each_java(version: str, java: str) -> None:
    if java == "path" and shutil.which("java") is None:
        pytest.skip("no java on PATH")
    with EmbeddedKafka(version=version, java=java) as server:
        command = Path(f"/proc/{server.pid()}/cmdline").read_bytes().split(b"\0")
        assert command[0].decode() == str(find_java(java).executable)
        assert f"kafka_2.13-{version}.jar".encode() in b"".join(command)
        topic = server.create_topic()
        produce(server.bootstrap_servers, topic, b"1")
        assert consume(server.bootstrap_servers, topic, 1) == [b"1"]


@pytest.mark.campaign
def test_both_ways_fetch_the_same_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("mvn") is None:
        pytest.skip("no mvn on PATH")
    found = []
    for way in ("python", "mvn"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / way))
        found.append({jar.name: jar.read_bytes() for jar in jars(kafka_home(way=way))})
    assert found[0] == found[1]
    assert len(found[0]) == 46


@pytest.mark.campaign
def test_a_machine_with_nothing_but_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lines: list[str] = []
    with EmbeddedKafka(progress=lines.append) as server:
        produce(server.bootstrap_servers, server.create_topic(), b"1")
    assert [line.split()[0] for line in lines] == ["downloading", "Apache", "preparing"]
    with EmbeddedKafka(progress=lines.append) as server:
        assert server.running()
    assert len(lines) == 3
