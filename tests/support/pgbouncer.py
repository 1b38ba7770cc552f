"""A real pgbouncer in transaction mode, on a port of its own, before an embedded PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from marshal_py.embedded import EmbeddedPostgres
from marshal_py.embedded.ports import HOST, free_ports
from tests.support.harvest_world import wait_until

__all__ = ["Pgbouncer", "pgbouncer", "pgbouncer_program"]

_CONFIG = """
[databases]
* = host={host} port={server_port} user=postgres
[pgbouncer]
listen_addr = {host}
listen_port = {port}
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = transaction
server_login_retry = 1
default_pool_size = {pool}
unix_socket_dir =
logfile = {folder}/log
"""


class Pgbouncer:
    """The pooler, and where it is."""

    def __init__(self, port: int) -> None:
        self._port = port

    def url(self, dsn: str) -> str:
        """The same database, through the pooler."""
        parts = urlsplit(dsn)
        return parts._replace(netloc=f"postgres@{HOST}:{self._port}").geturl()


def pgbouncer_program() -> str | None:
    """Where it is; None if it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextlib.contextmanager
def pgbouncer(postgres: EmbeddedPostgres, *, pool: int = 2) -> Iterator[Pgbouncer]:
    """Start it; skip where it is not installed. `pool`: sessions of each database."""
    program = pgbouncer_program()
    if program is None:
        pytest.skip("pgbouncer is not installed")
    with tempfile.TemporaryDirectory(prefix="pgbouncer") as name:
        folder = Path(name)
        (port,) = free_ports(1)
        server_port = urlsplit(postgres.dsn).port
        (folder / "users.txt").write_text('"postgres" ""\n')
        (folder / "pgbouncer.ini").write_text(
            _CONFIG.format(host=HOST, port=port, server_port=server_port, folder=folder, pool=pool)
        )
        user = "nobody" if os.getuid() == 0 else None  # it refuses to run as root
        if user is not None:
            folder.chmod(0o777)
        process = subprocess.Popen(
            [program, "--quiet", str(folder / "pgbouncer.ini")],
            user=user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            made = Pgbouncer(port)
            wait_until(lambda: _answers(made.url(postgres.dsn)), "pgbouncer answers")
            yield made
        finally:
            process.terminate()
            process.wait()


def _answers(dsn: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(dsn, connect_timeout=2):
        return True
    return False
