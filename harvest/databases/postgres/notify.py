"""`LISTEN/NOTIFY`: a trigger that tells of inserted rows, and the connection that hears of them.

The trigger is optional (`harvest init --notify`). It fires once per INSERT statement and its
notification is sent when the transaction commits. The channel is named by the table's OID, so a
renamed table keeps working and two tables never share one.

What it costs the application: about 20 µs per transaction, and PostgreSQL lets transactions that
notify commit one after the other. Above some thousand commits per second, poll instead.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Final, TypeAlias

import psycopg
from psycopg import sql

from harvest.core.interfaces.listener import WakeSignal
from harvest.core.table_name import TableName

__all__ = ["PostgresListener", "behind_pooler", "install", "installed"]

_LOG: Final = logging.getLogger("harvest")
_STEP_S: Final = 0.5
_FIRST_RETRY_S: Final = 0.2
_MAX_RETRY_S: Final = 10.0
_LOOK_EVERY_S: Final = 30.0

Connection: TypeAlias = psycopg.Connection[tuple[object, ...]]

_INSTALL: Final = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('harvest.' || TG_RELID, ''); RETURN NULL; END $$;
CREATE TRIGGER harvest_notify AFTER INSERT ON {table}
  FOR EACH STATEMENT EXECUTE FUNCTION {function}();
"""
_REMOVE: Final = "DROP TRIGGER IF EXISTS harvest_notify ON {table}"
_LOOK: Final = """
SELECT c.oid::bigint, count(t.tgname) FROM pg_class c LEFT JOIN pg_trigger t
  ON t.tgrelid = c.oid AND t.tgname = 'harvest_notify' AND t.tgenabled IN ('O', 'A')
WHERE c.oid = to_regclass(%s) GROUP BY c.oid
"""


def behind_pooler(connection: Connection) -> bool:
    """Whether a pooler such as pgbouncer stands between, which may give every transaction another
    session: the process that answers is not the one that greeted us."""
    found = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return found is None or found[0] != connection.info.backend_pid


def installed(connection: Connection, table: TableName) -> str | None:
    """The channel of the table's trigger; None if there is no trigger, or no table."""
    found = connection.execute(_LOOK, (table.quoted(),)).fetchone()
    return f"harvest.{found[0]}" if found is not None and found[1] else None


def install(connection: Connection, table: TableName, *, remove: bool = False) -> bool:
    """Create the trigger, or remove it; return whether anything was to be done."""
    if (installed(connection, table) is not None) is not remove:
        return False
    function = sql.Identifier(*table.parts[:-1], "harvest_notify")
    template = _REMOVE if remove else _INSTALL
    connection.execute(
        sql.SQL(template).format(function=function, table=sql.Identifier(*table.parts))
    )
    return True


class PostgresListener:
    """Wakes whenever rows were committed to `table`. Implements `Listener`.

    Without the trigger it stays connected, looks for it every `look_every_s` seconds, and leaves
    `WakeSignal.listening` False. Behind a pooler, where notifications would come to whoever has the
    session next, it does not listen, says so once, and looks again as often.
    """

    def __init__(
        self, conninfo: str, table: TableName, *, look_every_s: float = _LOOK_EVERY_S
    ) -> None:
        self._conninfo = conninfo
        self._table = table
        self._look_every_s = look_every_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._told_of_pooler = False

    def start(self, signal: WakeSignal) -> None:
        """See `Listener.start`."""
        self._thread = threading.Thread(
            target=self._run, args=(signal,), name="harvest-listen", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """See `Listener.close`."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(2 * _STEP_S)

    def _run(self, signal: WakeSignal) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._stopping.is_set():
            try:
                with contextlib.closing(
                    psycopg.connect(self._conninfo, autocommit=True)
                ) as connection:
                    retry_s = _FIRST_RETRY_S
                    if not behind_pooler(connection):
                        self._listen(connection, signal)
                        continue
                self._tell_of_pooler()
                retry_s = self._look_every_s
            except psycopg.Error as error:
                said = " ".join(str(error).split())
                _LOG.warning("not listening for new rows, polling instead: %s", said)
            finally:
                signal.listening = False
                signal.wake()
            self._stopping.wait(retry_s)
            retry_s = min(2 * retry_s, _MAX_RETRY_S)

    def _tell_of_pooler(self) -> None:
        if not self._told_of_pooler:
            self._told_of_pooler = True
            _LOG.warning(
                "not listening for new rows, polling instead: the connection goes through a pooler;"
                " give `direct_database`, which reaches PostgreSQL itself, to be woken"
            )

    def _listen(self, connection: Connection, signal: WakeSignal) -> None:
        channel: str | None = None
        while not self._stopping.is_set():
            found = installed(connection, self._table)
            if found != channel:
                connection.execute("UNLISTEN *")
                if found is not None:
                    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(found)))
                    _LOG.info("listening for new rows on %s", found)
                channel = found
            signal.listening = channel is not None
            signal.wake()
            self._hear(connection, signal)

    def _hear(self, connection: Connection, signal: WakeSignal) -> None:
        """Wake for each notification, until it is time to look for the trigger again."""
        look_at = time.monotonic() + self._look_every_s
        while not self._stopping.is_set() and time.monotonic() < look_at:
            for _ in connection.notifies(timeout=min(_STEP_S, self._look_every_s)):
                signal.wake()
