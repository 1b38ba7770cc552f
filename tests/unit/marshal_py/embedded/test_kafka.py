"""`EmbeddedKafka` with a shell script for a broker: when it is ready, and how it fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.embedded import EmbeddedKafka, PortTaken, ServerFailed, kafka
from tests.support.consumers import until


class Image:
    """Runs a script in place of a broker."""

    script = "while :; do sleep 0.05; done"
    cluster_id = ""

    def format(self, folder: Path, *, cluster_id: str, **_: Any) -> None:
        folder.mkdir(parents=True)
        self.cluster_id = cluster_id

    def command(self, _main: str, properties: str, **_: Any) -> list[str]:
        return ["/bin/sh", "-c", self.script, properties]


class Admin:
    """Tells the brokers that it knows, of the cluster that it is of."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.brokers = {1}
        self.is_another = False
        self.answers = True
        self.led: list[list[int]] = []
        """Leaders of a topic's partitions, each time that it is asked for."""
        self.deletes: Exception | None = None

    def create_topics(self, topics: list[Any], **_: Any) -> dict[str, Any]:
        return {topic.topic: SimpleNamespace(result=lambda _: None) for topic in topics}

    def list_topics(self, topic: str = "", **_: Any) -> Any:
        if self.led:
            found = dict(enumerate(SimpleNamespace(leader=n) for n in self.led.pop(0)))
            return SimpleNamespace(topics={topic: SimpleNamespace(partitions=found)})
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        cluster_id = "another" if self.is_another else self.image.cluster_id
        return SimpleNamespace(cluster_id=cluster_id, brokers=dict.fromkeys(self.brokers))

    def delete_topics(self, names: list[str], **_: Any) -> dict[str, Any]:
        def result(_: float) -> None:
            if self.deletes is not None:
                raise self.deletes

        return {name: SimpleNamespace(result=result) for name in names}


@pytest.fixture(autouse=True)
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    made = Image()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(kafka, "kafka_image", lambda *_, **__: made)
    monkeypatch.setattr(kafka, "find_java", lambda _: None)
    return made


@pytest.fixture
def admin(image: Image, monkeypatch: pytest.MonkeyPatch) -> Admin:
    found = Admin(image)
    monkeypatch.setattr(EmbeddedKafka, "admin", lambda *_, **__: found)
    return found


def test_another_cluster_on_its_port_is_not_taken_for_it(admin: Admin) -> None:
    admin.is_another = True
    with pytest.raises(ServerFailed, match=r"broker 0 was not ready within 0\.05 s"):
        EmbeddedKafka(timeout_s=0.05).start()


def test_a_cluster_is_ready_when_all_its_brokers_know_each_other(
    admin: Admin, tmp_path: Path
) -> None:
    admin.brokers = {1, 3}
    with pytest.raises(ServerFailed, match="was not ready"):
        EmbeddedKafka(3, timeout_s=0.05).start()
    assert list(tmp_path.iterdir()) == []
    admin.brokers = {1, 2, 3}
    with EmbeddedKafka(3) as found:
        assert all(found.running(n) for n in range(3))
        assert len(set(found.bootstrap_servers.split(","))) == 3


def test_clusters_with_one_folder_for_logs_have_a_log_each(admin: Admin, tmp_path: Path) -> None:
    with EmbeddedKafka(log_dir=tmp_path) as one, EmbeddedKafka(log_dir=tmp_path) as other:
        names = [cluster.log_path().name for cluster in (one, other)]
    assert names == ["broker-0.log", "broker-0-2.log"]


def test_a_broker_that_ends_is_not_waited_for(image: Image, admin: Admin) -> None:
    admin.answers, image.script = False, "echo no disk; exit 1"
    with pytest.raises(ServerFailed, match=r"(?s)broker 0 ended.*no disk"):
        EmbeddedKafka(timeout_s=600).start()


def test_a_port_that_is_taken_five_times_is_told(
    image: Image, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def choose(count: int) -> list[int]:
        tried.append(count)
        return [len(tried)] * count

    monkeypatch.setattr(kafka, "free_ports", choose)
    admin.answers, image.script = False, "echo Address already in use; exit 1"
    with pytest.raises(PortTaken):
        EmbeddedKafka().start()
    assert tried == [2] * 5


def test_what_the_caller_says_of_settings_wins(admin: Admin, tmp_path: Path) -> None:
    def own(broker: int, defaults: Any) -> dict[str, object]:
        return {"node.id": defaults["node.id"] + 10, "num.io.threads": broker}

    for properties, wanted in (
        ({"num.io.threads": 9}, {"num.io.threads=9", "node.id=1"}),
        (own, {"num.io.threads=0", "node.id=11"}),
    ):
        with EmbeddedKafka(properties=properties):
            (file,) = tmp_path.glob("*/broker-0/server.properties")
            assert wanted <= set(file.read_text().splitlines())


@pytest.mark.parametrize(
    ("code", "fails"), [(KafkaError.UNKNOWN_TOPIC_OR_PART, False), (KafkaError._TIMED_OUT, True)]
)
def test_only_that_a_topic_is_not_there_is_fine_where_it_is_deleted(
    admin: Admin, code: int, fails: bool
) -> None:
    admin.deletes = KafkaException(KafkaError(code))
    with EmbeddedKafka() as found:
        if fails:
            with pytest.raises(KafkaException):
                found.delete_topic("orders")
        else:
            found.delete_topic("orders")


def test_a_topic_is_there_when_each_of_its_partitions_has_a_leader(admin: Admin) -> None:
    with EmbeddedKafka() as found:
        admin.led = [[], [1], [1, -1], [1, 1], [1, 1]]
        assert found.create_topic("orders", 2) == "orders"
        assert admin.led == [[1, 1]]


def test_a_restart_that_fails_tells_of_its_own_log_alone(image: Image, admin: Admin) -> None:
    image.script = f"echo Address already in use; {image.script}"
    with EmbeddedKafka(timeout_s=600) as found:
        found.kill()
        admin.answers, image.script = False, "echo no disk; exit 1"
        with pytest.raises(ServerFailed, match=r"(?s)broker 0 ended.*no disk") as raised:
            found.start(0)
    assert "in use" not in str(raised.value)
    assert not isinstance(raised.value, PortTaken)


def test_a_frozen_broker_is_stopped_in_good_order(image: Image, admin: Admin) -> None:
    image.script = f"trap 'echo in good order; exit' TERM; echo serving; {image.script}"
    with EmbeddedKafka() as found:
        until(lambda: "serving" in found.log_path().read_text())
        found.pause()
        found.stop()
        assert "in good order" in found.log_path().read_text()


def test_a_frozen_broker_that_is_started_goes_on(admin: Admin) -> None:
    with EmbeddedKafka() as found:
        pid = found.pid()

        def state() -> str:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

        found.pause()
        assert state() == "T"
        found.start()
        until(lambda: state() != "T")
        assert found.pid() == pid


def test_ctrl_c_while_it_starts_leaves_nothing(
    admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(**_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(admin, "list_topics", interrupt)
    found = EmbeddedKafka()
    with pytest.raises(KeyboardInterrupt):
        found.start()
    assert not found.running()
    assert list(tmp_path.iterdir()) == []


def test_what_one_client_is_told_wins_over_what_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda config: config)
    found = EmbeddedKafka(client_config={"log_level": 6, "client.id": "all", "linger.ms": 1})
    state: Any = SimpleNamespace(brokers=[SimpleNamespace(port=7)])
    found._state = state
    admin: Any = found.admin(client_id="one")
    assert admin == {
        "bootstrap.servers": "127.0.0.1:7",
        "log_level": 6,
        "client.id": "one",
        "linger.ms": 1,
    }


def test_one_of_three_that_is_started_again_is_ready_when_it_is_known_beside_the_others(
    admin: Admin,
) -> None:
    admin.brokers = {1, 2, 3}
    with EmbeddedKafka(3, timeout_s=60) as kafka:
        assert kafka._knows(admin, {2})  # type: ignore[arg-type]
        assert not kafka._knows(admin, {2, 4})  # type: ignore[arg-type]
