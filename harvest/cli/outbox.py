"""The outbox that the options name: --config, or --database and --table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harvest.config.load import load
from harvest.config.model import Mode, ReaperConfig
from harvest.core.extra_columns import NO_EXTRA, Extra
from harvest.core.interfaces.dead_letter_store import DeadLetterTable
from harvest.core.table_name import TableName
from harvest.core.wal_options import WalOptions
from harvest.databases import registry
from harvest.databases.postgres.attempts import PostgresAttempts
from harvest.databases.postgres.two_databases import PostgresIds
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.databases.registry import AnyMarkStore, AnyRangeStore, Database
from harvest.errors import ConfigurationError
from harvest.maintenance.partitions import PartitionPolicy
from harvest.outbox.stasher import Stasher

__all__ = [
    "Outbox",
    "load_partitioned_config",
    "load_range_config",
    "load_wal_config",
    "open_outbox",
]


@dataclass(frozen=True, slots=True)
class Outbox:
    """A table of a database; `config` is None where there is no file. Nothing is connected yet."""

    database: Database
    name: str
    mode: Mode
    config: ReaperConfig | None = None

    @property
    def table(self) -> TableName:
        """The table's name, checked. Raises `ConfigurationError`."""
        return TableName.parse(self.name)

    @property
    def wal_options(self) -> WalOptions:
        """What is read in wal mode."""
        return WalOptions() if self.config is None else self.config.wal.options(self.extra)

    @property
    def extra(self) -> Extra:
        """Columns that become headers."""
        return NO_EXTRA if self.config is None else self.config.columns.extra()

    @property
    def partitions(self) -> PartitionPolicy | None:
        """As configured."""
        return None if self.config is None else self.config.partitions.policy()

    def dead_letters(self) -> DeadLetterTable:
        """The rows that cannot be published."""
        if self.mode == "wal":
            return self.database.wal_dead_letters(self.table, self.wal_options)
        return self.database.dead_letters(self.table)

    def attempts(self) -> PostgresAttempts | None:
        """What failed on its way to a destination; None without any, or where it is not noted."""
        if self.config is None or not self.config.destinations:
            return None
        return self.database.attempts(self.table)

    def stasher(self) -> Stasher:
        """What writes to it."""
        if self.mode == "wal" and self.wal_options.source == "message":
            return Stasher(self.name, mode="message", prefix=self.wal_options.prefix)
        return Stasher(self.name)

    def store(self) -> AnyMarkStore | AnyRangeStore | PostgresWalSource:
        """The table, or the slot, in the mode in which it is harvested."""
        if self.mode == "wal":
            return self.database.wal_source(self.table, self.wal_options)
        if self.mode == "range":
            shards = 1 if self.config is None else self.config.shards
            return self.database.range_store(self.table, shards=shards, extra=self.extra)
        return self.database.mark_store(self.table, extra=self.extra)

    def ids_in_primary(self) -> PostgresIds | None:
        """The table of ids, where the configuration has two databases."""
        primary = None if self.config is None else self.config.primary
        return None if primary is None else PostgresIds(primary.database, primary.ids)


def open_outbox(
    config: Path | None, database: str | None, table: str | None, mode: Mode | None = None
) -> Outbox:
    """Find the outbox; `table` and `mode` go before what is configured.

    Raises `ConfigurationError`.
    """
    if (config is None) == (database is None):
        raise ConfigurationError("give either --config FILE or --database CONNECTION")
    if config is None:
        return Outbox(
            registry.database_of_data_source(database or ""), table or "outbox", mode or "mark"
        )
    settings = load(config)
    return Outbox(
        registry.database(settings.database),
        table or settings.outbox,
        mode or settings.mode,
        settings,
    )


def load_range_config(path: Path) -> ReaperConfig:
    """Read a configuration of range mode. Raises `ConfigurationError`."""
    settings = load(path)
    if settings.mode != "range":
        raise ConfigurationError(f"{path} has mode: {settings.mode}; this is for mode: range")
    return settings


def load_partitioned_config(path: Path) -> ReaperConfig:
    """Read a configuration of a mode with partitions. Raises `ConfigurationError`."""
    return load_wal_config(path) if load(path).mode == "wal" else load_range_config(path)


def load_wal_config(path: Path) -> ReaperConfig:
    """Read a configuration of wal mode. Raises `ConfigurationError`."""
    settings = load(path)
    if settings.mode != "wal":
        raise ConfigurationError(f"{path} has mode: {settings.mode}; this is for mode: wal")
    return settings
