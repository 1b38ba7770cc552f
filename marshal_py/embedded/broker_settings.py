"""The server.properties of an embedded broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .ports import HOST


def listeners(node_id: int, port: int, controller_ports: Sequence[int]) -> dict[str, object]:
    """What makes a process a broker and a controller on these ports of this machine."""
    voters = (f"{i}@{HOST}:{p}" for i, p in enumerate(controller_ports, start=1))
    controller_port = controller_ports[node_id - 1]
    return {
        "process.roles": "broker,controller",
        "node.id": node_id,
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(voters),
    }


def defaults_for_tests(version: str, brokers: int) -> dict[str, object]:
    """What suits tests: small, quick, and as safe as the number of brokers allows."""
    enough = 1 if brokers == 1 else 2
    settings: dict[str, object] = {
        "auto.create.topics.enable": "false",
        "default.replication.factor": brokers,
        "min.insync.replicas": enough,
        "offsets.topic.replication.factor": brokers,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": brokers,
        "transaction.state.log.min.isr": enough,
        "transaction.state.log.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 500,
        # A dead broker loses its partitions, and a killed one may come back, after this time,
        # which is 9 s by default. Shorter, and a busy machine takes a living one for dead.
        "broker.session.timeout.ms": 6000 if brokers == 1 else 3000,
        "broker.heartbeat.interval.ms": 500,
        # for a small heap and few threads
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
    if not version.startswith("3."):
        settings["share.coordinator.state.topic.replication.factor"] = brokers
        settings["share.coordinator.state.topic.min.isr"] = enough
        settings["share.coordinator.state.topic.num.partitions"] = 4
    return settings


def write(path: Path, settings: dict[str, object]) -> None:
    """Write a .properties file. A backslash starts an escape there."""
    lines = (f"{k}={str(v).replace(chr(92), chr(92) * 2)}\n" for k, v in settings.items())
    path.write_text("".join(lines))
