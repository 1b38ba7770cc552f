"""An outbox and a broker in memory, for tests of programs that harvest.

They are held to the same contracts as the real ones (tests/contract), and keep nothing:

- `memory_table.MemoryTable`: an outbox whose transactions commit when a test says so, and out of
  the order of their ids; `MemoryMarkStore` and `MemoryDeadLetters` are connections to it.
- `memory_range_store.MemoryRangeStore`: a connection to it in range mode.
- `memory_log.MemoryLog`: a write-ahead log with one slot; `MemoryWalSource` reads it in wal mode.
- `memory_broker.MemoryBroker`: what readers of Kafka would see; `MemorySink` writes to it, in
  transactions or without, and fails when a test says so.

No other module of harvest uses them.
"""
