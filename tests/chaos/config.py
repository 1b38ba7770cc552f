"""What all processes of one run have in common; passed as a file."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from marshal_py.protocol.world import coordinating_partition

__all__ = ["BETWEEN", "NETWORKS", "QUORUM", "ChaosConfig", "client_of", "group_of", "network_of"]

NETWORKS = ("NETA", "NETB", "NETC")
"""Each client lives in one; each has a link of its own to every broker, which can be broken."""

BETWEEN = "BETWEEN"
"""The way to each broker that the other brokers take."""

QUORUM = "QUORUM"
"""The ways between any two controllers."""


def group_of(partition: int, partitions: int) -> str:
    """A group of nobody that belongs to a coordination partition."""
    for n in itertools.count():
        if coordinating_partition(f"filler-{n}", partitions) == partition:
            return f"filler-{n}"
    raise AssertionError


def client_of(process: str) -> str:
    """The client_id of a process: "claimer-0~" is another one under the name of claimer-0."""
    return process.rstrip("~")


def network_of(process: str) -> str:
    """The network that a process lives in."""
    return NETWORKS[sum(client_of(process).encode()) % len(NETWORKS)]


@dataclass(frozen=True)
class ChaosConfig:
    """Settings of one run."""

    folder: str
    seed: int
    bootstrap: dict[str, str]
    """Network → brokers, through its links."""
    direct: str
    """The brokers without any link, for what judges."""
    dsn: str
    """PostgreSQL through a link."""
    destination: str
    """Where the relay sends rows of PostgreSQL to, through a link."""
    maria_dsn: str = ""
    """MariaDB through a link; "" where it is not installed."""
    interval_ms: int = 1_000
    coordination_partitions: int = 4
    cells: int = 8
    partitions: int = 4
    claimers: int = 4
    consumers: int = 3
    """Of each kind: at least once, at most once."""
    runners: int = 2
    """Consumers whose handlers are called by `Consumer.run`."""
    texts: int = 2
    """Consumers of version 1, on a log of their own."""
    harvesters: int = 2
    """Of each kind: in mark mode, in range mode, in wal mode, with a destination, of MariaDB."""
    shards: int = 2
    """Of the harvesters in range mode."""
    messages_per_s: float = 60.0
    rows_per_s: float = 60.0
    batch: int = 20
    sabotage: str = ""
    """A rule that the clients leave out, to see whether the checker notices (see `sabotage.py`)."""
    log: str = "__marshal"
    claims_log: str = "__marshal.claims"
    """That of the claimers alone: it is made anew."""
    text_log: str = "__marshal.text"
    """In version 1."""

    @property
    def path(self) -> Path:
        """Where the processes read this."""
        return Path(self.folder) / "chaos.json"

    @property
    def quiet_path(self) -> Path:
        """Exists once the faults are over: nobody gives anything up any more."""
        return Path(self.folder) / "quiet"

    def save(self) -> None:
        """Write it."""
        self.path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: str) -> ChaosConfig:
        """Read what `save` wrote."""
        content = json.loads(Path(path).read_text())
        return cls(**content)

    def history(self, name: str) -> Path:
        """The history of a process, over all its restarts."""
        return Path(self.folder) / f"{name}.history"

    def log_of(self, name: str) -> str:
        """The coordination topic of a process, or of a group."""
        if name.startswith("claimer"):
            return self.claims_log
        return self.text_log if name.startswith("text") else self.log

    def network(self, name: str) -> str:
        """The network that a process lives in."""
        return network_of(name)

    @property
    def claimer_names(self) -> list[str]:
        """They hold cells and act, and do nothing else."""
        return [f"claimer-{n}" for n in range(self.claimers)]

    @property
    def older_names(self) -> list[str]:
        """Claimers of this version; the others are as if of the next one, and follow its level."""
        return self.claimer_names[::2]

    @property
    def twin_names(self) -> list[str]:
        """Misconfigured: each has the client_id of a claimer. Only one fault starts them."""
        return [f"{name}~" for name in self.claimer_names]

    @property
    def alo_names(self) -> list[str]:
        """Consumers at least once."""
        return [f"alo-{n}" for n in range(self.consumers)]

    @property
    def amo_names(self) -> list[str]:
        """Consumers at most once."""
        return [f"amo-{n}" for n in range(self.consumers)]

    @property
    def runner_names(self) -> list[str]:
        """Consumers that `run`, with retries and dead letters."""
        return [f"run-{n}" for n in range(self.runners)]

    @property
    def text_names(self) -> list[str]:
        """Consumers of version 1, at least once."""
        return [f"text-{n}" for n in range(self.texts)]

    @property
    def writer_names(self) -> list[str]:
        """Who writes messages and rows. Nothing is done to them."""
        return ["writer", "rows", *(["rows-maria"] if self.maria_dsn else [])]

    @property
    def harvester_names(self) -> list[str]:
        """Harvesters of PostgreSQL, an outbox for each kind, and of MariaDB, in mark mode."""
        kinds = ["mark", "range", "wal", "relay", *(["maria"] if self.maria_dsn else [])]
        return [f"harvester-{kind}-{n}" for kind in kinds for n in range(self.harvesters)]
