"""A replication slot in PostgreSQL: how it is, ending whoever reads it, dropping it."""

from __future__ import annotations

import re
import time
from typing import Final, Literal

import psycopg
from psycopg import sql

from harvest.core.interfaces.mark_store import Finding
from harvest.core.table_name import TableName
from harvest.core.wal_position import format_lsn
from harvest.core.wal_slot import SlotHealth, SlotState
from harvest.databases.postgres.table import PostgresTable, refused
from harvest.errors import ConfigurationError, StoreUnavailable

__all__ = ["PostgresSlot"]

_IN_USE_S: Final = 10.0
_RETRY_S: Final = 0.02
_MAX_NAME: Final = 63
_PINNED_WARNING_BYTES: Final = 1 << 30
_FAILOVER_VERSION: Final = 170000
_STATE: Final = """
SELECT to_jsonb(s), pg_wal_lsn_diff(s.confirmed_flush_lsn, '0/0')::numeric::text,
       pg_wal_lsn_diff(s.restart_lsn, '0/0')::numeric::text
FROM pg_replication_slots s WHERE slot_name = %s
"""
_LOG_END: Final = """
SELECT pg_wal_lsn_diff(
  CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END,
  '0/0'
)::numeric::text
"""
_SETTINGS: Final = """
SELECT current_setting('wal_level'), current_setting('max_slot_wal_keep_size'),
       (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)
"""


class PostgresSlot(PostgresTable):
    """The slot of an outbox, on the server that is read: a replica, perhaps.

    `name`: None for the one that is made of the names of database and outbox. Raises
    `ConfigurationError` as `PostgresTable` does.
    """

    def __init__(self, conninfo: str, table: str | TableName, name: str | None = None) -> None:
        super().__init__(conninfo, table)
        self._name = name

    @property
    def name(self) -> str:
        """The slot's name: the slots of all databases of a server have different ones."""
        if self._name is not None:
            return self._name
        name = f"harvest_{self._connected().info.dbname}_{self._table}"
        name = re.sub(r"[^a-z0-9_]", "_", name.lower())
        if len(name) > _MAX_NAME:
            raise ConfigurationError(
                f"the slot would be called {name!r}, and {_MAX_NAME} characters are allowed: give "
                "one, `wal: {slot: …}`"
            )
        return name

    def connect(self) -> None:
        """Connect. Raises `StoreUnavailable`."""
        self._connected()

    def state(self) -> SlotState | None:
        """How it is; None if there is none."""
        found = self._execute(sql.SQL(_STATE), (self.name,)).fetchall()
        if not found:
            return None
        ((about, confirmed, restart),) = found
        why_lost = about.get("invalidation_reason") or (about.get("conflicting") and "conflict")
        return SlotState(
            self.name,
            about.get("plugin") or "",
            about.get("database") or "",
            None if confirmed is None else int(confirmed),
            None if restart is None else int(restart),
            "lost" if why_lost else about.get("wal_status"),
            why_lost or None,
            about.get("safe_wal_size"),
            about.get("active_pid"),
            bool(about.get("failover")),
            bool(about.get("synced")),
        )

    def log_end(self) -> int:
        """Where the server's log ends; of a replica, as far as it has replayed it."""
        ((end,),) = self._execute(sql.SQL(_LOG_END)).fetchall()
        return int(end)

    def health(self) -> SlotHealth:
        """What the slot costs, now."""
        slot = self.state()
        if slot is None or slot.lost or slot.restart_lsn is None:
            return SlotHealth(slot is not None, lost=True)
        end = self.log_end()
        return SlotHealth(
            exists=True,
            lost=False,
            active=slot.active_pid is not None,
            pinned_bytes=max(0, end - slot.restart_lsn),
            behind_bytes=max(0, end - (slot.confirmed_lsn or 0)),
            safe_bytes=slot.safe_bytes,
        )

    def end_reader(self) -> None:
        """End the walsender of whoever reads it; who may not end it, waits for its end."""
        found = self.state()
        if found is None or found.active_pid is None:
            return
        try:
            self._connected().execute("SELECT pg_terminate_backend(%s)", (found.active_pid,))
        except psycopg.errors.InsufficientPrivilege:
            return
        except psycopg.Error as error:
            text = f"the reader of the slot {self.name} could not be ended: {_said(error)}"
            raise StoreUnavailable(text) from error

    def drop(self) -> bool:
        """Drop it, ending whoever reads it; whether there was one."""
        deadline = time.monotonic() + _IN_USE_S
        while self.state() is not None:
            self.end_reader()
            try:
                self._connected().execute("SELECT pg_drop_replication_slot(%s)", (self.name,))
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise StoreUnavailable(f"the slot {self.name} is in use") from None
                time.sleep(_RETRY_S)
            except psycopg.errors.UndefinedObject:
                return False
            except psycopg.Error as error:
                raise refused(f"the slot {self.name} could not be dropped", error) from error
            else:
                return True
        return False

    # --- check ---

    def server_findings(self) -> list[Finding]:
        """What `harvest check` says of the server's settings and the user."""
        ((level, kept, may_replicate),) = self._execute(sql.SQL(_SETTINGS)).fetchall()
        findings = [
            Finding("wal_level", "ok", "logical")
            if level == "logical"
            else Finding(
                "wal_level",
                "error",
                f"wal_level is {level}, must be logical: ALTER SYSTEM SET, then restart the server",
            )
        ]
        if kept == "-1":
            text = (
                "max_slot_wal_keep_size is -1: while nobody harvests, the log grows until the disk "
                "is full; set it to what the disk can spare (a slot that needs more is then lost)"
            )
            findings.append(Finding("log-kept", "warning", text))
        else:
            findings.append(Finding("log-kept", "ok", f"at most {kept} for a slot"))
        if not may_replicate:
            text = "this user may not replicate: ALTER ROLE … REPLICATION"
            findings.append(Finding("privilege", "error", text))
        return findings

    def findings(self) -> list[Finding]:
        """What `harvest check` says of the slot."""
        slot = self.state()
        if slot is None:
            text = f"the slot {self.name} does not exist: run `harvest init --mode wal`"
            return [Finding("slot", "error", text)]
        if slot.lost:
            why = f" ({slot.why_lost})" if slot.why_lost else ""
            text = f"the slot {slot.name} is lost{why}: see `harvest slot renew --help`"
            return [Finding("slot", "error", text)]
        findings = [self._cost(slot)]
        version = self._connected().info.server_version
        if version >= _FAILOVER_VERSION and not (slot.failover or slot.synced):
            text = (
                "the slot is not kept on replicas: after a failover it does not exist; make it "
                "anew with `harvest slot renew`, and set sync_replication_slots on the replica"
            )
            findings.append(Finding("failover", "warning", text))
        return findings

    def _cost(self, slot: SlotState) -> Finding:
        health = self.health()
        text = (
            f"{slot.name} is {'' if health.active else 'not '}being read, at "
            f"{format_lsn(slot.confirmed_lsn or 0)}; it keeps {_mib(health.pinned_bytes)} of log, "
            f"of which {_mib(health.behind_bytes)} is not harvested"
        )
        level: Literal["ok", "warning"] = "ok"
        if health.safe_bytes is not None:
            text += f"; it is lost after {_mib(health.safe_bytes)} more"
            level = "warning" if health.safe_bytes < health.pinned_bytes // 4 else "ok"
        if health.pinned_bytes > _PINNED_WARNING_BYTES:
            level = "warning"
        if level == "warning":
            text += ": is a harvester running, or a transaction open for long?"
        return Finding("slot", level, text)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _said(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
