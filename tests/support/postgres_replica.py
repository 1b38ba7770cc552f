"""A streaming replica of an embedded PostgreSQL."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import psycopg

from marshal_py.embedded import EmbeddedPostgres
from marshal_py.embedded.binaries import find_binaries, server_user
from marshal_py.embedded.ports import free_ports
from tests.support.harvest_world import wait_until

__all__ = ["Replica"]

_AT_LEAST = (
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
)
_LEAST = "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)"


class Replica:
    """A streaming replica of `primary`, on a port of its own.

    `slot`: a physical slot of that name holds the primary's log for it. `more`: its settings.
    """

    def __init__(
        self, primary: EmbeddedPostgres, folder: Path, *, slot: str | None = None, **more: object
    ) -> None:
        binaries, self._user = find_binaries(), server_user()
        data, self.port = folder / "replica", free_ports(1)[0]
        backup = [str(binaries.folder / "pg_basebackup"), "-D", str(data), "-R", "-c", "fast"]
        if slot is not None:
            backup += ["--create-slot", "--slot", slot]
        self._run([*backup, "-d", primary.dsn])
        with psycopg.connect(primary.dsn) as connection:  # a replica must not have less
            least = connection.execute(_LEAST, (list(_AT_LEAST),)).fetchall()
        given = " ".join(f"-c {name}={value}" for name, value in [*least, *more.items()])
        options = (
            f"{given} -p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        )
        control = [str(binaries.folder / "pg_ctl"), "-D", str(data), "-w"]
        self._start = [*control, "-l", str(folder / "log"), "-o", options, "start"]
        self._run(self._start)
        self._stop = [*control, "-m", "immediate", "stop"]

    def url(self, database: str) -> str:
        return psycopg.conninfo.make_conninfo(database, host="127.0.0.1", port=self.port)

    def replay(self, database: str, *, go_on: bool) -> None:
        call = "pg_wal_replay_resume()" if go_on else "pg_wal_replay_pause()"
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(f"SELECT {call}")

    def wait_for(self, primary: str, database: str) -> None:
        """Until it has replayed what the `primary` has written."""
        with psycopg.connect(primary) as connection:
            ((end,),) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()

        def replayed() -> bool:
            try:
                with psycopg.connect(self.url(database)) as there:
                    query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
                    return there.execute(query, (end,)).fetchall() == [(True,)]
            except psycopg.OperationalError:  # it does not have the database yet
                return False

        wait_until(replayed, "the replica")

    def promote(self, database: str) -> None:
        """It is a primary from now on."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            assert connection.execute("SELECT pg_promote(true, 60)").fetchall() == [(True,)]

    def crash(self) -> None:
        """It crashes, and comes up again."""
        self._run(self._stop)
        self._run(self._start)

    def close(self) -> None:
        self._run(self._stop)

    def _run(self, command: list[str]) -> None:
        user = self._user
        account: dict[str, Any]
        account = {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": []}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120, **account)
